"""Scores worked out by hand, hold-out evaluation, and `heet evaluate` as programs and people see it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heet_elastic.cli.errors import run
from heet_elastic.cli.main import build
from heet_elastic.model import Configuration
from heet_elastic.predictor import DEFAULT, METHODS
from heet_elastic.predictor.evaluation import Plan, evaluate, folds
from heet_elastic.predictor.scores import Predictions, bootstrap_medians, errors_JK, score
from heet_elastic.predictor.tables import covered, load_table
from tests.unit.predictor_worlds import CONFIGURATIONS, real_table, true_speed

COLUMNS = tuple(Configuration("T4", w) for w in (1, 2, 4))


def predictions(truth, told, measured, std=0.1):
    truth_JK = np.log(np.array(truth, dtype=float))
    return Predictions(
        COLUMNS,
        truth_JK,
        np.log(np.array(told, dtype=float)),
        np.full(truth_JK.shape, std),
        np.array(measured, dtype=bool),
    )


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    """Three families of three jobs each, measured everywhere."""
    lines = ["job,model,gpu_type,workers,nodes,throughput,unit"]
    for f, (work, data) in enumerate([(1.0, 0.1), (3.0, 2.0), (0.4, 0.3)]):
        for batch in (1, 2, 4):
            for c in CONFIGURATIONS:
                speed = batch * true_speed(work * batch, data, c)
                lines.append(f"m{f}-b{batch},m{f},{c.host_type},{c.workers},{c.hosts},{speed},samples/s")
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def heet(*words):
    return run(lambda: build(["evaluate"])(args=["evaluate", *words], prog_name="heet", standalone_mode=False))


def test_errors_are_relative_and_of_cells_that_were_not_measured_alone():
    p = predictions([[10, 20, 40]], [[99, 25, 10]], [[True, False, False]])
    error = errors_JK(p)
    assert np.isnan(error[0, 0])
    assert error[0, 1:] == pytest.approx([0.25, 0.75])
    found = score(p)
    assert found.median_error == pytest.approx(0.5)
    assert found.mean_error == pytest.approx(0.5)
    assert found.cells == 2
    assert found.mean_accuracy == pytest.approx(0.5)


def test_accuracy_never_goes_below_zero_however_wrong_a_prediction_is():
    assert score(predictions([[1, 1, 1]], [[1, 50, 1]], [[True, False, True]])).mean_accuracy == 0.0


def test_order_within_a_job_counts_pairs_that_were_not_both_measured():
    p = predictions([[10, 20, 30]], [[10, 20, 15]], [[True, True, False]])
    assert score(p).order_within_job == pytest.approx(0.5)  # 10 < 15 is right, 20 > 15 is not; 10, 20 was measured


def test_order_across_jobs_is_of_efficiency_not_of_speed():
    truth = [[10, 18, 20], [100, 120, 130]]
    told = [[10, 15, 20], [100, 180, 130]]
    p = predictions(truth, told, [[True, False, True], [True, False, True]])
    assert score(p).order_across_jobs == 0.0
    right = predictions(truth, [[10, 19, 20], [100, 110, 130]], [[True, False, True], [True, False, True]])
    assert score(right).order_across_jobs == 1.0


def test_regret_is_what_the_wrong_worker_count_loses():
    p = predictions([[10, 19, 20]], [[10, 11, 39]], [[True, False, False]])
    # T / sqrt(w): truly 10, 13.4, 10; predicted best is 4 workers
    assert score(p).regret == pytest.approx(1 - 10 / (19 / 2**0.5))


def test_coverage_is_the_share_of_cells_inside_their_interval():
    p = predictions([[10, 10, 10]], [[10, 10 * np.exp(0.12), 10 * np.exp(0.14)]], [[True, False, False]])
    assert score(p).coverage80 == 0.5


def test_cells_nobody_knows_are_not_judged_and_nothing_judged_is_no_figure():
    p = predictions([[10, np.nan, np.nan]], [[10, 5, 5]], [[True, False, False]])
    found = score(p)
    assert found.cells == 0
    assert np.isnan(found.median_error)


def test_resamples_are_paired_over_methods():
    error = np.abs(np.random.default_rng(0).normal(size=(6, 4)))
    draws = bootstrap_medians([error, error + 1.0], ["a"] * 3 + ["b"] * 3, np.random.default_rng(1), draws=50)
    np.testing.assert_allclose(draws[:, 1] - draws[:, 0], 1.0)


def test_a_held_out_family_has_no_relative_in_the_history(table_file):
    table = load_table(table_file)
    parts = list(folds(table, "family"))
    assert len(parts) == 3
    for test, history in parts:
        assert {table.families[j] for j in test}.isdisjoint(table.families[i] for i in history)
    assert sorted(int(j) for test, _ in parts for j in test) == list(range(9))
    assert all(len(h) == 8 for _, h in folds(table, "job"))


@pytest.mark.parametrize("design", ["standard", "chosen"])
def test_all_methods_are_judged_on_the_same_cells_with_as_many_measured_as_asked_for(table_file, design):
    table = load_table(table_file)
    methods = {m: METHODS[m] for m in ("combined", "line", "svd-fold-in")}
    judged = evaluate(table, methods, METHODS[DEFAULT], Plan(probes=4, design=design, counts=(2, 5)), cold=True)
    for n in (2, 4, 5):
        measured = [judged.predictions[m, n].measured_JK for m in methods]
        assert (measured[0].sum(axis=1) == n).all()
        assert all((m == measured[0]).all() for m in measured)
    assert judged.cold is not None
    assert score(judged.predictions["combined", 4]).median_error < 0.05


def test_more_cells_make_better_predictions(table_file):
    plan = Plan(probes=6, design="chosen", counts=(1, 3))
    judged = evaluate(load_table(table_file), {DEFAULT: METHODS[DEFAULT]}, METHODS[DEFAULT], plan)
    one, three, six = (score(judged.predictions[DEFAULT, n]).median_error for n in (1, 3, 6))
    assert one > three > six


def test_json_has_the_figures_of_every_method_and_nothing_else(table_file, capsys):
    assert heet("--throughputs", str(table_file), "--probes", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"methods", "default", "cells", "jobs"}
    assert set(found["methods"]) == set(METHODS)
    keys = {"median_error", "mean_accuracy", "p90_error", "order_within_job", "order_across_jobs", "coverage80"}
    for figures in found["methods"].values():
        assert set(figures) == keys
        assert all(0 <= figures[k] <= 1 for k in keys - {"p90_error", "median_error"})
    assert (found["default"], found["cells"], found["jobs"]) == (DEFAULT, 9 * len(CONFIGURATIONS), 9)


def test_people_get_tables_of_methods_families_and_the_curve(table_file, capsys):
    words = ["--throughputs", str(table_file), "--design", "chosen", "--method", "combined,line", "--hold-out", "job"]
    assert heet(*words) == 0
    out = capsys.readouterr().out
    for text in (
        "9 jobs of 3 families",
        "combined, no history",
        "Median error by family",
        "against measured cells",
        "m2",
    ):
        assert text in out


def test_details_add_families_curve_and_what_was_left_out(table_file, capsys):
    table_file.write_text(
        table_file.read_text() + "lonely,lonely,T4,1,1,5,samples/s\nm0-b1,m0,slow,1,1,oops,samples/s\n"
    )
    words = ["--throughputs", str(table_file), "--method", "line", "--probes", "3", "--json", "--details"]
    assert heet(*words) == 0
    found = json.loads(capsys.readouterr().out)
    assert "lonely" in found["left_out"]["jobs"]
    assert "oops" in found["left_out"]["rows"][0]["reason"]
    low, high = found["families"]["all"]["methods"]["line"]["interval"]
    assert low <= found["methods"]["line"]["median_error"] <= high
    assert found["curve"]["line"]["3"] == found["methods"]["line"]["median_error"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "magic"], "there are combined"),
        (["--probes", "99"], "nothing is hidden"),
        (["--throughputs", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_two(table_file, capsys, words, said):
    assert heet("--throughputs", str(table_file), *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("name", "jobs"), [("gavel", 19), pytest.param("sia_pcie", 50, marks=pytest.mark.nightly)])
def test_the_default_keeps_its_accuracy_on_published_tables(name, jobs):
    table, _ = covered(load_table(real_table(f"throughput_{name}.csv")), 0.5)
    assert len(table.jobs) == jobs
    methods = {m: METHODS[m] for m in (DEFAULT, "line", "svd-fold-in")}
    judged = evaluate(table, methods, METHODS[DEFAULT], Plan(design="chosen"))
    found = {m: score(judged.predictions[m, 6]) for m in methods}
    assert found[DEFAULT].median_error <= 0.08
    assert found[DEFAULT].order_across_jobs >= 0.85
    assert found[DEFAULT].median_error < min(found["line"].median_error, found["svd-fold-in"].median_error)
    assert 0.75 <= found[DEFAULT].coverage80 <= 0.85
