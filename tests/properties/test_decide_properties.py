"""What must hold of every decision, whatever happened (`decide_history`): by shrinking search and long random walks."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties.decide_history import History


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_history_makes_a_decision_break_its_promises(data: st.DataObject):
    history = History(lambda options: data.draw(st.sampled_from(options)))
    for _ in range(data.draw(st.integers(0, 25))):
        history.happen(history.pick(history.possible()))
    history.calm_down()


def walk(seed: int, events: int) -> History:
    """A random history; a fresh cluster every 150 events."""
    rng = random.Random(seed)
    history = History(rng.choice)
    for n in range(events):
        if n % 150 == 149:
            history.calm_down()
            seen = history.seen
            history = History(rng.choice)
            history.seen += seen
        history.happen(rng.choice(history.possible()))
    return history


def test_long_histories_break_no_promise_and_meet_everything_that_the_promises_are_about():
    seen = Counter[str]()
    for seed in range(4):
        seen += walk(seed, 300).seen
    for what in (
        "first round",
        "round",
        "round given back",
        "round with devices not yet free",
        "waits for a hand-over",
        "waits for a quiet host",
    ):
        assert seen[what] > 0, f"{what} never happened: {seen}"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.timeout(3600)
def test_a_very_long_history_breaks_no_promise(seed: int):
    walk(seed, 10_000)
