"""The collector: real sockets in this process, rounds and configurations by hand, garbage skipped."""

from __future__ import annotations

import math
import os
import socket
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heet_elastic.agents import autostart
from heet_elastic.agents.aggregate import RoundPlan, add_cells, features, round_cell, round_progress
from heet_elastic.agents.collector import FOLDER_PREFIX, KEPT_ROUNDS, Collector
from heet_elastic.agents.messages import ENV_AGENT_PID, ENV_CONFIGURATION, ENV_ROUND, ENV_SOCKET, SampleMessage, pack
from heet_elastic.model import Configuration, SampleRecord
from heet_elastic.predictor.samples import merge
from heet_elastic.store.records import decode, encode

TWO = Configuration("A10", 2, 1)
FOUR = Configuration("A10", 4, 2)


@pytest.fixture
def collector():
    opened = Collector()
    opened.open()
    yield opened
    opened.close()


def message(local_rank=0, round_=1, steps=11, at_s=105.0, **more) -> SampleMessage:
    first = SampleMessage(
        1000 + local_rank, local_rank, local_rank, round_, at_s, 100.0, steps, 320.0 * steps / 10, 0.0
    )
    return replace(first, **{"step_s": 0.5, "step_spread_s": 0.01, "windows": 4, **more})


def start(collector, round_, configuration, workers):
    """Begin a round; a function that sends to it as a worker would, and says whether anything was new."""
    path = collector.round_environment(round_, configuration, workers)[ENV_SOCKET]

    def send(*datagrams: bytes) -> bool:
        new = False
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect(path)
            s.setblocking(False)
            for datagram in datagrams:
                s.send(datagram)
                new = collector.poll() or new
        return new

    return send


def test_the_environment_names_socket_agent_round_and_configuration():
    collector = Collector()
    environment = collector.open()
    try:
        path = Path(environment[ENV_SOCKET])
        assert environment[ENV_AGENT_PID] == str(os.getpid())
        assert len(os.fsencode(path)) <= 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert collector.fileno() >= 0
        whole = collector.round_environment(3, FOUR, 2)
        assert (whole[ENV_ROUND], whole[ENV_CONFIGURATION], whole[ENV_SOCKET]) == ("3", "4/2/A10", str(path))
        assert collector.round_environment(4, None, 2)[ENV_CONFIGURATION] == "mixed"
    finally:
        collector.close()
    assert not path.parent.exists()
    assert collector.fileno() == -1
    assert collector.poll() is False
    collector.close()


def test_autostart_and_messages_agree_on_the_names_of_variables():
    assert (autostart.ENV_SOCKET, autostart.ENV_AGENT_PID) == (ENV_SOCKET, ENV_AGENT_PID)


def test_samples_of_local_workers_add_up_and_steps_do_not(collector):
    to = start(collector, 1, TWO, 2)
    assert to(pack(message(0)), pack(message(1)))
    assert collector.steps() == 11
    (cell,) = collector.record("a").cells
    assert (cell.configuration, cell.steps, cell.windows, cell.local_workers) == (TWO, 10, 4, 2)
    assert math.isclose(cell.local_samples, 2 * 320)
    assert math.isclose(cell.seconds, 5.0)
    assert math.isclose(merge([collector.record("a")], "samples")[TWO].throughput, 2 * 32 / 0.5)


def test_no_step_counts_before_every_local_worker_has_made_one(collector):
    to = start(collector, 1, TWO, 2)
    to(pack(message(0)))
    assert collector.steps() == 0
    to(pack(message(1, steps=3)))
    assert collector.steps() == 3


def test_a_worker_that_never_reports_is_taken_for_an_average_one(collector):
    to = start(collector, 1, TWO, 2)
    to(pack(message(0)))
    assert math.isclose(collector.record("a").cells[0].local_samples, 2 * 320)


def test_counters_are_cumulative_so_a_lost_or_repeated_datagram_changes_nothing(collector):
    to = start(collector, 1, TWO, 1)
    to(pack(message(steps=5, at_s=102.0)), pack(message(steps=11)), pack(message(steps=11)))
    assert to(pack(message(steps=5, at_s=102.0))) is False  # an older one that arrives late
    assert collector.record("a").cells[0].steps == 10


def test_rounds_of_one_configuration_add_up_and_others_stay_apart(collector):
    start(collector, 1, TWO, 2)(pack(message(0)), pack(message(1)))
    start(collector, 2, FOUR, 2)(pack(message(0, 2, step_s=0.3)), pack(message(1, 2, step_s=0.3)))
    to = start(collector, 3, TWO, 2)
    assert collector.steps() == 0
    to(pack(message(0, 3, step_s=0.7)), pack(message(1, 3, step_s=0.7)))
    cells = {c.configuration: c for c in collector.record("a").cells}
    assert cells[TWO].steps == 20
    assert cells[TWO].windows == 8
    assert math.isclose(cells[TWO].step_s, 0.6)
    assert math.isclose(cells[TWO].step_spread_s, 0.1)  # the rounds disagree by that much
    assert math.isclose(cells[FOUR].step_s, 0.3)


def test_a_late_datagram_of_an_old_round_goes_to_that_round(collector):
    to = start(collector, 1, TWO, 1)
    to(pack(message(steps=5)))
    start(collector, 2, FOUR, 1)
    to(pack(message(steps=11)))
    assert [c.configuration for c in collector.record("a").cells] == [TWO]
    assert collector.record("a").cells[0].steps == 10
    assert collector.steps() == 0


def test_a_mixed_round_fills_no_cell_but_moves_the_job_on(collector):
    start(collector, 1, None, 1)(pack(message()))
    record = collector.record("a")
    assert record.cells == ()
    assert record.progress.steps == 11


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"x",
        b"\xff" * 50,
        b"[]",
        b'{"v":2}',
        b'{"v":1,"pid":1}',
        b"[" * 4000,
        b"x" * 5000,
        pack(message(round_=99)),
        pack(message(local_rank=1)),
        pack(message()).replace(b'"steps":11', b'"steps":-1'),
        pack(message()).replace(b'"steps":11', b'"steps":1e999'),
        pack(message()).replace(b'"samples":352.0', b'"samples":NaN'),
    ],
)
def test_garbage_and_strangers_are_counted_and_skipped(collector, datagram):
    to = start(collector, 1, TWO, 1)
    assert to(datagram) is False
    assert (collector.received, collector.skipped) == (0, 1)
    assert collector.record("a").cells == ()
    assert to(pack(message()))


def test_marks_told_work_and_loads_may_come_from_one_worker_alone(collector):
    start(collector, 1, TWO, 2)(
        pack(message(0, marks=2, marked_steps=8, marked_samples=256.0, done=4.0, total=9.0)), pack(message(1))
    )
    start(collector, 2, TWO, 2)(pack(message(0, 2, steps=3, loads=1)), pack(message(1, 2, steps=3, loads=1)))
    progress = collector.record("a").progress
    assert (progress.steps, progress.lost_steps, progress.done, progress.total) == (11, 3, 4.0, 9.0)
    assert progress.certain


def test_what_a_sampler_cannot_see_is_said_once(collector):
    to = start(collector, 1, TWO, 2)
    to(*[pack(message(r, problem="no forward pass was seen", at_s=a)) for a in (101.0, 102.0) for r in (0, 1)])
    assert collector.record("a").problems == ("no forward pass was seen",)


def test_features_come_from_the_lowest_rank_and_batches_from_all():
    first = message(0, parameters=10, parameter_bytes=40, dtype="float32", batch=32.0, tokens=3520.0)
    second = message(1, parameters=10, parameter_bytes=40, dtype="float32", batch=16.0)
    known = features([second, first])
    assert known is not None
    assert (known.parameters, known.dtype, known.batch_per_worker) == (10, "float32", 24.0)
    assert known.tokens_per_sample == 5.0
    assert features([message()]) is None


def test_a_record_stays_small_and_right_over_very_many_rounds(collector):
    rounds = 3 * KEPT_ROUNDS
    for round_ in range(1, rounds + 1):
        marked = {"marks": 1, "marked_steps": 10, "marked_samples": 320.0}
        start(collector, round_, TWO, 1)(pack(message(0, round_, loads=int(round_ > 1), **marked)))
    record = collector.record("a")
    assert len(record.rounds) == KEPT_ROUNDS + 1
    assert record.cells[0].steps == 10 * rounds
    assert record.progress.steps == 10 * rounds + 1
    assert record.progress.certain
    assert len(encode(record)) < 8000
    assert decode("k", encode(record), SampleRecord) == record


def test_a_second_step_is_needed_for_a_cell():
    assert round_cell(RoundPlan(1, TWO, 1), [message(steps=1)]) is None
    assert round_cell(RoundPlan(1, TWO, 1), []) is None
    assert round_progress(RoundPlan(1, TWO, 1), []).steps == 0


def test_folders_of_killed_agents_are_swept_and_living_ones_are_not(collector):
    alive = Path(collector.round_environment(1, TWO, 1)[ENV_SOCKET]).parent
    dead = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(dead / "s"))
    other = Collector()
    other.open()
    other.close()
    assert not dead.exists()
    assert alive.exists()


def test_a_temporary_folder_with_a_long_name_is_no_obstacle(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    collector = Collector()
    environment = collector.open()
    try:
        assert len(os.fsencode(environment[ENV_SOCKET])) <= 107
        assert list(long.iterdir()) == []
    finally:
        collector.close()


durations = st.floats(min_value=0.001, max_value=100, allow_nan=False)
windows = st.integers(min_value=0, max_value=50)


@given(st.lists(st.tuples(st.sampled_from([TWO, FOUR]), durations, windows), min_size=1, max_size=8))
def test_added_cells_keep_totals_and_stay_between_their_parts(parts):
    plans = [(RoundPlan(i, c, 1), message(0, i, step_s=s, windows=w)) for i, (c, s, w) in enumerate(parts)]
    total = add_cells(cell for plan, m in plans if (cell := round_cell(plan, [m])))
    assert sum(c.steps for c in total) == 10 * len(parts)
    for cell in total:
        timed = [s for c, s, w in parts if c == cell.configuration and w > 0]
        if timed:
            assert min(timed) * 0.999999 <= cell.step_s <= max(timed) * 1.000001
        else:
            assert cell.windows == 0
