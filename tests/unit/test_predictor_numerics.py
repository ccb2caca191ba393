"""Gathering rows, conditioning Gaussians, and solving many small systems: against the formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heet_elastic.model import Configuration
from heet_elastic.predictor import batched
from heet_elastic.predictor.gaussian import condition, conditioned_covariance
from heet_elastic.predictor.gpus import GPUS, find_gpu, prior_speed
from heet_elastic.predictor.kernels import PhysicsPrior, kernels
from heet_elastic.predictor.rows import NOISE, Rows, cell_std, grid_of, observe
from tests.unit.predictor_worlds import CONFIGURATIONS, cell, job

A, B, C = (Configuration("x", w) for w in (1, 2, 4))


def test_rows_hold_the_usable_cells_and_the_last_of_one_configuration():
    grid, rows = observe([job([(B, cell(2.0)), (A, cell(0.0)), (B, cell(3.0))]), job([])], [A, B])
    assert rows.column_JN.tolist() == [[grid.index[B]], [-1]]
    assert rows.log_JN[0, 0] == pytest.approx(math.log(3.0))
    log_JK, measured_JK = rows.dense(2)
    assert measured_JK.tolist() == [[False, True], [False, False]]
    assert log_JK[1].tolist() == [0.0, 0.0]


def test_configurations_that_were_not_asked_for_are_added_and_so_is_one_worker():
    grid, rows = observe([job([(C, cell(2.0))])], [Configuration("y", 8)])
    assert set(grid.configurations) == {Configuration("y", 8), C, A, Configuration("y", 1)}
    assert grid.configurations[0] == Configuration("y", 8)
    assert rows.column_JN[0, 0] == grid.index[C]


def test_the_same_configurations_give_the_same_grid_object():
    assert grid_of([A, B]) is grid_of((A, B))


def test_noise_grows_with_spread_and_age_and_falls_with_windows():
    plain, old, rough, often = (
        cell(1.0),
        cell(1.0, age_s=36000.0),
        cell(1.0, spread=0.3),
        cell(1.0, spread=0.3, count=100),
    )
    assert cell_std(plain) == NOISE
    assert cell_std(old) > NOISE
    assert cell_std(rough) > cell_std(often) > NOISE


def spd(systems, size, seed=0):
    a = np.random.default_rng(seed).normal(size=(systems, size, size))
    return a @ a.transpose(0, 2, 1) + 0.1 * np.eye(size)


@pytest.mark.parametrize("size", [1, 2, 6, batched.SMALL])
def test_systems_solved_side_by_side_agree_with_lapack(size):
    matrix, right = spd(batched.MANY, size), np.random.default_rng(1).normal(size=(batched.MANY, size))
    np.testing.assert_allclose(
        batched.solve(matrix, right), np.linalg.solve(matrix, right[:, :, None])[:, :, 0], rtol=1e-6
    )
    whiten = batched.whitener(matrix)
    np.testing.assert_allclose(whiten.transpose(0, 2, 1) @ whiten, np.linalg.inv(matrix), rtol=1e-5, atol=1e-8)
    assert np.allclose(np.triu(whiten, 1), 0.0)


def test_conditioning_agrees_with_the_formula_whatever_each_job_has_measured():
    covariance, mean = spd(1, 5)[0], np.arange(5.0)
    rows = Rows(
        np.array([[3, 0, -1], [1, -1, -1], [-1, -1, -1]]),
        np.array([[1.0, 2, 0], [5, 0, 0], [0, 0, 0]]),
        np.full((3, 3), 0.2),
    )
    found, cov_JKK = condition(mean, covariance, rows), conditioned_covariance(covariance, rows)
    for j, (columns, y) in enumerate([([3, 0], [1.0, 2.0]), ([1], [5.0]), ([], [])]):
        inner = covariance[np.ix_(columns, columns)] + 0.04 * np.eye(len(columns))
        gain = np.linalg.solve(inner, covariance[columns]).T if columns else np.zeros((5, 0))
        apart = np.array(y) - mean[columns]
        np.testing.assert_allclose(found.mean_JK[j], mean + gain @ apart)
        np.testing.assert_allclose(cov_JKK[j], covariance - gain @ covariance[columns], atol=1e-10)
        density = -0.5 * np.linalg.slogdet(inner)[1] - 0.5 * apart @ np.linalg.solve(inner, apart) if columns else 0.0
        assert found.log_evidence_J[j] == pytest.approx(density)


def test_kernels_are_covariances_and_one_worker_has_nothing_left_unexplained():
    k = kernels(grid_of(CONFIGURATIONS), PhysicsPrior())
    for matrix in (k.level_KK, k.deviation_KK, k.rest_KK):
        np.testing.assert_allclose(matrix, matrix.T)
        assert np.linalg.eigvalsh(matrix).min() > -1e-9
    alone = [i for i, c in enumerate(CONFIGURATIONS) if c.workers == 1]
    assert (k.rest_KK[alone] == 0).all()


def test_a_ring_moves_less_than_twice_the_data_and_the_network_is_expected_to_be_slower():
    two, eight, across = Configuration("x", 2), Configuration("x", 8), Configuration("x", 8, 2)
    grid = grid_of([two, eight, across])
    level = kernels(grid, PhysicsPrior()).level_mean_K
    assert math.exp(level[1] - level[0]) == pytest.approx(2 * 7 / 8)
    assert level[2] > level[1]


@pytest.mark.parametrize(
    ("host_type", "model"),
    [
        ("NVIDIA A100-SXM4-80GB nvlink", "A100 80GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("RTX2080Ti", "RTX 2080 TI"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("AMD EPYC 7763", None),
        ("A1000", None),
    ],
)
def test_host_types_name_their_gpu(host_type, model):
    found = find_gpu(host_type)
    assert (found.model if found else None) == model


def test_every_listed_gpu_has_a_source_and_is_found_by_its_name():
    for facts in GPUS:
        assert facts.source
        assert find_gpu(facts.model) == facts
        assert prior_speed(facts.model) > 0


def test_an_unknown_model_has_prior_speed_one_and_faster_gpus_more_than_slower_ones():
    assert prior_speed("something else") == 1.0
    assert prior_speed("K80") < prior_speed("P100") < prior_speed("V100") < prior_speed("A100") < prior_speed("H100")
