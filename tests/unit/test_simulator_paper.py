"""The paper's claims as a benchmark: runs are kept and gone on with, ratios are paired by seed, seeds differ."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heet_elastic.simulator.traces import Trace, TraceJob

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "paper.py"
spec = importlib.util.spec_from_file_location("paper_benchmark", PATH)
assert spec is not None
assert spec.loader is not None
paper = importlib.util.module_from_spec(spec)
sys.modules["paper_benchmark"] = paper
spec.loader.exec_module(paper)

RUN = paper.Run("gavel-philly", 24, 10, 1.0, 30.0, 0.0, 0, "market")


def outcomes(**by_policy: list[float]) -> dict[object, dict[str, float]]:
    """Mean completion times by policy, a value a seed."""
    return {
        replace(RUN, policy=p.replace("_", "-"), seed=s): {"mean_jct_s": v}
        for p, values in by_policy.items()
        for s, v in enumerate(values)
    }


def test_ratios_are_paired_by_seed_and_skip_what_was_not_run():
    found = outcomes(market=[10.0, 1000.0, 5.0], afs=[20.0, 3000.0])
    ratio = paper.ratio(found, replace(RUN, policy="afs"), RUN)
    assert ratio.mean == pytest.approx(2.5)
    assert (ratio.low, ratio.high) == (pytest.approx(2.0), pytest.approx(3.0))
    assert paper.ratio(found, replace(RUN, policy="sia"), RUN) is None
    assert paper.ratio(found, replace(RUN, policy="afs", load=3.0), RUN) is None


def test_gavels_better_programme_is_chosen_seed_by_seed_to_its_favour():
    found = outcomes(market=[10.0, 10.0], gavel=[20.0, 40.0], gavel_minjct=[30.0, 20.0])
    assert paper.better_gavel(found, RUN).mean == pytest.approx(2.0)


def test_gavel_is_its_one_programme_where_the_other_was_not_run():
    found = outcomes(market=[10.0], gavel=[20.0])
    assert paper.better_gavel(found, RUN).mean == pytest.approx(2.0)


def test_runs_are_kept_and_not_made_again(tmp_path, monkeypatch, capsys):
    made: list[object] = []

    def perform(run, data):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(run)
        return {"mean_jct_s": 1.0}

    monkeypatch.setattr(paper, "perform", perform)
    runs = [replace(RUN, seed=s) for s in range(3)]
    with pytest.raises(KeyboardInterrupt):
        paper.perform_all(runs, tmp_path, tmp_path / "cache", 1)
    assert list(paper.load_all(runs, tmp_path / "cache")) == runs[:2]
    made.clear()
    paper.perform_all(runs, tmp_path, tmp_path / "cache", 1)
    assert made == runs[2:]
    assert "1/1 " in capsys.readouterr().err


def test_runs_that_differ_in_anything_are_kept_apart():
    others = [
        replace(RUN, **{name: value})
        for name, value in (("load", 3.0), ("up_s", 9.0), ("error", 0.3), ("seed", 1), ("jobs", 11), ("gpus", 120))
    ]
    assert len({r.name for r in [RUN, *others, replace(RUN, policy="heet")]}) == len(others) + 2


def test_whole_seeds_come_first_and_every_target_has_its_runs():
    size = paper.Size(("gavel-philly",), 24, 10, 2, (1.0, 3.0, 6.0), (9.0, 30.0, 120.0))
    runs = list(paper.target_runs(size))
    assert [r.seed for r in runs] == sorted(r.seed for r in runs)
    assert {(r.load, r.up_s) for r in runs} == {(1.0, 30.0), (3.0, 30.0), (6.0, 30.0), (3.0, 9.0), (3.0, 120.0)}
    assert {r.policy for r in runs} == {*paper.TARGETED, paper.BOUND}


def test_seeds_take_different_windows_of_the_trace():
    truth_of = paper.Ground.jobs
    trace = Trace("t", "own", tuple(TraceJob(i, f"j{i}", 10.0 * i, 1, duration_s=60.0) for i in range(1, 31)))
    ground = object.__new__(paper.Ground)
    from heet_elastic.simulator.cluster import parse_cluster
    from heet_elastic.simulator.generate import generated_truth

    ground.groups = parse_cluster("T4:1x4")
    ground.truth, ground.trace = generated_truth(ground.groups), trace
    windows = [{j.job for j in truth_of(ground, replace(RUN, seed=s))} for s in range(4)]
    assert all(len(w) == 10 for w in windows)
    assert not windows[0] & windows[1]
    assert windows[3] == windows[0]  # the trace has three


def test_tables_name_what_was_not_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HEET_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["paper.py", "targets"])
    assert paper.main() == 2
    assert "set HEET_DATA" in capsys.readouterr().err
    for name in ("throughput_gavel.csv", "throughput_sia_pcie.csv"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["paper.py", "show", "--part", "targets", "--cache", str(tmp_path), "--json"])
    assert paper.main() == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown["rows"]) == 10
    assert {row["AFS-L"] for row in shown["rows"]} == {"not run"}
