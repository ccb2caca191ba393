"""What a heet-agent does next, by plain calls; and, under random histories, what it never does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heet_elastic.agents.node_reconcile import (
    Close,
    GiveUp,
    Kill,
    Memory,
    NodeTimes,
    Report,
    Run,
    Seen,
    Start,
    Step,
    Terminate,
    Track,
    reconcile,
)

TIMES = NodeTimes(idle_s=10, end_s=20, kill_s=30, backoff_s=1, backoff_most_s=8, stable_s=60)
WANTED = Seen("j", "i", wanted=True)
ALIVE = Run("j", "i", True)
DEAD = Run("j", "i", False, 1)


def look(now: float, seen: Seen | None, run: Run | None, before: Step | None = None, **more: bool) -> Step:
    jobs, runs = ({} if seen is None else {"j": seen}), ({} if run is None else {"j": run})
    memory = {} if before is None else before.memory
    return reconcile(now, more.pop("current", True), jobs, runs, memory, TIMES, **more)


def test_a_torchrun_is_started_where_the_job_is_wanted_and_nowhere_else():
    assert look(0, WANTED, None).instructions == (Start("j"),)
    assert look(0, Seen("j", "i", member=True), None).instructions == ()
    assert look(0, replace(WANTED, over=True), None).instructions == ()


def test_nothing_is_started_or_ended_on_an_old_picture():
    assert look(0, WANTED, None, current=False).instructions == ()
    idle = look(0, Seen("j", "i"), ALIVE)
    assert look(1000, Seen("j", "i"), ALIVE, idle, current=False).instructions == ()


def test_a_torchrun_that_is_wanted_or_a_member_stays_for_ever():
    step = look(0, WANTED, ALIVE)
    assert look(1e6, Seen("j", "i", member=True), ALIVE, step).instructions == ()


def test_an_idle_torchrun_is_ended_after_a_while_and_killed_when_it_does_not_end():
    step = look(0, Seen("j", "i"), ALIVE)
    assert step.wake_in_s == 10
    step = look(9, Seen("j", "i"), ALIVE, step)
    assert step.instructions == ()
    step = look(10, Seen("j", "i"), ALIVE, step)
    assert step.instructions == (Terminate("j", "the job has had nothing here for 10 s"),)
    step = look(39, Seen("j", "i"), ALIVE, step)
    assert step.instructions == ()
    step = look(40, Seen("j", "i"), ALIVE, step)
    assert [type(i) for i in step.instructions] == [Kill]
    step = look(41, Seen("j", "i"), ALIVE, step)
    assert step.instructions == ()
    step = look(42, Seen("j", "i"), DEAD, step)
    assert step.instructions == (Close("j"),)


def test_work_that_comes_back_in_time_keeps_the_torchrun():
    step = look(9, WANTED, ALIVE, look(0, Seen("j", "i"), ALIVE))
    assert look(18, Seen("j", "i"), ALIVE, step).instructions == ()


def test_the_torchrun_of_an_ended_job_ends_by_itself_or_is_ended_later():
    over = replace(WANTED, over=True)
    step = look(0, over, ALIVE)
    assert step.instructions == ()
    assert [type(i) for i in look(20, over, ALIVE, step).instructions] == [Terminate]
    assert look(1, over, replace(DEAD, exit_code=0), step).instructions == (Close("j"),)


def test_the_torchrun_of_another_run_is_ended_at_once_and_the_new_one_started_after_it():
    new = Seen("j", "new", wanted=True)
    step = look(0, new, ALIVE)
    assert step.instructions == (Terminate("j", "another run of this job has begun"),)
    assert look(1, new, DEAD, step).instructions == (Close("j"), Start("j"))


def test_deaths_are_reported_and_followed_by_longer_and_longer_pauses():
    now, pauses = 0.0, []
    step = look(now, WANTED, None)
    for count in range(1, 6):
        step = look(now, WANTED, ALIVE, step)
        step = look(now, WANTED, DEAD, step)
        assert step.instructions == (Report("j", count, 1), Close("j"))
        pauses.append(step.wake_in_s)
        step = look(now + step.wake_in_s - 0.01, WANTED, None, step)
        assert step.instructions == ()
        now += pauses[-1]
        step = look(now, WANTED, None, step)
        assert step.instructions == (Start("j"),)
    assert pauses == [1, 2, 4, 8, 8]


def test_a_torchrun_that_dies_before_it_is_seen_alive_has_died_and_is_counted_once():
    step = look(0, WANTED, None)
    step = look(0.1, WANTED, DEAD, step)
    assert step.instructions == (Report("j", 1, 1), Close("j"))
    step = look(0.2, WANTED, DEAD, step)  # closing it did not work out
    assert step.instructions == (Report("j", 1, 1), Close("j"))
    assert look(0.3, WANTED, None, step).instructions == ()
    assert look(1.2, WANTED, None, step).instructions == (Start("j"),)


def test_a_torchrun_that_lived_begins_a_new_count():
    step = look(0, WANTED, ALIVE, Step({"j": Track("i", failures=4)}))
    step = look(1, replace(WANTED, registered=True), ALIVE, step)
    step = look(70, replace(WANTED, registered=True), ALIVE, step)
    step = look(71, WANTED, DEAD, step)
    assert Report("j", 1, 1) in step.instructions


def test_a_torchrun_that_was_found_dead_after_a_restart_of_the_daemon_is_no_death():
    step = look(0, WANTED, Run("j", "i", False))
    assert step.instructions == (Close("j"), Start("j"))


@pytest.mark.parametrize(
    ("seen", "gives_up"),
    [
        (replace(WANTED, alone=True), True),
        (replace(WANTED, hopeless_elsewhere=True), True),
        (WANTED, False),
        (replace(WANTED, alone=True, living=True), False),
    ],
    ids=["the only host", "another host too", "one of many hosts", "it lives elsewhere"],
)
def test_a_job_is_given_up_only_where_it_is_the_job_that_is_broken(seen: Seen, gives_up: bool):
    step = look(100, seen, None, Step({"j": Track("i", failures=3)}))
    assert step.instructions == ((GiveUp("j"),) if gives_up else (Start("j"),))


def test_draining_ends_every_torchrun_and_starts_none():
    step = look(0, WANTED, ALIVE, draining=True)
    assert step.instructions == (Terminate("j", "this heet-agent ends"),)
    step = look(1, WANTED, DEAD, step, draining=True)
    assert step.instructions == (Close("j"),)
    assert look(0, WANTED, None, draining=True, current=False).instructions == ()


def test_a_job_that_the_store_lost_keeps_its_torchrun_for_a_while():
    step = look(0, None, ALIVE)
    assert step.instructions == ()
    assert [type(i) for i in look(10, None, ALIVE, step).instructions] == [Terminate]


histories = st.lists(
    st.tuples(
        st.floats(0.01, 50),
        st.sampled_from(["i", "k"]),
        *[st.booleans()] * 4,
        st.sampled_from(["none", "dies", "lives", "dies"]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(histories)
def test_whatever_happens_there_is_one_torchrun_and_it_is_asked_before_it_is_killed(history):
    now, asked = 0.0, False
    run: Run | None = None
    memory: Memory = {}
    for pause, incarnation, wanted, member, over, current, fate in history:
        now += pause
        if run is not None and run.alive and fate == "dies":
            run = replace(run, alive=False, exit_code=1)
        seen = Seen("j", incarnation, wanted=wanted, member=member, over=over)
        step = reconcile(now, current, {"j": seen}, {} if run is None else {"j": run}, memory, TIMES)
        memory = step.memory
        assert step.wake_in_s >= 0
        for instruction in step.instructions:
            match instruction:
                case Start():
                    assert run is None, "only one"
                    assert wanted
                    assert not over
                    run, asked = Run("j", incarnation, True), False
                case Terminate():
                    assert run is not None
                    assert run.alive
                    asked = True
                case Kill():
                    assert asked
                case Close():
                    assert run is not None
                    assert not run.alive
                    run = None
        assert current or not step.instructions
