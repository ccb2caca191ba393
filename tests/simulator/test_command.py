"""`heet simulate` as a person or a script calls it: flags, JSON, files, mistakes."""

from __future__ import annotations

import csv
import json
import os
import signal

import pytest
from rich.console import Console

from heet_elastic.cli.main import main
from heet_elastic.cli.simulation_view import duration, silent_solvers, watched
from heet_elastic.simulator.jobs import JobOptions
from heet_elastic.simulator.metrics import compare
from heet_elastic.simulator.scenario import from_files
from heet_elastic.simulator.settings import SimulationSettings
from heet_elastic.simulator.sweep import sweep

TABLE = "job,model,gpu_type,workers,nodes,throughput,unit\n" + "".join(
    f"{job},{job},{kind},{w},1,{speed * w**power},samples/s\n"
    for job, power in (("good", 0.95), ("bad", 0.5))
    for kind, speed in (("T4", 10.0), ("V100", 25.0))
    for w in (1, 2, 4)
)
TRACE = "submit_time_s,gpus,duration_s\n" + "".join(f"{30 * i},{1 + i % 2},{200 + 40 * i}\n" for i in range(10))
CLUSTER = "T4:1x4,V100:1x4"


@pytest.fixture
def files(tmp_path):
    table, trace = tmp_path / "table.csv", tmp_path / "trace.csv"
    table.write_text(TABLE)
    trace.write_text(TRACE)
    return ["--throughputs", str(table), "--trace", str(trace), "--cluster", CLUSTER, "--processes", "1"]


def heet(*words):
    """(exit code) of a call in this process."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    return ended.value.code


def test_json_has_the_promised_shape_and_nothing_else_is_printed(files, capfd):
    assert heet(*files, "--policy", "fifo,srsf", "--seeds", "2", "--json") == 0
    data = json.loads(capfd.readouterr().out)
    assert list(data["policies"]) == ["fifo", "srsf"]
    assert (data["jobs"], data["seeds"]) == (10, 2)
    assert data["ratios"]["fifo"]["mean"] == 1.0
    best = min(p["mean_jct_s"] for p in data["policies"].values())
    assert 0 < data["lower_bound_mean_jct_s"] <= best


def test_dumped_jobs_give_the_same_result_when_they_are_run_again(files, tmp_path, capfd):
    dump = tmp_path / "jobs.csv"
    assert heet(*files, "--policy", "fifo", "--json", "--load", "2", "--rigid", "0.3", "--dump-jobs", str(dump)) == 0
    first = json.loads(capfd.readouterr().out)
    with dump.open() as f:
        assert {"job", "total_work", "requested", "submit_time_s"} <= set(next(csv.reader(f)))
    again = [*files[:2], "--trace", str(dump), *files[4:]]
    assert heet(*again, "--policy", "fifo", "--json") == 0
    second = json.loads(capfd.readouterr().out)
    assert second["policies"]["fifo"]["mean_jct_s"] == pytest.approx(first["policies"]["fifo"]["mean_jct_s"])


def test_a_folder_gets_figures_logs_jobs_and_plots(files, tmp_path, capfd):
    out = tmp_path / "out"
    assert heet(*files, "--policy", "fifo", "--out", str(out)) == 0
    names = {p.name for p in out.iterdir()}
    assert {"summary.json", "summary.csv", "command.txt", "events-fifo-seed0.jsonl", "jobs-fifo-seed0.csv"} <= names
    pytest.importorskip("matplotlib", reason="plots need the extra `plots`")
    assert {"completion.png", "timeline.png", "gantt-fifo.png"} <= names


def test_the_same_command_writes_the_same_log_byte_for_byte(files, tmp_path, capfd):
    logs = []
    for name in ("a", "b"):
        assert heet(*files, "--policy", "heet", "--out", str(tmp_path / name)) == 0
        logs.append((tmp_path / name / "events-heet-seed0.jsonl").read_bytes())
    assert logs[0] == logs[1]
    assert logs[0]


def test_processes_do_not_change_the_result(files, capfd):
    found = []
    for processes in ("1", "2"):
        assert heet(*files[:-1], processes, "--policy", "fifo,heet", "--seeds", "2", "--json", "--no-lower-bound") == 0
        policies = json.loads(capfd.readouterr().out)["policies"]
        found.append({n: {k: v for k, v in p.items() if "decision_s" not in k} for n, p in policies.items()})
    assert found[0] == found[1]


def test_without_any_data_it_runs_on_generated_speeds_and_says_so(capfd):
    assert heet("--jobs", "5", "--cluster", "T4:1x4", "--policy", "fifo", "--processes", "1") == 0
    assert "generated from datasheets" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--policy", "magic"], "there is no policy 'magic'"),
        (["--policy", ","], "--policy is empty"),
        (["--cluster", "T4"], "is no host group"),
        (["--cluster", "H100:1x8"], "no throughput was measured on 'H100'"),
        (["--load", "-1"], "--load is -1"),
        (["--rigid", "2"], "--rigid is 2"),
        (["--error", "1.5"], "--error is 1.5"),
        (["--interval", "0"], "--interval is 0"),
        (["--scale-up-s", "-3"], "--scale-up-s is -3"),
        (["--predictor", "crystal"], "--predictor is 'crystal'"),
        (["--trace", "/nowhere.csv"], "cannot read the trace"),
        (["--throughputs", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(files, capfd, words, says):
    assert heet(*files, *words) == 2
    text = capfd.readouterr().err
    assert says in text
    assert "Traceback" not in text


def test_bad_rows_are_named_or_left_out_and_counted(files, tmp_path, capfd):
    trace = tmp_path / "bad.csv"
    trace.write_text(TRACE + "x,1,5\n")
    words = [*files[:2], "--trace", str(trace), *files[4:], "--policy", "fifo", "--json"]
    assert heet(*words) == 2
    assert "line 12" in capfd.readouterr().err
    assert heet(*words, "--skip-bad") == 0
    assert any("1 bad rows left out" in n for n in json.loads(capfd.readouterr().out)["notes"])


def test_what_solvers_print_to_the_descriptor_stays_out_of_the_output(capfd):
    with silent_solvers():
        os.write(1, b"noise of a solver\n")
    print("ours")
    assert capfd.readouterr().out == "ours\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(42.0, "42 s"), (200.0, "3.3 min"), (7560.0, "2.1 h"), (345600.0, "4.0 d"), (float("nan"), "-")],
)
def test_durations_are_shown_for_people(seconds, text):
    assert duration(seconds) == text


def test_ctrl_c_keeps_the_runs_that_are_done_and_the_next_one_would_end_at_once():
    scenario = from_files([], "synthetic", "T4:1x4", JobOptions(jobs=4), range(6))
    before = signal.getsignal(signal.SIGINT)
    with watched(Console(stderr=True)) as progress:
        pressed: list[object] = []

        def interrupted(share):
            if share > 0.5 and not pressed:
                pressed.append(share)
                os.kill(os.getpid(), signal.SIGINT)
            return progress(share)

        runs, _ = sweep(scenario, ["fifo"], SimulationSettings(), 1, interrupted, bounds=False)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert 0 < compare(runs, ["fifo"], {}).seeds < 6
