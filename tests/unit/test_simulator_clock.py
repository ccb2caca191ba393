"""The virtual clock: order of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heet_elastic.simulator.clock import Clock


def test_events_of_one_instant_come_by_priority_then_in_the_order_in_which_they_were_scheduled():
    clock: Clock[str] = Clock()
    for time, priority, name in ((5.0, 2, "c"), (5.0, 1, "a"), (5.0, 1, "b"), (4.0, 9, "first")):
        clock.at(time, priority, name)
    assert clock.pop_instant() == ["first"]
    assert clock.pop_instant() == ["a", "b", "c"]
    assert clock.now == 5.0
    assert clock.peek() == math.inf


def test_an_event_in_the_past_or_at_no_time_is_refused():
    clock: Clock[str] = Clock()
    clock.at(3.0, 0, "x")
    clock.pop()
    for time in (2.9, math.nan, math.inf):
        with pytest.raises(ValueError, match="event at"):
            clock.at(time, 0, "late")


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 3)), max_size=40))
def test_time_never_goes_back_and_nothing_is_lost(events):
    clock: Clock[int] = Clock()
    for n, (time, priority) in enumerate(events):
        clock.at(time, priority, n)
    popped = []
    while len(clock):
        before = clock.now
        popped.append(clock.pop())
        assert clock.now >= before
    assert popped == sorted(range(len(events)), key=lambda n: (*events[n], n))
