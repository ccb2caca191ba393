"""The default method: cold starts, learning from past jobs, reuse, names, steps, features, and its uncertainty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heet_elastic.model import Cell, Configuration, JobFeatures, Profile
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Source
from heet_elastic.predictor.learning import MAX_HISTORY, bounded
from tests.unit.predictor_worlds import CONFIGURATIONS, cell, job, profiles, rng, row, true_speed

A1, A2, A4 = (Configuration("NVIDIA A10 24GB pcie", w) for w in (1, 2, 4))
T1, T4 = (Configuration("Tesla T4 pcie", w) for w in (1, 4))


def fit(history, method="combined"):
    return METHODS[method](history, rng())


def error(predictor, work, data, measured):
    """Median relative error of the cells that were not measured."""
    found = predictor.predict([job(row(work, data, measured))], CONFIGURATIONS)
    truth = np.array([true_speed(work, data, c) for c in CONFIGURATIONS])
    held = found.source_JK[0] != Source.MEASURED
    return float(np.median(np.abs(found.throughput_JK[0] / truth - 1)[held]))


def test_a_new_cluster_scales_up_what_was_measured_and_calls_other_host_types_a_prior():
    found = fit([]).predict([job([(A1, cell(10.0)), (A2, cell(18.0))])], [A4, T1, T4])
    four, t_one, _ = found.throughput_JK[0]
    assert 25 < four < 40
    assert found.source_JK[0, 0] == Source.MODEL
    assert list(found.source_JK[0, 1:]) == [Source.PRIOR, Source.PRIOR]
    assert t_one < 10.0  # datasheets: a T4 is slower than an A10
    assert found.log_std_JK[0, 1] > 3 * found.log_std_JK[0, 0]


def test_without_any_cell_host_types_compare_by_their_datasheets():
    found = fit([]).predict([job([])], [A1, T1])
    assert found.throughput_JK[0, 0] > found.throughput_JK[0, 1]
    assert (found.source_JK == Source.PRIOR).all()
    assert (found.log_std_JK > 1).all()


def test_past_jobs_teach_what_host_types_and_links_cost():
    measured = [Configuration("mid", 1), Configuration("mid", 4), Configuration("fast", 1)]
    errors = {
        n: [error(fit(profiles(n)), w, d, measured) for w, d in ((1, 0.3), (3, 0.4), (0.3, 0.4))] for n in (0, 30)
    }
    assert np.median(errors[30]) < 0.5 * np.median(errors[0])
    assert np.median(errors[30]) < 0.06


def test_the_model_beats_the_line_where_jobs_compute_and_communicate():
    measured = [Configuration(h, w) for h in ("slow", "mid", "fast") for w in (1, 8)]
    jobs = [(1.0, 0.5), (2.0, 3.0), (0.5, 0.05), (4.0, 0.8)]
    physics, line = (
        np.median([error(fit(profiles(), m), w, d, measured) for w, d in jobs]) for m in ("physics", "line")
    )
    assert physics < 0.25 * line


def test_a_job_that_a_past_one_resembles_is_reused_up_to_its_factor():
    odd = [(c, cell(true_speed(1.0, 0.4, c) * (1.6 if c.host_type == "fast" else 1.0))) for c in CONFIGURATIONS]
    history = [*profiles(), Profile("odd", tuple(odd), work_unit="samples")]
    measured = [CONFIGURATIONS.index(Configuration(h, w)) for h in ("slow", "fast") for w in (1, 4)]
    seen = [(CONFIGURATIONS[k], cell(7.0 * odd[k][1].throughput)) for k in measured]
    found = fit(history).predict([job(seen)], CONFIGURATIONS)
    truth = 7.0 * np.array([c.throughput for _, c in odd])
    assert np.median(np.abs(found.throughput_JK[0] / truth - 1)) < 0.03
    assert (found.source_JK[0] == Source.REUSED).sum() == len(CONFIGURATIONS) - len(measured)


def test_a_past_job_of_the_same_name_counts_before_anything_was_measured():
    history = [*profiles(), Profile("resnet", row(2.0, 0.3), work_unit="samples")]
    truth = np.array([true_speed(2.0, 0.3, c) for c in CONFIGURATIONS])
    named, nameless = fit(history).predict([job([], name="resnet"), job([])], CONFIGURATIONS).throughput_JK
    assert np.abs(np.log(named / truth)).max() < 0.5
    assert np.abs(np.log(nameless / truth)).max() > 0.5


def test_two_jobs_of_one_name_that_differ_are_told_apart_by_their_cells():
    history = [*profiles(), Profile("train", row(2.0, 0.01), work_unit="samples")]
    measured = [Configuration("slow", 1), Configuration("slow", 8), Configuration("mid", 1), Configuration("mid", 8)]
    other = job(row(0.3, 2.0, measured), name="train")
    found = fit(history).predict([other], CONFIGURATIONS)
    truth = np.array([true_speed(0.3, 2.0, c) for c in CONFIGURATIONS])
    assert np.median(np.abs(found.throughput_JK[0] / truth - 1)) < 0.10


def test_steps_of_a_fixed_batch_per_worker_do_not_come_faster_with_more_workers():
    cells = [(A1, cell(10.0)), (A2, cell(9.7))]
    steps = replace(job(cells), work_unit="steps")
    samples = job(cells)
    four_steps, four_samples = fit([]).predict([steps, samples], [A4]).throughput_JK[:, 0]
    assert 8.0 < four_steps < 10.0
    assert four_samples > four_steps


def test_steps_of_a_fixed_total_batch_come_faster_with_more_workers():
    steps = replace(job([(A1, cell(10.0)), (A2, cell(18.0))]), work_unit="steps")
    assert fit([]).predict([steps], [A4]).throughput_JK[0, 0] > 25


def test_past_jobs_in_steps_of_a_fixed_batch_teach_the_same_as_in_samples():
    per_step = [
        replace(p, work_unit="steps", cells=tuple((c, cell(x.throughput / c.workers)) for c, x in p.cells))
        for p in profiles()
    ]
    measured = [Configuration("mid", 1), Configuration("mid", 8), Configuration("fast", 1)]
    assert error(fit(per_step), 1.0, 0.3, measured) == pytest.approx(
        error(fit(profiles()), 1.0, 0.3, measured), abs=0.02
    )


def test_more_gradient_bytes_for_the_same_work_mean_worse_scaling():
    light, heavy = (
        job([(A1, cell(100.0))], features=JobFeatures(gradient_bytes=b, batch_per_worker=32.0)) for b in (10**7, 10**9)
    )
    found = fit([]).predict([light, heavy], [A4])
    assert found.throughput_JK[0, 0] > 1.3 * found.throughput_JK[1, 0]


def test_every_further_cell_makes_the_rest_surer():
    predictor = fit(profiles())
    cells = row(2.0, 0.5, [Configuration("mid", 1), Configuration("fast", 8), Configuration("slow", 4, 2)])
    spread = [predictor.predict([job(cells[:n])], CONFIGURATIONS).log_std_JK.mean() for n in range(4)]
    assert spread == sorted(spread, reverse=True)


def test_an_old_or_unsteady_cell_counts_for_less():
    for worse in (Cell(1.0, 60.0, 10, age_s=200 * 3600.0), Cell(1.0, 60.0, 2, spread=0.5)):
        base = row(2.0, 0.5, [Configuration("mid", 1), Configuration("mid", 8)])
        speed = 0.6 * true_speed(2.0, 0.5, Configuration("mid", 4))
        odd = (Configuration("mid", 4), replace(worse, throughput=speed))
        sure = (odd[0], cell(speed))
        at = Configuration("mid", 2)
        doubted, trusted = fit(profiles()).predict([job([*base, odd]), job([*base, sure])], [at]).throughput_JK[:, 0]
        truth = true_speed(2.0, 0.5, at)
        assert abs(doubted / truth - 1) < abs(trusted / truth - 1)


def test_one_faulty_cell_does_not_spoil_the_other_host_types():
    good = [Configuration("slow", 1), Configuration("slow", 8), Configuration("fast", 1), Configuration("fast", 8)]
    cells = [
        *row(2.0, 0.5, good),
        (Configuration("mid", 4), cell(50.0 * true_speed(2.0, 0.5, Configuration("mid", 4)))),
    ]
    found = fit(profiles()).predict([job(cells)], CONFIGURATIONS)
    for h in ("slow", "fast"):
        c = Configuration(h, 4)
        assert found.throughput_JK[0, CONFIGURATIONS.index(c)] == pytest.approx(true_speed(2.0, 0.5, c), rel=0.35)


def test_the_history_is_bounded_and_keeps_the_jobs_that_were_measured_most():
    many = [Profile(f"p{i}", row(1.0, 0.3, CONFIGURATIONS[: 1 + i % 7])) for i in range(MAX_HISTORY + 50)]
    kept = bounded(many)
    assert len(kept) == MAX_HISTORY
    assert min(len(p.cells) for p in kept) >= max(len(p.cells) for p in many if p not in kept)
    assert bounded(many[:5]) == tuple(many[:5])
