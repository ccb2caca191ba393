"""The pure parts of the sampler: rates from step times, batches from arguments, messages from bytes."""

from __future__ import annotations

import math
import random
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heet_elastic
from heet_elastic import reporting
from heet_elastic.agents.batches import batch_size
from heet_elastic.agents.compute import ComputeTimer
from heet_elastic.agents.messages import MAX_BYTES, SampleMessage, pack, unpack
from heet_elastic.agents.rate import Rate, StepClock, robust

pytest.importorskip("torch")

import torch


def run(gaps, flags=(), start=1000.0) -> StepClock:
    clock, now = StepClock(), start
    for number, gap in enumerate(gaps):
        now += gap
        clock.step(now, number in flags)
    return clock


def test_an_even_pace_is_measured_exactly():
    clock = run([0.1] * 200)
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=1e-9)
    assert clock.rate().spread_s < 1e-9
    assert clock.steps == 200
    assert math.isclose(clock.last_s - clock.first_s, 19.9)
    assert (clock.paused_s, clock.stalled_s) == (0.0, 0.0)


def test_nothing_is_said_before_the_first_window():
    assert run([0.1] * 6).rate() == Rate(0.0, 0.0)
    assert run([]).rate() == Rate()


def test_slow_steps_make_windows_too():
    clock = run([30.0] * 6)
    assert clock.windows == 3  # after three steps of warm-up
    assert clock.rate().step_s == 30.0


def test_compilation_at_the_start_is_left_out():
    clock = run([20.0, 5.0, 5.0] + [3.0] * 4 + [0.1] * 100)
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=0.01)


def test_pauses_that_were_seen_are_left_out_and_reported():
    gaps, flags = [], set()
    for _ in range(20):
        gaps += [0.1] * 19 + [4.0]
        flags.add(len(gaps) - 1)
    clock = run(gaps, flags)
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=1e-6)
    assert math.isclose(clock.paused_s, 20 * 3.9, rel_tol=0.01)


def test_an_evaluation_before_every_step_is_a_part_of_the_step():
    clock = run([0.2] * 300, flags=set(range(300)))
    assert math.isclose(clock.rate().step_s, 0.2, rel_tol=1e-6)
    assert clock.windows > 20


def test_bursts_of_a_data_loader_are_a_part_of_the_rate():
    # Eight loader workers deliver eight batches at once: seven quick steps, then a wait.
    clock = run(([0.01] * 7 + [0.73]) * 60)
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=0.05)


def test_a_rare_stall_does_not_move_the_rate_and_is_reported_apart():
    gaps = [0.1] * 400
    gaps[200] = 30.0
    clock = run(gaps)
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=1e-6)
    assert 29 < clock.stalled_s < 31
    assert clock.paused_s == 0.0


def test_a_lasting_change_of_pace_is_followed():
    clock = run([0.1] * 200 + [0.2] * 600)
    assert math.isclose(clock.rate().step_s, 0.2, rel_tol=0.01)


def test_noise_shows_in_the_spread_and_hardly_in_the_rate():
    rng = random.Random(5)
    clock = run([rng.uniform(0.08, 0.12) for _ in range(1000)])
    assert math.isclose(clock.rate().step_s, 0.1, rel_tol=0.03)
    assert 0 < clock.rate().spread_s < 0.01


def test_several_steps_told_at_once_count_as_several():
    clock, now = StepClock(), 0.0
    for _ in range(40):
        now += 1.0
        clock.step(now, False, 10)
    assert clock.steps == 400
    assert math.isclose(clock.rate().step_s, 0.1)


@given(st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=64))
def test_a_robust_rate_lies_among_its_windows(windows):
    rate = robust(windows)
    assert min(windows) <= rate.step_s <= max(windows)
    assert 0 <= rate.spread_s <= max(windows) - min(windows)


def x(*shape, dtype=None):
    return torch.zeros(*shape, dtype=dtype)


@dataclass
class Inputs:
    ids: torch.Tensor
    mask: torch.Tensor


IDS = x(4, 7, dtype=torch.int64)
PACKED = torch.nn.utils.rnn.pack_sequence([x(5, 2), x(3, 2), x(1, 2)])
PACKED_IDS = torch.nn.utils.rnn.pack_sequence([torch.zeros(5, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((x(4, 3),), {}, (4, 0)),
        ((IDS,), {}, (4, 28)),
        ((x(4, 7, dtype=torch.int32), x(4)), {}, (4, 28)),
        ((x(4, 7, dtype=torch.bool),), {}, (4, 0)),
        ((x(4, 7, dtype=torch.uint8),), {}, (4, 0)),
        ((x(4, 7, 2, dtype=torch.int64),), {}, (4, 0)),
        ((x(4, 7, dtype=torch.complex64),), {}, (4, 0)),
        ((torch.tensor(3.0), x(5)), {}, (5, 0)),
        ((0.5, None, "text", x(5, 1)), {}, (5, 0)),
        ((), {"labels": x(9), "input_ids": IDS}, (4, 28)),
        ((), {"return_dict": True, "features": x(6, 2)}, (6, 0)),
        ((), {}, (0, 0)),
        (({"a": {"b": [x(3, 2)]}},), {}, (3, 0)),
        ((UserDict({"input_ids": IDS}),), {}, (4, 28)),
        ((OrderedDict(pixel_values=x(2, 3, 8, 8)),), {}, (2, 0)),
        (([x(4, 2), x(4, 3)],), {}, (4, 0)),
        (((x(4, 2), x(4, 3)),), {}, (4, 0)),
        (([x(3, 8, 8)] * 5,), {}, (5, 0)),
        (([x(3, 8, 8), x(3, 9, 7)],), {}, (2, 0)),
        (([x(8, 2), x(9, 2), x(7, 2)],), {}, (3, 0)),
        ((["one", "two", "three"],), {}, (3, 0)),
        ((PACKED,), {}, (3, 0)),
        ((PACKED_IDS,), {}, (2, 8)),
        ((Inputs(IDS, x(4)),), {}, (4, 28)),
        ((SimpleNamespace(num_graphs=6, x=x(100, 3)),), {}, (6, 0)),
        ((SimpleNamespace(batch_size=torch.Size([6, 2])),), {}, (6, 0)),
        ((SimpleNamespace(other=x(100, 3)), x(5)), {}, (5, 0)),
        ((torch.nested.nested_tensor([x(2, 3), x(4, 3)], layout=torch.jagged),), {}, (2, 0)),
        ((x(0, 3),), {}, (0, 0)),
        (([], {}), {}, (0, 0)),
    ],
)
def test_samples_and_tokens_of_a_batch(args, kwargs, expected):
    assert batch_size(args, kwargs) == expected


def test_a_structure_that_holds_itself_ends():
    loop: list[object] = []
    loop.append(loop)
    assert batch_size((loop,), {}) == (0, 0)


def test_compute_time_by_the_clock_covers_first_forward_to_step():
    timer = ComputeTimer()
    timer.arm()
    timer.forward(10.0)
    timer.forward(11.0)  # accumulation: the first one counts
    timer.step(12.0)
    assert (timer.armed, timer.seconds()) == (False, 2.0)
    timer.arm()
    timer.step(13.0)  # a step without a forward pass says nothing
    assert timer.seconds() == 2.0


def test_compute_time_by_events_is_read_only_once_the_device_has_passed_them():
    made = []

    class Event:
        done = False

        def __init__(self):
            made.append(self)

        def record(self):
            pass

        def query(self):
            return Event.done

        def elapsed_time(self, end):
            assert Event.done
            return 1500.0 if end is made[1] else -1.0

    timer = ComputeTimer()
    timer.use_events(Event)
    timer.arm()
    timer.forward(0.0)
    timer.step(99.0)
    assert timer.seconds() == 0.0
    timer.arm()
    assert not timer.armed  # the last pair is still on its way
    Event.done = True
    assert timer.seconds() == 1.5
    timer.arm()
    assert timer.armed


messages = st.builds(
    SampleMessage,
    pid=st.integers(0, 2**31),
    local_rank=st.integers(0, 64),
    rank=st.integers(0, 4096),
    round=st.integers(0, 10**6),
    at_s=st.floats(0, 1e9),
    first_step_s=st.floats(0, 1e9),
    steps=st.integers(0, 10**12),
    samples=st.floats(0, 1e15),
    tokens=st.floats(0, 1e15),
    done=st.none() | st.floats(0, 1e15),
    device=st.none() | st.text(max_size=200),
    problem=st.none() | st.text(max_size=200),
)


@given(messages)
def test_a_message_survives_its_datagram(message):
    assert unpack(pack(message)) == message


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_a_message_or_a_sentence(noise, place):
    good = pack(SampleMessage(1, 0, 0, 1, 2.0, 1.0, 3, 4.0, 5.0))
    for datagram in (noise, good[:place] + noise + good[place:]):
        try:
            assert isinstance(unpack(datagram), SampleMessage)
        except ValueError as e:
            assert "sample" in str(e)  # noqa: PT017
    with pytest.raises(ValueError, match="at most"):
        unpack(good + b" " * MAX_BYTES)


class Sink:
    def __init__(self):
        self.calls = []

    def progress(self, done, total):
        self.calls.append((done, total))

    def report(self, samples, steps):
        self.calls.append((samples, steps))


def test_reports_do_nothing_outside_heet_and_reach_the_sampler_inside():
    heet_elastic.progress(1, 10)
    heet_elastic.report(samples=3)
    sink = Sink()
    reporting.connect(sink)
    try:
        heet_elastic.progress(torch.tensor(2), 10)
        heet_elastic.progress(3)
        heet_elastic.report(samples=3)
        heet_elastic.report(steps=2)
    finally:
        reporting.connect(None)
    assert sink.calls == [(2.0, 10.0), (3.0, None), (3.0, None), (None, 2)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: heet_elastic.progress(-1),
        lambda: heet_elastic.progress(math.nan, 3),
        lambda: heet_elastic.progress(1, 0),
        lambda: heet_elastic.progress(1, math.inf),
        lambda: heet_elastic.report(),
        lambda: heet_elastic.report(samples=-1),
        lambda: heet_elastic.report(samples=math.inf),
        lambda: heet_elastic.report(steps=-1),
    ],
)
def test_a_wrong_report_is_refused_with_a_sentence_inside_and_outside_heet(call):
    with pytest.raises(ValueError, match=r"heet_elastic\.(progress|report): "):
        call()
