"""Failure or membership change, who stays, and what the job becomes: the table of docs/protocol.md by plain calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Configuration,
    Done,
    Failure,
    Frozen,
    JobSpec,
    JobView,
    Member,
    Result,
    RoundStore,
    Versioned,
)
from heet_elastic.rendezvous.values import Local, ProtocolSettings, Timers, World
from heet_elastic.rendezvous.verdict import ending, fit, judge, must_answer, next_round

SPEC = JobSpec("j", "n", "i", min_hosts=1, max_hosts=4)
TIMES = ProtocolSettings(ttl_s=10, acknowledge_s=10)
NAMES = ("a", "b", "c")
ROUND = Allocation(
    5,
    Cause.PLAN,
    tuple(Member(n, f"h{n}", (f"g{n}",)) for n in NAMES),
    "",
    restarts_used=1,
    incarnation="i",
    configuration=Configuration("T4", 3, 3),
)
ME = Local("a", "ha", "127.0.0.1", 1, SPEC, 1, 3)


def record(name: str, state: AgentState = AgentState.RUNNING, round_: int = 5, **more: object) -> AgentRecord:
    return AgentRecord(name, f"h{name}", "127.0.0.1", state, round_, max_restarts=3, incarnation="i", **more)  # type: ignore[arg-type]


def failure(name: str, revision: int, **more: object) -> dict[tuple[int, str], Versioned[Failure]]:
    found = Failure(5, name, f"h{name}", NAMES.index(name), 1, f"boom {name}", **more)  # type: ignore[arg-type]
    return {(5, name): Versioned(found, revision, revision)}


def world(
    records: dict[str, tuple[AgentRecord, int]] | None = None,
    failures: dict[tuple[int, str], Versioned[Failure]] | None = None,
    **more: object,
) -> World:
    agents = {n: Versioned(record(n), 1, 10) for n in NAMES}
    for name, (changed, revision) in (records or {}).items():
        agents[name] = Versioned(changed, 1, revision)
    view = JobView("j", spec=Versioned(SPEC, 1, 1), allocation=Versioned(ROUND, 2, 9), agents=agents)
    stores = {5: RoundStore(5, "a", "127.0.0.1", 1)}
    return World(replace(view, failures=failures or {}, stores=stores, **more), connected_since=0.0)  # type: ignore[arg-type]


def without(base: World, name: str) -> World:
    return replace(base, job=replace(base.job, agents={k: v for k, v in base.job.agents.items() if k != name}))


def at(now: float = 1000.0, **since: float) -> Timers:
    return Timers(now, since)


def test_a_round_in_which_all_is_well_stands():
    assert judge(world(), ROUND, ME, TIMES, at()) is None


def test_a_failure_is_no_verdict_before_everybody_has_answered():
    failed = world({"b": (record("b", AgentState.FAILED), 20), "a": (record("a"), 21)}, failure("b", 20))
    assert judge(failed, ROUND, ME, TIMES, at()) is None, "c has not put its record since"
    assert must_answer(failed.job, ROUND, "c")
    assert not must_answer(failed.job, ROUND, "a")
    assert not must_answer(failed.job, ROUND, "b"), "its failure and its record were one transaction"


def test_a_failure_that_all_have_answered_takes_one_restart():
    answered = {"a": (record("a"), 21), "b": (record("b", AgentState.FAILED), 20), "c": (record("c"), 22)}
    verdict = judge(world(answered, failure("b", 20)), ROUND, ME, TIMES, at())
    assert verdict is not None
    assert verdict.cause is Cause.FAILURE
    after = next_round(world(answered, failure("b", 20)), SPEC, ROUND, verdict)
    assert isinstance(after, Allocation)
    assert (after.round, after.restarts_used, after.grace) == (6, 2, False)
    assert after.members == ROUND.members
    assert after.reason == "rank 1 on hb failed: boom b"


def test_a_lost_host_behind_a_failure_is_a_membership_change_and_free():
    answered = {"a": (record("a", AgentState.FAILED), 20)}
    lost = without(world({**answered, "c": (record("c"), 21)}, failure("a", 20, secondary=True)), "b")
    verdict = judge(lost, ROUND, ME, TIMES, at())
    assert verdict is not None
    assert verdict.cause is Cause.MEMBERSHIP
    assert [m.agent for m in verdict.stay] == ["a", "c"]
    after = next_round(lost, SPEC, ROUND, verdict)
    assert isinstance(after, Allocation)
    assert after.restarts_used == 1
    assert after.configuration == Configuration("T4", 2, 2)


def test_who_does_not_answer_is_left_out_after_a_lease_and_a_second():
    answered = {"a": (record("a"), 21), "b": (record("b", AgentState.FAILED), 20)}
    silent = world(answered, failure("b", 20))
    assert judge(silent, ROUND, ME, TIMES, at(1000.0, **{"silent:5": 990.0})) is None
    verdict = judge(silent, ROUND, ME, TIMES, at(1000.0, **{"silent:5": 988.5}))
    assert verdict is not None
    assert verdict.cause is Cause.MEMBERSHIP
    assert [m.agent for m in verdict.stay] == ["a", "b"]


def test_absence_counts_only_after_a_lease_of_own_contact():
    early = replace(without(world(), "b"), connected_since=995.0)
    assert judge(early, ROUND, ME, TIMES, at()) is None
    assert judge(replace(early, connected_since=980.0), ROUND, ME, TIMES, at()) is not None


def test_a_worker_that_died_of_a_foreign_sigterm_waits_for_its_agent_to_leave():
    by_signal = record("b", AgentState.FAILED, died_of_sigterm=True)
    answered = {"a": (record("a"), 21), "b": (by_signal, 20), "c": (record("c"), 22)}
    hit = world(answered, failure("b", 20))
    assert judge(hit, ROUND, ME, TIMES, at()) is None
    later = judge(hit, ROUND, ME, TIMES, at(1000.0, **{"sigterm:5": 998.9}))
    assert later is not None
    assert later.cause is Cause.FAILURE
    leaving = world({**answered, "b": (record("b", AgentState.LEAVING), 23)}, failure("b", 20))
    gone = judge(leaving, ROUND, ME, TIMES, at())
    assert gone is not None
    assert gone.cause is Cause.MEMBERSHIP


def test_the_error_shown_is_the_cause_and_not_its_echo():
    found = failure("a", 20, secondary=True) | failure("c", 21)
    records = {n: (record(n, AgentState.FAILED), 20 + i) for i, n in enumerate(NAMES)}
    verdict = judge(world(records, found), ROUND, ME, TIMES, at())
    assert verdict is not None
    assert verdict.root is not None
    assert verdict.root.agent == "c"


def test_the_budget_is_the_smallest_of_the_agents_and_then_the_job_ends():
    answered = {n: (record(n), 21 + i) for i, n in enumerate(NAMES)}
    answered["b"] = (replace(record("b", AgentState.FAILED), max_restarts=1), 20)
    failed = world(answered, failure("b", 20))
    verdict = judge(failed, ROUND, ME, TIMES, at())
    assert verdict is not None
    after = next_round(failed, SPEC, ROUND, verdict)
    assert isinstance(after, Result)
    assert after.outcome == "failed"
    assert "all 1 restarts are used" in after.reason


@pytest.mark.parametrize(("steps", "ends"), [(0, True), (7, False)])
def test_c13_the_same_exception_everywhere_before_any_step_ends_the_job_at_once(steps: int, ends: bool):
    found: dict[tuple[int, str], Versioned[Failure]] = {}
    for i, name in enumerate(NAMES):
        found |= failure(name, 20 + i, place="ModuleNotFoundError at train.py:3", steps=steps)
    records = {n: (record(n, AgentState.FAILED), 20 + i) for i, n in enumerate(NAMES)}
    failed = world(records, found)
    verdict = judge(failed, ROUND, ME, TIMES, at())
    assert verdict is not None
    assert isinstance(next_round(failed, SPEC, ROUND, verdict), Result) is ends


def test_a_busy_device_and_a_silent_rank_0_are_left_out():
    busy = record("b", AgentState.STARTING, busy=("gb",), busy_holder="pid 7")
    verdict = judge(world({"b": (busy, 12)}), ROUND, ME, TIMES, at())
    assert verdict is not None
    assert "hb cannot use gb: held by pid 7" in verdict.reason
    forming = world({"a": (record("a", AgentState.STARTING), 12)})
    unpublished = replace(forming, job=replace(forming.job, stores={}))
    assert judge(unpublished, ROUND, ME, TIMES, at()) is None
    late = judge(unpublished, ROUND, ME, TIMES, at(1000.0, **{"publish:5": 989.0}))
    assert late is not None
    assert [m.agent for m in late.stay] == ["b", "c"]


def test_a_slow_checkpoint_is_no_absence_but_a_worker_that_cannot_be_killed_is():
    old = world({"b": (record("b", AgentState.RUNNING, 4), 8)})
    assert judge(old, ROUND, ME, TIMES, at(1000.0, **{"stopping:5:b": 940.0})) is None
    stuck = judge(old, ROUND, ME, TIMES, at(1000.0, **{"stopping:5:b": 934.0}))
    assert stuck is not None
    assert "has not stopped its old workers" in stuck.reason


def test_c08_finished_members_count_towards_the_minimum_and_are_left_out():
    spec = replace(SPEC, min_hosts=3)
    done = {"b": Done("b", 4, "i")}
    moved = replace(world(), job=replace(world().job, done=done, spec=Versioned(spec, 1, 1)))
    verdict = judge(moved, ROUND, ME, TIMES, at())
    assert verdict is not None
    after = next_round(moved, spec, ROUND, verdict)
    assert isinstance(after, Allocation)
    assert [m.agent for m in after.members] == ["a", "c"]


def test_the_job_has_succeeded_when_all_are_done_or_lost_without_a_failure():
    done = {n: Done(n, 5, "i") for n in "ab"}
    frozen = Versioned(Frozen("a", 5, "i"), 3, 3)
    some = replace(world(), job=replace(world().job, done=done, frozen=frozen))
    assert ending(some, ROUND, ME, TIMES, at()) is None
    lost = without(some, "c")
    end = ending(lost, ROUND, ME, TIMES, at())
    assert end is not None
    assert end.outcome == "succeeded"
    assert "agent c on hc is lost" in end.reason
    failed = replace(lost, job=replace(lost.job, failures=failure("c", 20)))
    assert ending(failed, ROUND, ME, TIMES, at()) is None


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, 6),
        (replace(SPEC, max_workers=5), 5),
        (replace(SPEC, multiple_of=4), 4),
        (replace(SPEC, allowed_workers=(1, 2)), 2),
        (replace(SPEC, min_hosts=4), 0),
        (replace(SPEC, max_hosts=2), 4),
        (replace(SPEC, min_hosts=3, max_hosts=3), 6),
        (replace(SPEC, min_workers=7), 0),
    ],
)
def test_survivors_are_cut_to_what_the_job_allows(spec: JobSpec, expected: int):
    members = [Member(n, n, (f"{n}0", f"{n}1")) for n in NAMES]
    kept = fit(spec, members, dict.fromkeys(NAMES, 2))
    assert sum(len(m.gpus) for m in kept) == expected
