"""A torchrun that a heet-agent starts takes part in the run that it was started for, and in no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heet_elastic.model import JobSpec, JobView, Result, Versioned
from heet_elastic.rendezvous.process import submitted_run
from heet_elastic.rendezvous.protocol import advance
from heet_elastic.rendezvous.values import (
    CreateSpec,
    Local,
    Memory,
    Order,
    ProtocolSettings,
    PutRecord,
    ReplaceJob,
    World,
)

SPEC = JobSpec("j", "sweep", "i", max_hosts=8, submitted=True, max_workers=4)
OURS = Local("a", "h", "127.0.0.1", 1, JobSpec("j", "t.py", "i", submitted=True), 2, 0, asking=True)
BY_HAND = replace(OURS, asked=JobSpec("j", "t.py", "mine"))


def step(me: Local, spec: JobSpec | None, result: Result | None = None):
    job = JobView(
        "j",
        spec=None if spec is None else Versioned(spec, 1, 1),
        result=None if result is None else Versioned(result, 2, 2),
    )
    return advance(0.0, World(job, None, True, {}, {}, True, 0.0, 1), me, Memory(), ProtocolSettings())


def test_it_joins_its_run_whatever_the_limits_say_on_its_own_command_line():
    found = step(OURS, SPEC)
    assert found.memory.spec == SPEC
    assert [type(a) for a in found.actions] == [PutRecord]


def test_it_creates_no_job_where_there_is_none():
    found = step(OURS, None)
    assert (found.target.order, found.actions) == (Order.IDLE, ())


def test_it_refuses_another_run_and_replaces_none():
    for result in (None, Result("succeeded", "", "k")):
        found = step(OURS, replace(SPEC, incarnation="k"), result)
        assert (found.target.order, found.actions) == (Order.REFUSE, ())


def test_it_ends_with_its_run_even_long_after_the_end():
    found = step(OURS, SPEC, Result("failed", "why", "i", exit_code=1))
    assert (found.target.order, found.target.reason, found.actions) == (Order.FINISH, "why", ())


def test_a_torchrun_of_a_person_does_not_replace_a_submitted_job_that_waits():
    found = step(BY_HAND, SPEC)
    assert found.target.order is Order.REFUSE
    assert not any(isinstance(a, ReplaceJob | CreateSpec) for a in found.actions)


def test_a_torchrun_of_a_person_begins_a_new_run_after_a_submitted_one_has_ended():
    found = step(BY_HAND, SPEC, Result("succeeded", "", "i"))
    assert [type(a) for a in found.actions] == [ReplaceJob]


@pytest.mark.parametrize(
    ("variable", "run"), [("i j", "i"), ("i my job", None), ("i", None), ("", None), (" j", None), ("i jj", None)]
)
def test_the_run_is_that_of_this_job_alone(variable: str, run: str | None):
    assert submitted_run("j", {"HEET_INCARNATION": variable}) == run
