"""`heet status`, `jobs`, `hosts`, `explain`: what is shown of a hand-built store, apart from fetching it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from heet_elastic.cli import control, output, render
from heet_elastic.cli.access import Access
from heet_elastic.cli.control import said_of_newest, vanished
from heet_elastic.cli.explain import find, sentences
from heet_elastic.cli.picture import HostLine, JobLine, Picture, host_lines, job_lines, speeds
from heet_elastic.coordinator.api import Table
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.errors import UsageError
from heet_elastic.model import (
    Account,
    AgentState,
    CellCounters,
    Configuration,
    Control,
    Exclusion,
    JobStatus,
    LeaderRecord,
    Member,
    PastRound,
    Phase,
    Result,
    RoundProgress,
    SampleRecord,
    Snapshot,
    Versioned,
)
from heet_elastic.predictor import METHODS
from heet_elastic.store.memory import MemoryStore
from tests.unit.decide_worlds import agent, host, planned, snapshot, spec, view

SAMPLES = SampleRecord(
    "a1",
    3,
    cells=(CellCounters(Configuration("T4", 2), 60.0, 600, 0.0, 0.0, 0.1, 0.0, 10, 2),),
    rounds=(RoundProgress(3, steps=250),),
)


def picture(shot: Snapshot) -> Picture:
    predictor = METHODS["line"]([], np.random.default_rng(0))
    return Picture(shot, refresh(Table(), shot, predictor, 64))


@pytest.fixture
def shot() -> Snapshot:
    running = planned(3, [("a1", "h1", ("h1-g0", "h1-g1"))], restarts_used=1, configuration=Configuration("T4", 2))
    a = view(
        spec("a", total_work=1000.0),
        [agent("a1", "h1", AgentState.RUNNING, 3, max_restarts=3), agent("a2", "h2", max_restarts=5)],
        running,
        samples={"a1": SAMPLES},
        status=Versioned(JobStatus(Phase.RUNNING, "granted 2 x T4", details=("growing it has cost 9 s",)), 7, 7),
        account=Versioned(
            Account("run1", rescales=2, rescale_up_s=9.0, exclusions=(Exclusion("h9", 42.0, 1, "flaps"),)), 8, 8
        ),
    )
    waiting = JobStatus(Phase.WAITING, "waits in queue position 1 of 1", 1)
    b = view(spec("b"), [agent("b1", "h1")], status=Versioned(waiting, 9, 9))
    old = view(spec("old"), result=Versioned(Result("failed", "boom", "run1"), 3, 3))
    bad = host("h2", "V100", 2)
    bad = replace(bad, gpus=(replace(bad.gpus[0], unusable="fell off the bus"), bad.gpus[1]))
    leader = Versioned(LeaderRecord("u", "c1", 77, "market"), 1, 1)
    return snapshot([host("h1"), bad], [old, b, a], leader=leader)


def test_a_job_line_says_phase_workers_speed_progress_and_restarts(shot):
    line = job_lines(picture(shot))[0]
    assert (line.job, line.phase, line.workers, line.where) == ("a", "running", 2, "h1:2")
    assert line.speed == pytest.approx(10.0)
    assert line.share == pytest.approx(0.25)
    assert (line.restarts_used, line.restarts_left) == (1, 2)
    assert line.reason == "granted 2 x T4"


def test_live_jobs_come_first_and_ended_ones_say_how(shot):
    lines = job_lines(picture(shot))
    assert [(line.job, line.phase) for line in lines] == [("a", "running"), ("b", "waiting"), ("old", "failed")]
    assert lines[1].queue_position == 1
    assert lines[2].reason == "boom"


def test_a_host_line_counts_what_is_held_free_and_out_of_use(shot):
    first, second = host_lines(picture(shot))
    assert (first.host, first.types, first.held, first.free) == ("h1", {"T4": 4}, {"a": 2}, 2)
    assert (second.free, second.unusable) == (1, {"h2-g0": "fell off the bus"})


def test_explain_tells_round_devices_limits_restarts_costs_and_exclusions(shot):
    text = "\n".join(sentences(picture(shot), shot.jobs["a"]))
    for words in (
        "Job a is running: granted 2 x T4",
        "Round 3 (plan), 2 workers",
        "h1-g0, h1-g1",
        "1 to 4 hosts",
        "1 used by failures, 2 left",
        "250 steps done, 25% of its work",
        "growing takes 9 s",
        "h9 is excluded for 42 s more: flaps",
        "growing it has cost 9 s",
    ):
        assert words in text


def test_an_exclusion_that_is_over_is_not_shown(shot):
    a = shot.jobs["a"]
    over = Account("run1", exclusions=(Exclusion("h9", -5.0, 1, "flaps"),))
    text = "\n".join(sentences(picture(shot), replace(a, account=Versioned(over, 8, 8))))
    assert "excluded" not in text


def test_speeds_tell_measured_from_predicted_with_an_interval(shot):
    found: dict[Any, Any] = {s.configuration: s for s in speeds(picture(shot), "a")}
    measured, predicted = found[Configuration("T4", 2)], found[Configuration("T4", 4)]
    assert (measured.measured, measured.source) == (pytest.approx(10.0), "measured")
    assert predicted.measured is None
    assert predicted.low < predicted.predicted < predicted.high
    assert predicted.source == "model"
    assert found[Configuration("V100", 1)].source == "prior"


def test_an_unknown_job_is_an_error_that_names_those_that_are_known(shot):
    with pytest.raises(UsageError, match="'zzz' is not known here; known are: a, b, old"):
        find(picture(shot), "zzz")


def text_of(shown: Any, width: int = 250) -> str:
    out = Console(width=width, no_color=True)
    with out.capture() as captured:
        out.print(shown)
    return captured.get()


def test_the_whole_picture_names_leader_hosts_jobs_and_reasons(shot):
    text = text_of(render.whole(picture(shot)))
    for words in ("c1 (pid 77) leads with policy market", "4 x T4", "granted 2 x T4", "10 steps/s", "25%", "1 of 3"):
        assert words in text


def test_names_are_shown_as_they_are_and_not_as_markup():
    odd = snapshot([host("h[red]1")], [view(spec("[bold]x"), [agent("a1", "h[red]1")])])
    text = text_of(render.whole(picture(odd)))
    assert "[bold]x" in text
    assert "h[red]1" in text


@pytest.mark.parametrize("name", ["a[red]b", "[/]", "fe80::a:1", ":smile:", "100%", "{0}", "\\[b]"])
@pytest.mark.parametrize("terminal", [True, False])
def test_whatever_a_command_prints_comes_out_as_it_is(name: str, terminal: bool, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    shown = output.console()
    shown.print(f"job {name} is cancelled")
    table = render.table("host")
    table.add_row(name)
    shown.print(table)
    out = capsys.readouterr().out
    assert f"job {name} is cancelled" in out
    assert out.count(name) == 2


@pytest.mark.parametrize("width", [250, 120, 119, 80, 60, 45])
def test_names_and_reasons_are_whole_however_narrow_the_terminal_is(width: int):
    job, where, why = (
        "train-transformer-3fa9c1",
        "node-a17:4 node-b03:4",
        "waits for 2 GPUs of node-a17 that j is releasing",
    )
    line = JobLine(job, "x", "running", 8, where, 12.345, "steps", 0.43, 2, 0, 3, why)
    host = HostLine(
        "node-a17.cluster.example", "10.1.2.3", {"V100 16GB": 4}, {job: 4}, 0, {"GPU-6a2f1c9e": "fell off the bus"}
    )
    shown = Console(width=width, markup=False, emoji=False)
    with shown.capture() as captured:
        shown.print(render.jobs_table([line]), render.hosts_table([host]))
    text = captured.get()
    assert "…" not in text
    assert all(len(row) <= width for row in text.splitlines())
    assert any(row.startswith(job) for row in text.splitlines())
    assert any(row.startswith(host.host) for row in text.splitlines())
    together = "".join(text.split())
    assert "fellofftheb" in together or width >= render.WIDE
    assert why.replace(" ", "") in together or width >= render.WIDE


def test_an_empty_store_says_what_to_do():
    text = text_of(render.whole(picture(snapshot([], []))))
    assert "no coordinator has led here yet" in text
    assert "start torchrun or heet-agent somewhere" in text


def test_json_has_leader_hosts_and_jobs(shot):
    document = json.loads(json.dumps(render.as_json(picture(shot)), default=str))
    assert document["leader"]["policy"] == "market"
    assert [j["job"] for j in document["jobs"]] == ["a", "b", "old"]
    assert document["hosts"][0]["free"] == 2


def test_vanished_hosts_are_those_of_members_of_which_nothing_is_heard():
    running = planned(3, [("a1", "h1", ("h1-g0",)), ("a2", "h2", ("h2-g0",))])
    past = PastRound(1, (Member("a0", "h0", ("h0-g0",)),))
    v = view(
        spec("a"),
        [agent("a1", "h1", AgentState.RUNNING, 3)],
        running,
        account=Versioned(Account(may_run=(past,)), 1, 1),
    )
    assert vanished(v) == {"h0", "h2"}


@pytest.mark.parametrize(("revision", "counts"), [(12, False), (14, True)])
def test_a_word_counts_if_it_is_younger_than_the_newest_round(revision, counts):
    v = view(spec("a"), [], planned(3, [("a1", "h1", ("h1-g0",))]))  # written at revision 13
    v = replace(v, control=Versioned(Control(released=("h1",)), 1, revision))
    assert said_of_newest(v) is counts


@pytest.mark.parametrize("word", [control.pause, control.resume, control.cancel, control.release])
def test_a_word_on_a_job_that_is_not_there_says_so(word, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(control, "open_store", lambda _: store)
    with pytest.raises(UsageError, match=r"there is no job 'b' \(heet jobs: lists those that there are\)"):
        word(Access("e:1"), "b")
    assert store.read("/").entries == {}
