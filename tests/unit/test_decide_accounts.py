"""Durations that outlive a coordinator, learned rescale costs, ends, profiles and retention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heet_elastic.coordinator.api import Axes, DropClaims, Forget, Memory, SetAccount, SetProfile, SetResult, Table
from heet_elastic.coordinator.decide.accounts import advance
from heet_elastic.model import (
    Account,
    Cell,
    Claims,
    Configuration,
    Done,
    Frozen,
    Profile,
    Result,
    SampleRecord,
    Versioned,
)
from tests.unit.decide_worlds import SETTINGS, Lab, agent, ask, host, row, snapshot, spec, view


def running_lab(**settings: Any) -> Lab:
    lab = Lab([host("h1"), host("h2", "V100")], {"a": ("T4", 2)})
    lab.settings = replace(SETTINGS, **settings)
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.put_agent("a", agent("a2", "h2"))
    lab.decide(seconds=0.0)
    return lab


def entry(lab: Lab, job: str = "a") -> Account:
    """The account as it stands now."""
    known = lab.memory.entries[job]
    return advance(known, lab.memory.states[job], lab.now, lab.memory.layout.type_of).account


def test_time_with_and_without_workers_is_told_apart():
    lab = running_lab()
    lab.decide(seconds=0.0)
    lab.decide(seconds=100.0)
    account = entry(lab)
    assert (account.age_s, account.ran_s, account.waited_s) == (100.0, 100.0, 0.0)
    assert account.received_s == (("T4", 200.0),)
    lab.control("a", action="pause")
    lab.decide(seconds=0.0)
    lab.decide(seconds=0.0)
    lab.decide(seconds=50.0)
    account = entry(lab)
    assert (account.age_s, account.ran_s, account.waited_s, account.paused) == (150.0, 100.0, 50.0, True)


def test_gpu_seconds_are_kept_by_host_type():
    lab = running_lab()
    lab.decide(seconds=0.0)
    lab.policy = {"a": ("V100", 1)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.decide(seconds=10.0)  # gives the T4s back
    lab.decide(seconds=0.0)
    lab.decide(seconds=0.0)
    lab.decide(seconds=7.0)
    assert entry(lab).received_s == (("T4", 20.0), ("V100", 7.0))


def test_rescales_count_from_the_second_round_on_and_restart_the_cooldown():
    lab = running_lab()
    lab.decide(seconds=0.0)
    assert (entry(lab).rescales, entry(lab).since_rescale_s) == (0, 0.0)
    lab.policy = {"a": ("T4", 4)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.decide(seconds=40.0)
    lab.decide(seconds=0.0)
    lab.decide(seconds=5.0)
    assert (entry(lab).rescales, entry(lab).since_rescale_s) == (1, 5.0)


def test_a_new_leader_goes_on_where_the_old_one_saved():
    lab = running_lab()
    lab.decide(seconds=0.0)
    lab.decide(seconds=100.0)
    assert lab.views["a"].account.record == entry(lab)
    lab.memory = Memory()
    lab.now = 7.0  # another host's clock
    lab.decide(seconds=0.0)
    lab.decide(seconds=20.0)
    account = entry(lab)
    assert (account.age_s, account.ran_s, account.rounds_seen, account.rescales) == (120.0, 120.0, 1, 0)


def test_passing_time_alone_is_saved_only_now_and_then():
    lab = running_lab(account_interval_s=30.0)
    lab.decide(seconds=0.0)
    saves = [sum(isinstance(a, SetAccount) for a in lab.decide(seconds=10.0).actions) for _ in range(6)]
    assert saves == [0, 0, 1, 0, 0, 1]


def test_the_cost_of_growing_and_shrinking_is_learned_from_round_to_first_samples():
    lab = running_lab()
    lab.decide(seconds=0.0)  # sees round 1
    lab.decide(seconds=12.0)
    lab._put("a", samples={"a1": SampleRecord("a1", 1)})
    lab.decide(seconds=0.0)
    assert (entry(lab).rescale_up_s, entry(lab).rescale_down_s) == (12.0, None)
    lab.policy = {"a": ("T4", 1)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.decide(seconds=60.0)
    lab.decide(seconds=0.0)
    lab.decide(seconds=3.0)
    lab._put("a", samples={"a1": SampleRecord("a1", 2)})
    lab.decide(seconds=0.0)
    assert (entry(lab).rescale_up_s, entry(lab).rescale_down_s) == (12.0, 3.0)


def test_another_incarnation_starts_a_new_account():
    lab = running_lab()
    lab.decide(seconds=0.0)
    lab.decide(seconds=100.0)
    lab._put("a", spec=lab._versioned(replace(spec("a"), incarnation="run2")), allocation=None)
    lab.decide(seconds=5.0)
    lab.decide(seconds=5.0)
    assert (entry(lab).incarnation, entry(lab).age_s) == ("run2", 5.0)


# ---- ends


def test_a_cancelled_job_gets_its_result_first_and_nothing_else():
    lab = running_lab()
    lab.control("a", action="cancel")
    decision = lab.decide()
    assert decision.actions[0] == SetResult("a", Result("cancelled", "a person cancelled it", "run1", 1, exit_code=7))
    assert decision.reasons["a"] == "cancelled: a person cancelled it"
    assert not [a for a in lab.decide().actions if isinstance(a, SetResult)]


def test_a_finishing_job_whose_other_members_are_lost_has_succeeded_and_that_is_said():
    lab = running_lab()
    lab.policy = {"a": ("T4", 1)}
    lab._put("a", frozen=Versioned(Frozen("a1", 1, "run1"), 5, 5), done={"a9": Done("a9", 1, "run1")})
    lab.drop_agent("a", "a1")
    lab.drop_agent("a", "a2")
    assert not [a for a in lab.decide().actions if isinstance(a, SetResult)]
    decision = lab.decide(seconds=SETTINGS.ttl_s)
    (result,) = [a.result for a in decision.actions if isinstance(a, SetResult)]
    assert result.outcome == "succeeded"
    assert result.reason == "1 agent ended well; a1 lost without a failure of their own"


def test_a_finishing_job_with_a_live_member_is_left_to_its_members():
    lab = running_lab()
    lab._put("a", frozen=Versioned(Frozen("a1", 1, "run1"), 5, 5), done={"a9": Done("a9", 1, "run1")})
    for _ in range(3):
        assert not [a for a in lab.decide(seconds=100.0).actions if isinstance(a, SetResult)]


def test_an_ended_job_leaves_a_profile_of_what_was_measured():
    lab = running_lab()
    axes = Axes(("T4", "V100"), 8, (4, 4))
    cells = ((Configuration("T4", 2), Cell(20.0, 60.0, 30)),)
    lab.table = Table(axes, {"a": row(axes, {"T4": 10.0}, cells=cells, done=500.0)})
    lab.decide()
    lab._put("a", result=Versioned(Result("succeeded", "", "run1"), 6, 6))
    profiles = [a for a in lab.decide().actions if isinstance(a, SetProfile)]
    assert profiles == [SetProfile("a", Profile("a", cells, work=500.0))]
    assert not [a for a in lab.decide().actions if isinstance(a, SetProfile)]


def test_what_remains_of_a_job_of_unknown_work_is_taken_from_past_jobs_of_its_name():
    from tests.unit.test_decide_choice import Counting

    policy = Counting()
    axes = Axes(("T4",), 8, (4,))
    table = Table(axes, {j: row(axes, {"T4": 10.0}, done=d) for j, d in (("a", 100.0), ("b", 100.0), ("c", 0.0))})
    named = [view(replace(spec(j), name=n), [agent(f"{j}1", "h1")]) for j, n in (("a", "x"), ("b", "y"), ("c", "z"))]
    shot = snapshot([host("h1")], named, profiles={"x": Profile("x", (), work=1000.0)})
    ask(shot, policy, table=table)
    assert policy.problems[-1].remaining_J.tolist() == [900.0, 100.0, 6000.0]


def test_ended_and_abandoned_jobs_are_forgotten_after_their_retention():
    lab = running_lab(retention_s=1000.0)
    lab.submit(spec("b"))
    lab._put("a", result=Versioned(Result("succeeded", "", "run1"), 6, 6))
    lab.decide()
    assert not [a for a in lab.decide(seconds=2000.0).actions if isinstance(a, Forget)][1:]
    lab.drop_agent("a", "a1")
    lab.drop_agent("a", "a2")
    lab.decide()
    lab.decide(seconds=999.0)
    assert "a" in lab.views
    decision = lab.decide(seconds=2.0)
    assert Forget("a") in decision.actions
    lab.decide()
    assert lab.memory.states.keys() <= {"b"}


def test_a_submitted_job_that_waits_for_capacity_is_not_abandoned():
    lab = Lab([host("h1")], {})
    lab.settings = replace(SETTINGS, retention_s=10.0)
    lab.submit(spec("a", submitted=True))
    lab.decide()
    assert not [a for a in lab.decide(seconds=100.0).actions if isinstance(a, Forget)]


def test_of_too_many_ended_jobs_the_oldest_go_first():
    lab = Lab([host("h1")], {})
    lab.settings = replace(SETTINGS, retained_jobs=2)
    for n in range(5):
        lab.submit(spec(f"j{n}"))
        lab._put(f"j{n}", result=Versioned(Result("succeeded", "", "run1"), 100 - n, 100 - n))
    decision = lab.decide()
    assert [a.job for a in decision.actions if isinstance(a, Forget)] == ["j4", "j3", "j2"]


def test_a_job_whose_latecomers_may_still_come_is_kept():
    lab = Lab([host("h1")], {})
    lab.settings = replace(SETTINGS, retention_s=0.0)
    lab.submit(spec("a"))
    lab._put("a", result=Versioned(Result("succeeded", "", "run1"), 6, 6), ended=True)
    assert not [a for a in lab.decide().actions if isinstance(a, Forget)]


def test_claims_of_self_formed_rounds_are_dropped_by_the_first_decision():
    shot = snapshot([host("h1")], [], claims={"h1": Versioned(Claims("h1"), 3, 3)})
    assert DropClaims("h1") in ask(shot).actions


def test_running_rounds_are_adopted_as_they_are():
    lab = running_lab()
    lab.calm()
    before = lab.round("a")
    lab.memory = Memory()
    lab.decide()
    assert lab.round("a") == before


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e6])
def test_a_decision_right_after_or_long_after_another_is_no_special_case(seconds):
    lab = running_lab()
    lab.decide(seconds=seconds)
    assert lab.decision.wake_in_s >= 0.0
