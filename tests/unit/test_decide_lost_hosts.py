"""Two live copies of a job must be impossible; hosts that fail again and again are left alone for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heet_elastic.coordinator.api import Unwant, Want
from heet_elastic.coordinator.decide.accounts import strike
from heet_elastic.model import Account, AgentState, Cause, Exclusion, Failure, Versioned
from tests.unit.decide_worlds import SETTINGS, Lab, agent, host, planned, spec


def lost_job(**settings: Any) -> Lab:
    """A job that ran on h1 alone; h1 vanished, an agent of the job waits on h2."""
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 1)})
    lab.settings = replace(SETTINGS, **settings)
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    assert lab.gpus("a") == {"a1": ("h1-g0",)}
    lab.put_agent("a", agent("a2", "h2"))
    lab.drop_agent("a", "a1")
    lab.hosts = {n: h for n, h in lab.hosts.items() if n != "h1"}
    return lab


def test_a_lost_round_without_survivors_is_not_formed_again_elsewhere():
    lab = lost_job()
    for _ in range(5):
        lab.decide(seconds=1000.0)
        assert lab.gpus("a") == {"a1": ("h1-g0",)}
    assert lab.decision.reasons["a"].startswith("waits until h1 is proven quiet")
    assert "heet release a h1" in lab.decision.reasons["a"]


def test_a_person_can_declare_the_host_dead():
    lab = lost_job()
    lab.decide()
    lab.control("a", released=("h1",))
    lab.decide()
    assert lab.gpus("a") == {"a2": ("h2-g0",)}


def test_what_a_person_said_of_an_earlier_round_does_not_count_for_a_later_one():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 1)})
    lab.submit(spec("a"))
    lab.control("a", released=("h1",))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    lab.put_agent("a", agent("a2", "h2"))
    lab.drop_agent("a", "a1")
    del lab.hosts["h1"]
    lab.decide()
    assert "proven quiet" in lab.decision.reasons["a"]


def test_the_fence_time_proves_a_cut_off_host_quiet():
    lab = lost_job(fence_time_s=60.0)
    lab.decide()
    lab.decide(seconds=65.0)
    assert lab.gpus("a") == {"a1": ("h1-g0",)}
    lab.decide(seconds=10.0)
    assert lab.gpus("a") == {"a2": ("h2-g0",)}


def test_a_new_boot_proves_the_host_quiet_at_once():
    lab = lost_job()
    lab.decide()
    lab.hosts["h1"] = host("h1", gpus=1, boot_id="another boot", locked=frozenset({"h1-g0"}))
    lab.decide()
    assert lab.round("a").members[0].agent == "a2"


def test_a_live_process_that_finds_the_devices_unlocked_proves_it_but_not_at_once():
    lab = lost_job()
    lab.decide()
    lab.hosts["h1"] = host("h1", gpus=1)
    lab.decide()
    assert lab.gpus("a") == {"a1": ("h1-g0",)}
    lab.decide(seconds=SETTINGS.lock_report_s)
    assert lab.gpus("a") == {"a2": ("h2-g0",)}


def test_devices_still_locked_there_prove_the_contrary():
    lab = lost_job()
    lab.decide()
    lab.hosts["h1"] = host("h1", gpus=1, locked=frozenset({"h1-g0"}))
    lab.decide(seconds=1000.0)
    assert lab.gpus("a") == {"a1": ("h1-g0",)}


def test_a_new_agent_there_may_take_the_same_devices_at_once_because_their_locks_prove_it():
    lab = lost_job()
    lab.drop_agent("a", "a2")
    lab.decide()
    lab.hosts["h1"] = host("h1", gpus=1)
    lab.put_agent("a", agent("a3", "h1"))
    lab.decide()
    assert lab.gpus("a") == {"a3": ("h1-g0",)}


def test_if_a_member_survives_the_others_are_replaced_at_once():
    lab = Lab([host(f"h{i}", gpus=1) for i in (1, 2, 3)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    for i in (1, 2):
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
    lab.calm()
    lab.put_agent("a", agent("a3", "h3"))
    lab.drop_agent("a", "a1")
    del lab.hosts["h1"]
    lab.decide()
    assert set(lab.gpus("a")) == {"a2", "a3"}


def test_a_round_given_back_by_a_vanished_only_member_still_needs_proof():
    # The plan that paused the job lists h1's devices as not yet free; then h1 vanishes.
    lab = lost_job()
    lab.put_agent("a", agent("a1", "h1", AgentState.RUNNING, 1))
    lab.hosts["h1"] = host("h1", gpus=1)
    lab.drop_agent("a", "a2")
    lab.control("a", action="pause")
    lab.decide()
    assert lab.round("a").members == ()
    lab.drop_agent("a", "a1")
    del lab.hosts["h1"]
    lab.put_agent("a", agent("a2", "h2"))
    lab.control("a", action="run")
    lab.decide()
    assert lab.round("a").members == ()
    assert "proven quiet" in lab.decision.reasons["a"]


# ---- exclusions


def test_strikes_double_the_exclusion_up_to_the_limit():
    account, lengths = Account(), []
    for _ in range(8):
        account = strike(account, "h1", "why", SETTINGS)
        lengths.append(account.exclusions[0].remaining_s)
    assert lengths == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_c11_an_agent_that_joins_and_dies_at_once_gets_its_host_excluded_visibly():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 2)})
    lab.settings = replace(SETTINGS, ttl_s=2.0)
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    restarts = 0
    for n in range(20):  # once every 3 s, a minute long
        lab.put_agent("a", agent(f"flap{n}", "h2"))
        lab.decide()
        lab.decide()
        joined = f"flap{n}" in lab.gpus("a")
        lab.drop_agent("a", f"flap{n}")
        lab.decide()
        lab.put_agent("a", agent("a1", "h1", AgentState.RUNNING, lab.round("a").round))
        restarts += 2 * joined
    assert restarts <= 3
    assert lab.views["a"].account.record.exclusions[0].host == "h2"
    assert any("h2 is excluded" in line for line in lab.views["a"].status.record.details)


def test_an_exclusion_ends_and_is_longer_the_next_time():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    for i in (1, 2):
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
    lab.decide()
    lab.put_agent("a", agent("a1", "h1", AgentState.RUNNING, 1))
    lab.drop_agent("a", "a2")
    lab.decide()
    lab.put_agent("a", agent("a3", "h2"))
    lab.decide()
    assert set(lab.gpus("a")) == {"a1"}
    assert lab.decision.wake_in_s == pytest.approx(59.0)
    lab.decide(seconds=59.5)
    assert set(lab.gpus("a")) == {"a1", "a3"}
    lab.drop_agent("a", "a3")
    lab.decide()
    (exclusion,) = lab.views["a"].account.record.exclusions
    assert (exclusion.strikes, exclusion.remaining_s) == (2, 120.0)


def test_an_agent_that_trained_for_a_while_before_it_died_costs_its_host_nothing():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    for i in (1, 2):
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
    lab.calm()
    lab.decide(seconds=60.0)
    lab.drop_agent("a", "a2")
    lab.decide()
    lab.put_agent("a", agent("a3", "h2"))
    lab.decide()
    assert set(lab.gpus("a")) == {"a1", "a3"}


def test_an_agent_that_the_others_left_out_is_not_planned_again_at_once():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    for i in (1, 2):
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
    lab.calm()
    without = planned(2, [("a1", "h1", ("h1-g0",))], Cause.MEMBERSHIP)
    lab._put("a", allocation=lab._versioned(without, lab.views["a"].allocation))
    lab.decide()
    assert set(lab.gpus("a")) == {"a1"}
    assert lab.views["a"].account.record.exclusions[0].host == "h2"


def test_a_host_where_workers_fail_first_twice_in_a_row_is_left():
    lab = Lab([host("h1", gpus=1), host("h2", gpus=1), host("h3", gpus=1)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    for i in (1, 2):
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
    lab.calm()
    lab.put_agent("a", agent("a3", "h3"))
    lab.calm()
    failures = {}
    for n in (1, 2):
        failures[n, "a2"] = Versioned(Failure(n, "a2", "h2", 1, 1, "CUDA error: ECC"), 10 * n, 10 * n)
        failures[n, "a1"] = Versioned(Failure(n, "a1", "h1", 0, 1, "gloo: peer closed", secondary=True), 9 * n, 9 * n)
        members = [("a1", "h1", ("h1-g0",)), ("a2", "h2", ("h2-g0",))]
        new = planned(n + 1, members, Cause.FAILURE, restarts_used=n)
        for i in (1, 2):
            lab.put_agent("a", agent(f"a{i}", f"h{i}", AgentState.RUNNING, n + 1))
        lab._put("a", failures=dict(failures), allocation=lab._versioned(new, lab.views["a"].allocation))
        lab.decide()
    assert set(lab.gpus("a")) == {"a1", "a3"}
    assert lab.round("a").restarts_used == 2


def test_a_busy_device_is_avoided_for_a_while():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 1)})
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.decide()
    assert lab.gpus("a") == {"a1": ("h1-g0",)}
    lab.put_agent("a", agent("a1", "h1", AgentState.STARTING, 1, busy=("h1-g0",), busy_holder="python (pid 7)"))
    lab.decide()
    assert lab.gpus("a") == {"a1": ("h1-g1",)}


# ---- heet-agents


def test_a_heet_agent_is_asked_first_and_the_round_names_its_agent_once_it_waits():
    lab = Lab([host("h1", agents=["heet-agent:h1"])], {"a": ("T4", 4)})
    lab.submit(spec("a", submitted=True))
    decision = lab.decide()
    assert [(a.job, a.wanted.host) for a in decision.actions if isinstance(a, Want)] == [("a", "h1")]
    assert decision.reasons["a"] == "gets 4 x T4 on h1, waits for the heet-agent of h1 to start torchrun"
    assert lab.round("a") is None
    assert not [a for a in lab.decide().actions if isinstance(a, Want)]
    lab.put_agent("a", agent("a1", "h1"))
    lab.decide()
    assert set(lab.gpus("a")) == {"a1"}
    assert set(lab.views["a"].wanted) == {"h1"}


def test_a_heet_agent_that_starts_nothing_in_time_is_excluded_for_that_job():
    lab = Lab([host("h1", agents=["heet-agent:h1"])], {"a": ("T4", 4)})
    lab.submit(spec("a", submitted=True))
    lab.decide()
    decision = lab.decide(seconds=SETTINGS.start_timeout_s + 1)
    assert [a for a in decision.actions if isinstance(a, Want)] == []
    lab.decide(seconds=SETTINGS.start_timeout_s)
    decision = lab.decide(seconds=0.0)
    assert set(lab.views["a"].wanted) == set()
    assert "h1 is excluded" in decision.reasons["a"]
    assert "started no torchrun" in decision.reasons["a"]


def test_a_job_started_by_hand_is_never_asked_of_a_heet_agent():
    lab = Lab([host("h1", agents=["heet-agent:h1"])], {"a": ("T4", 4)})
    lab.submit(spec("a"))
    decision = lab.decide()
    assert not [a for a in decision.actions if isinstance(a, Want)]
    assert decision.reasons["a"] == "no agent of it is here: start torchrun with --rdzv-id=a on 1 host"


def test_a_request_is_taken_back_when_the_job_has_nothing_there_any_more():
    lab = Lab([host("h1", agents=["heet-agent:h1"]), host("h2", "V100", agents=["heet-agent:h2"])], {"a": ("T4", 4)})
    lab.submit(spec("a", submitted=True))
    lab.decide()
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    lab.control("a", action="pause")
    lab.decide()
    decision = lab.decide()
    assert [a for a in decision.actions if isinstance(a, Unwant)] == [Unwant("a", "h1")]


def test_exclusion_records_survive_in_the_account_for_a_new_leader():
    lab = Lab([host("h1")], {"a": ("T4", 4)})
    lab.submit(spec("a"))
    kept = Account("run1", exclusions=(Exclusion("h1", 30.0, 1, "flaps"),))
    lab._put("a", account=lab._versioned(kept))
    lab.put_agent("a", agent("a1", "h1"))
    lab.decide()
    assert lab.round("a") is None
    lab.decide(seconds=31.0)
    assert set(lab.gpus("a")) == {"a1"}


def test_a_job_that_moves_as_a_whole_stops_before_it_starts_elsewhere():
    lab = Lab([host("h1", gpus=1), host("v1", "V100", gpus=1)], {"a": ("T4", 1)})
    lab.submit(spec("a"))
    for name, where in (("a1", "h1"), ("a2", "v1")):
        lab.put_agent("a", agent(name, where))
    lab.calm()
    lab.policy = {"a": ("V100", 1)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.decide()
    assert lab.round("a").members == ()
    lab.react("a", "a1")  # its workers are saving
    lab.decide()
    assert lab.round("a").members == ()
    assert lab.decision.reasons["a"] == "gets 1 x V100 on v1, waits until its workers on h1 have ended"
    lab.react("a", "a1")
    lab.decide()
    assert set(lab.gpus("a")) == {"a2"}
    assert lab.views["a"].account.record.rescales == 0, "it is counted once the round is seen"
    lab.calm()
    lab.decide(seconds=SETTINGS.account_interval_s)
    assert lab.views["a"].account.record.rescales == 1


def test_a_host_lost_twice_must_be_proven_quiet_twice():
    lab = lost_job(fence_time_s=60.0)
    lab.decide()
    lab.hosts["h1"] = host("h1", gpus=1, boot_id="second boot")
    lab.put_agent("a", agent("a3", "h1"))
    lab.drop_agent("a", "a2")
    lab.calm()
    assert set(lab.gpus("a")) == {"a3"}
    lab.decide(seconds=500.0)
    lab.drop_agent("a", "a3")
    lab.put_agent("a", agent("a4", "h2"))
    del lab.hosts["h1"]
    lab.decide(seconds=10.0)
    lab.decide(seconds=10.0)
    assert set(lab.gpus("a")) == {"a3"}
    assert "proven quiet" in lab.decision.reasons["a"]
