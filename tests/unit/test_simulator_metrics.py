"""Figures of runs and paired comparisons."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from heet_elastic.simulator.metrics import JobOutcome, RunResult, bootstrap, compare, summarise
from heet_elastic.simulator.report import to_csv, to_json


def outcome(job="a", submit=0.0, finish=100.0, **more):
    fields = {
        "start_s": submit, "requested_s": 50.0, "requested": 1, "waited_s": 10.0, "longest_wait_s": 10.0, "rescales": 1,
        "rescale_s": 5.0, "lost_s": 0.0, "gpu_s": 80.0, "efficient_gpu_s": 60.0,
    }  # fmt: skip
    return JobOutcome(job=job, row="m", submit_s=submit, finish_s=finish, **{**fields, **more})


def run(policy="x", seed=0, jobs=(), complete=True):
    return RunResult(policy, seed, tuple(jobs), (0.001, 0.003), gpus=4, end_s=400.0, complete=complete)


def test_figures_of_a_run_by_hand():
    s = summarise(run(jobs=[outcome(), outcome("b", 100.0, 400.0, rescales=3, gpu_s=20.0, efficient_gpu_s=20.0)]))
    assert (s.mean_jct_s, s.median_jct_s, s.makespan_s) == (200.0, 200.0, 400.0)
    assert s.efficiency == 0.8
    assert s.starvation == 20.0 / 400.0
    assert (s.rescales_per_job, s.most_rescales, s.finished, s.unfinished) == (2.0, 3, 2, 0)
    assert s.decision_s_mean == 0.002


def test_jobs_that_did_not_end_count_as_waiting_and_not_as_done():
    s = summarise(run(jobs=[outcome(), outcome("b", finish=None, waited_s=400.0)]))
    assert (s.mean_jct_s, s.finished, s.unfinished) == (100.0, 1, 1)
    assert s.starvation == 410.0 / 500.0


def test_a_run_without_finished_jobs_has_no_completion_time():
    assert math.isnan(summarise(run(jobs=[outcome(finish=None)])).mean_jct_s)


def test_ratios_are_paired_by_seed_with_the_first_policy_as_one():
    runs = [run("x", s, [outcome(finish=100.0 + s)]) for s in range(4)]
    runs += [run("y", s, [outcome(finish=2 * (100.0 + s))]) for s in range(4)]
    c = compare(runs, ["x", "y"], {0: 50.0, 1: 60.0})
    assert (c.ratios["x"].mean, c.ratios["y"].mean) == (1.0, 2.0)
    assert (c.ratios["y"].low, c.ratios["y"].high) == (2.0, 2.0)
    assert (c.lower_bound_s, c.seeds, c.jobs) == (55.0, 4, 1)


def test_seeds_that_are_not_complete_for_every_policy_are_left_out_and_said():
    runs = [
        run("x", 0, [outcome()]),
        run("y", 0, [outcome()]),
        run("x", 1, [outcome()]),
        run("y", 1, [], complete=False),
    ]
    c = compare(runs, ["x", "y"], {})
    assert c.seeds == 1
    assert "1 of 2 seeds" in c.notes[0]
    assert c.lower_bound_s is None


def test_nothing_complete_gives_no_figures_but_no_error():
    c = compare([run("x", 0, [], complete=False)], ["x"], {})
    assert (c.figures, c.ratios, c.seeds) == ({}, {}, 0)


def test_with_one_seed_the_interval_is_over_jobs_and_says_so():
    a = run("x", 0, [outcome(str(i), finish=100.0 + i) for i in range(20)])
    b = run("y", 0, [outcome(str(i), finish=150.0 + 3 * i) for i in range(20)])
    ratio = compare([a, b], ["x", "y"], {}).ratios["y"]
    assert ratio.low < ratio.mean < ratio.high
    assert ratio.over == "jobs"


def test_a_bootstrap_interval_covers_the_mean_and_repeats_exactly():
    values = [1.0, 1.2, 0.9, 1.4, 1.1]
    one = bootstrap(values)
    assert one == bootstrap(values)
    assert one.low <= one.mean <= one.high
    assert one.mean == pytest.approx(1.12)


def test_json_has_the_agreed_keys_and_no_nan():
    data = json.loads(to_json(compare([run("x", 0, [outcome()])], ["x"], {0: 80.0})))
    assert {"policies", "lower_bound_mean_jct_s", "ratios", "jobs", "seeds"} <= set(data)
    assert {
        "mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "efficiency", "starvation", "rescales_per_job",
        "decision_s_mean",
    } <= set(data["policies"]["x"])  # fmt: skip
    assert {"mean", "low", "high"} <= set(data["ratios"]["x"])
    empty = json.loads(to_json(compare([run("x", 0, [outcome(finish=None)])], ["x"], {})))
    assert empty["policies"]["x"]["mean_jct_s"] is None


def test_csv_has_a_line_per_policy_and_seed():
    runs = [run(p, s, [outcome()]) for p in ("x", "y") for s in (0, 1)]
    rows = list(csv.DictReader(io.StringIO(to_csv(compare(runs, ["x", "y"], {})))))
    assert [(r["policy"], r["seed_number"]) for r in rows] == [("x", "0"), ("x", "1"), ("y", "0"), ("y", "1")]
    assert float(rows[0]["mean_jct_s"]) == 100.0
