"""The demo's own parts: the limiter that makes hosts slow, and what the demo concludes from snapshots."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo.history import History, kind_of
from examples.demo.limiter import cpu_s, trains, worker_hosts
from examples.demo.run import too_busy
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import (
    Allocation,
    Cause,
    Configuration,
    JobSpec,
    JobView,
    Member,
    RoundProgress,
    SampleRecord,
    Snapshot,
    Versioned,
)
from tests.checkout import ROOT
from tests.integration.processes import MARK, new_mark, wait_until

T4, V100 = Configuration("T4", 1), Configuration("V100", 4)


@pytest.fixture
def busy():
    """A worker of a pretend host that would use a whole core."""
    mark = new_mark()
    env = {**os.environ, MARK: mark, "HEET_HOST": "slow", "LOCAL_RANK": "0"}
    # The limiter knows a worker that trains by the name of gloo's threads.
    code = "import threading; open('/proc/self/task/%d/comm' % threading.get_native_id(), 'w').write('gloo_loop')"
    process = subprocess.Popen([sys.executable, "-c", f"{code}\nwhile True: pass"], env=env)
    yield mark, process.pid
    process.kill()
    process.wait()


def state(pid: int) -> str:
    """The kernel's letter: R, S, T (stopped), ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_worker_gets_no_more_than_its_share_and_is_let_go_at_the_end(busy):
    mark, pid = busy
    wait_until(lambda: worker_hosts(mark) == {pid: "slow"} and trains(pid), 10, "the worker is found")
    command = [sys.executable, str(ROOT / "examples/demo/limiter.py"), "--mark", mark, "slow=0.1"]
    with subprocess.Popen(command) as limiter:
        try:
            wait_until(lambda: state(pid) == "T", 20, "the limiter stops the worker")
            begun, used = time.monotonic(), cpu_s(pid)
            wait_until(lambda: cpu_s(pid) > used + 0.1, 30, "the worker goes on now and then")
            passed = time.monotonic() - begun
        finally:
            limiter.terminate()
    # A tenth of a second of processor time takes a second of wall time; ticks and scheduling blur less than half of it.
    assert passed > 0.5
    wait_until(lambda: state(pid) != "T", 10, "the worker is let go")


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, T4, "starts"),
        (T4, V100, "grows"),
        (V100, T4, "shrinks"),
        (T4, Configuration("P100", 1), "moves"),
        (T4, T4, "stays"),
        (T4, None, "waits"),
    ],
)
def test_what_a_round_does_to_a_job_has_one_word(before, after, kind: str):
    assert kind_of(before, after) == kind


def snapshot(round_: int, configuration: Configuration | None, samples: dict[str, SampleRecord]) -> Snapshot:
    workers = configuration.workers if configuration is not None else 0
    members = (Member("a", "h", tuple(f"g{n}" for n in range(workers))),) if workers else ()
    allocation = Allocation(round_, Cause.PLAN, members, "because", configuration=configuration)
    spec = JobSpec("j", "j", "1", total_work=100.0)
    view = JobView("j", spec=Versioned(spec, 1, 1), allocation=Versioned(allocation, 1, round_), samples=samples)
    return Snapshot(revision=round_, jobs={"j": view})


def test_a_change_is_seen_once_and_ends_with_the_first_step_of_its_round():
    history = History(CoordinatorSettings())
    assert [str(c) for c in history.look(snapshot(1, T4, {}), 10.0)] == ["j starts: 1 x T4"]
    assert history.look(snapshot(1, T4, {}), 11.0) == []
    (grown,) = history.look(snapshot(2, V100, {}), 12.0)
    assert (str(grown), grown.seconds) == ("j grows: 1 x T4 -> 4 x V100", None)
    stepped = {"a": SampleRecord("a", 2, rounds=(RoundProgress(2, steps=1.0),))}
    history.look(snapshot(2, V100, stepped), 15.5)
    assert history.look(snapshot(3, None, stepped), 16.0)[0].kind == "waits"
    assert history.look(snapshot(4, T4, stepped), 17.0)[0].kind == "shrinks"
    assert grown.seconds == 3.5
    assert history.of("j", "starts")[0].seconds is None


def test_a_busy_machine_is_named_when_the_story_was_not_seen_and_an_idle_one_is_not():
    assert too_busy((3.0, 9.0, 9.0), cores=2) == ""
    assert too_busy((30.0, 9.0, 9.0), cores=64) == ""
    assert "load 17 on 2 cores" in too_busy((17.3, 1.0, 1.0), cores=2)
