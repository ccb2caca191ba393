"""From targets to rounds: rank order, devices in place, hand-over only of free devices, swaps."""

from __future__ import annotations

from dataclasses import replace

from heet_elastic.coordinator.api import Allocate, Memory
from heet_elastic.model import AgentState, Allocation, Cause, Configuration, Failure, Frozen, Member, Result, Versioned
from tests.unit.decide_worlds import SETTINGS, Lab, agent, ask, host, planned, snapshot, spec, view


def allocations(decision) -> dict[str, Allocation]:
    return {a.job: a.allocation for a in decision.actions if isinstance(a, Allocate)}


def test_first_round_names_agents_and_devices_and_says_why():
    shot = snapshot([host("h1"), host("h2", "V100")], [view(spec("a"), [agent("a1", "h1"), agent("a2", "h2")])])
    decision = ask(shot, {"a": ("V100", 2)})
    assert allocations(decision) == {
        "a": Allocation(
            round=1,
            cause=Cause.PLAN,
            members=(Member("a2", "h2", ("h2-g0", "h2-g1")),),
            reason="granted 2 x V100 on 1 host: this coordinator has begun to lead",
            incarnation="run1",
            configuration=Configuration("V100", 2),
            leader="leader-1",
        )
    }


def test_growth_keeps_ranks_and_devices_and_puts_new_members_behind():
    running = planned(3, [("a2", "h2", ("h2-g1",)), ("a1", "h1", ("h1-g2", "h1-g0"))])
    agents = [agent(f"a{i}", f"h{i}", AgentState.RUNNING if i < 3 else AgentState.WAITING, 3) for i in (1, 2, 3)]
    shot = snapshot([host(f"h{i}") for i in (1, 2, 3)], [view(spec("a"), agents, running)])
    new = allocations(ask(shot, {"a": ("T4", 12)}))["a"]
    assert [m.agent for m in new.members] == ["a2", "a1", "a3"]
    assert new.members[0].gpus[:1] == ("h2-g1",)
    assert new.members[1].gpus[:2] == ("h1-g2", "h1-g0")
    assert (new.round, new.world_size, new.grace, new.releasing) == (4, 12, True, ())


def test_shrink_keeps_the_first_devices_and_lists_what_is_not_yet_free():
    running = planned(3, [("a1", "h1", ("h1-g0", "h1-g1", "h1-g2", "h1-g3"))])
    shot = snapshot([host("h1")], [view(spec("a"), [agent("a1", "h1", AgentState.RUNNING, 3)], running)])
    new = allocations(ask(shot, {"a": ("T4", 1)}))["a"]
    assert new.members == (Member("a1", "h1", ("h1-g0",)),)
    assert new.releasing == (Member("a1", "h1", ("h1-g1", "h1-g2", "h1-g3")),)


def test_restarts_used_are_carried_over():
    running = planned(3, [("a1", "h1", ("h1-g0",))], restarts_used=2)
    shot = snapshot([host("h1")], [view(spec("a"), [agent("a1", "h1", AgentState.RUNNING, 3)], running)])
    assert allocations(ask(shot, {"a": ("T4", 2)}))["a"].restarts_used == 2


def test_a_device_changes_hands_only_after_the_old_agent_reports_it_free():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    lab.submit(spec("b"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.policy = {"a": ("T4", 1), "b": ("T4", 1)}
    lab.decide()
    assert lab.gpus("a") == {"a1": ("h1-g0",)}
    assert lab.gpus("b") == {}
    assert lab.decision.reasons["b"] == "gets 1 x T4 on h1, waits for 1 GPU of h1 that job a is releasing"
    lab.react("a", "a1")  # its workers are ending
    lab.decide()
    assert lab.gpus("b") == {}
    lab.react("a", "a1")  # they are gone
    lab.decide()
    assert lab.gpus("b") == {"b1": ("h1-g1",)}
    lab.calm()
    assert lab.overlaps == []


def test_a_new_leader_sees_the_same_devices_as_not_yet_free():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    lab.submit(spec("b"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.policy = {"a": ("T4", 1), "b": ("T4", 1)}
    lab.decide()
    lab.memory = Memory()
    lab.decide()
    assert lab.gpus("b") == {}
    lab.react("a", "a1")
    lab.react("a", "a1")
    lab.decide()
    assert lab.gpus("b") == {"b1": ("h1-g1",)}


def test_after_a_round_that_members_wrote_no_free_device_of_an_unfinished_agents_host_is_granted():
    # a1 left round 4, which its peers wrote: nothing says which devices it still holds.
    now = planned(4, [("a2", "h2", ("h2-g0",))], Cause.MEMBERSHIP)
    a = view(spec("a"), [agent("a1", "h1", AgentState.LEAVING, 3), agent("a2", "h2", AgentState.RUNNING, 4)], now)
    b = view(spec("b"), [agent("b1", "h1")])
    shot = snapshot([host("h1"), host("h2")], [a, b])
    decision = ask(shot, {"a": ("T4", 1), "b": ("T4", 4)})
    assert "b" not in allocations(decision)
    assert decision.reasons["b"] == "gets 4 x T4 on h1, waits for 4 GPUs of h1 that job a is releasing"
    gone = view(spec("a"), [agent("a2", "h2", AgentState.RUNNING, 4)], now)
    assert "b" in allocations(ask(snapshot([host("h1"), host("h2")], [gone, b]), {"a": ("T4", 1), "b": ("T4", 4)}))


def test_two_jobs_that_swap_hosts_do_not_wait_for_each_other_for_ever():
    lab = Lab([host("h1", "T4", 2), host("h2", "V100", 2)], {"a": ("T4", 2), "b": ("V100", 2)})
    for job in "ab":
        lab.submit(spec(job))
        lab.put_agent(job, agent(f"{job}1", "h1"))
        lab.put_agent(job, agent(f"{job}2", "h2"))
    lab.calm()
    lab.policy = {"a": ("V100", 2), "b": ("T4", 2)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.calm()
    assert lab.gpus("a") == {"a2": ("h2-g0", "h2-g1")}
    assert lab.gpus("b") == {"b1": ("h1-g0", "h1-g1")}
    assert lab.overlaps == []


def test_three_jobs_in_a_circle_with_a_bystander_on_the_same_hosts_get_on():
    hosts = [host("h1", "T4", 3), host("h2", "V100", 3), host("h3", "A100", 3)]
    lab = Lab(hosts, {"a": ("T4", 2), "b": ("V100", 2), "c": ("A100", 2), "d": ("T4", 1)})
    for job in "abcd":
        lab.submit(spec(job))
        for h in hosts:
            lab.put_agent(job, agent(f"{job}-{h.name}", h.name))
    lab.calm()
    lab.policy = {"a": ("V100", 3), "b": ("A100", 3), "c": ("T4", 2), "d": ("T4", 1)}
    lab.memory = replace(lab.memory, chosen_at=None)
    lab.calm()
    assert [sum(map(len, lab.gpus(j).values())) for j in "abcd"] == [3, 3, 2, 1]
    assert lab.overlaps == []


def test_an_agent_that_has_what_another_agent_of_its_job_is_to_get_gives_it_back():
    # MIN = 2 agents, and only h2 is left: both of its GPUs are a1's, one of them is to be a2's.
    running = planned(3, [("a1", "h2", ("h2-g0", "h2-g1")), ("a0", "h1", ("h1-g0",))])
    lab = Lab([host("h1", gpus=1), host("h2", gpus=2)], {"a": ("T4", 2), "b": ("T4", 1)})
    lab.submit(spec("a", (2, 4)))
    lab.submit(spec("b"))
    lab._put("a", allocation=lab._versioned(running))
    lab.put_agent("a", agent("a1", "h2", AgentState.RUNNING, 3))
    lab.put_agent("a", agent("a2", "h2"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.using["a1"] = frozenset({("h2", "h2-g0"), ("h2", "h2-g1")})
    lab.calm()
    assert lab.gpus("a") == {"a1": ("h2-g0",), "a2": ("h2-g1",)}
    assert lab.gpus("b") == {"b1": ("h1-g0",)}
    assert lab.overlaps == []


def test_no_plan_touches_a_job_that_finishes_fails_or_has_ended():
    running = planned(3, [("a1", "h1", ("h1-g0",)), ("a2", "h2", ("h2-g0",))])
    both = [agent("a1", "h1", AgentState.RUNNING, 3), agent("a2", "h2", AgentState.RUNNING, 3)]
    failed = [agent("a1", "h1", AgentState.FAILED, 3), both[1]]
    frozen = Versioned(Frozen("a1", 3, "run1"), 5, 5)
    ended = Versioned(Result("succeeded", "", "run1"), 6, 6)
    hosts = [host("h1"), host("h2")]
    wanted = {"a": ("T4", 8)}
    assert "a" in allocations(ask(snapshot(hosts, [view(spec("a"), both, running)]), wanted))
    for touched in (
        view(spec("a"), both, running, frozen=frozen),
        view(spec("a"), failed, running),
        view(spec("a"), both, running, result=ended),
    ):
        assert allocations(ask(snapshot(hosts, [touched]), wanted)) == {}


def test_an_agent_in_a_round_that_the_store_does_not_know_stops_all_plans_for_its_job():
    emptied = view(spec("a"), [agent("a1", "h1", AgentState.RUNNING, 7), agent("a2", "h1")])
    decision = ask(snapshot([host("h1")], [emptied]), {"a": ("T4", 4)})
    assert allocations(decision) == {}
    assert decision.reasons["a"] == "its agents are in a round that the store does not know: they write it again"


def test_a_lost_member_is_replaced_by_a_waiting_agent_without_grace():
    running = planned(3, [("a1", "h1", ("h1-g0",)), ("a2", "h2", ("h2-g0",))])
    agents = [agent("a1", "h1", AgentState.RUNNING, 3), agent("a3", "h3")]
    shot = snapshot([host("h1", gpus=1), host("h3", gpus=1)], [view(spec("a"), agents, running)])
    new = allocations(ask(shot, {"a": ("T4", 2)}))["a"]
    assert [m.agent for m in new.members] == ["a1", "a3"]
    assert new.grace is False


def test_several_agents_on_one_host_are_each_a_node_of_the_minimum():
    agents = [agent("a1", "h1", most=2), agent("a2", "h1", most=2)]
    shot = snapshot([host("h1")], [view(spec("a", (2, 2)), agents)])
    new = allocations(ask(shot, {"a": ("T4", 4)}))["a"]
    assert [(m.agent, len(m.gpus)) for m in new.members] == [("a1", 2), ("a2", 2)]


def test_an_elastic_job_brings_in_a_second_agent_of_the_host_to_reach_its_minimum_of_nodes():
    agents = [agent("a1", "h1", most=4), agent("a2", "h1", most=4)]
    shot = snapshot([host("h1")], [view(spec("a", (2, 3)), agents)])
    new = allocations(ask(shot, {"a": ("T4", 3)}))["a"]
    assert sorted((m.agent, len(m.gpus)) for m in new.members) == [("a1", 2), ("a2", 1)]


def test_a_rigid_job_takes_whole_agents_or_waits():
    agents = [agent("a1", "h1", most=2), agent("a2", "h2", most=2)]
    one = snapshot([host("h1")], [view(spec("a", (2, 2)), agents[:1])])
    assert allocations(ask(one)) == {}
    two = snapshot([host("h1"), host("h2")], [view(spec("a", (2, 2)), agents)])
    assert [len(m.gpus) for m in allocations(ask(two))["a"].members] == [2, 2]


def test_a_rigid_job_with_unlike_agents_takes_all_of_each():
    agents = [agent("a1", "h1", most=2), agent("a2", "h2", most=1)]
    shot = snapshot([host("h1"), host("h2")], [view(spec("a", (2, 2)), agents)])
    assert {m.agent: len(m.gpus) for m in allocations(ask(shot))["a"].members} == {"a1": 2, "a2": 1}


def test_only_devices_that_an_agent_sees_are_granted_to_it():
    seen = {"a1": frozenset({"h1-g2", "h1-g3"})}
    shot = snapshot([host("h1", visible=seen)], [view(spec("a"), [agent("a1", "h1")])])
    assert allocations(ask(shot))["a"].members == (Member("a1", "h1", ("h1-g2", "h1-g3")),)


def test_unusable_and_foreign_locked_devices_are_not_granted():
    base = host("h1", locked=frozenset({"h1-g1"}))
    gpus = (replace(base.gpus[0], unusable="fell off the bus"), *base.gpus[1:])
    shot = snapshot([replace(base, gpus=gpus)], [view(spec("a"), [agent("a1", "h1")])])
    assert allocations(ask(shot))["a"].members == (Member("a1", "h1", ("h1-g2", "h1-g3")),)


def test_a_job_leaves_a_device_that_became_unusable():
    base = host("h1", gpus=2)
    gpus = (replace(base.gpus[0], unusable="uncorrectable errors"), base.gpus[1])
    running = planned(3, [("a1", "h1", ("h1-g0",))])
    shot = snapshot([replace(base, gpus=gpus)], [view(spec("a"), [agent("a1", "h1", AgentState.RUNNING, 3)], running)])
    assert allocations(ask(shot, {"a": ("T4", 1)}))["a"].members == (Member("a1", "h1", ("h1-g1",)),)


def test_devices_of_a_vanished_host_are_not_granted_until_somebody_lives_there():
    # a's host h1 is gone as a whole, but for the store its round still stands: nothing is written for nobody.
    running = planned(3, [("a1", "h1", ("h1-g0",))])
    shot = snapshot([host("h2")], [view(spec("a"), [], running), view(spec("b"), [agent("b1", "h2")])])
    decision = ask(shot)
    assert set(allocations(decision)) == {"b"}
    assert all(m.host == "h2" for m in allocations(decision)["b"].members)


def test_a_dead_job_gives_its_devices_back_once_its_live_host_finds_them_unlocked():
    lab = Lab([host("h1", gpus=2)])
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    lab.submit(spec("b"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.drop_agent("a", "a1")
    lab.decide()
    assert lab.gpus("a") != {}
    assert lab.gpus("b") == {}
    lab.decide(seconds=SETTINGS.lock_report_s)
    lab.decide()
    assert lab.gpus("a") == {}
    assert lab.gpus("b") == {"b1": ("h1-g0", "h1-g1")}


def test_devices_of_an_ended_job_are_free_only_when_its_agents_are_through():
    running = planned(3, [("a1", "h1", ("h1-g0", "h1-g1", "h1-g2", "h1-g3"))])
    ended = Versioned(Result("cancelled", "", "run1"), 6, 6)
    b = view(spec("b"), [agent("b1", "h1")])
    stopping = view(spec("a"), [agent("a1", "h1", AgentState.STOPPING, 3)], running, result=ended)
    assert allocations(ask(snapshot([host("h1")], [stopping, b]))) == {}
    gone = view(spec("a"), [], running, result=ended)
    assert set(allocations(ask(snapshot([host("h1")], [gone, b])))) == {"b"}


def test_a_failure_of_an_earlier_round_stops_nothing():
    running = planned(4, [("a1", "h1", ("h1-g0",))], Cause.FAILURE)
    failure = {(3, "a1"): Versioned(Failure(3, "a1", "h1", 0, 1, "boom"), 9, 9)}
    shot = snapshot(
        [host("h1")], [view(spec("a"), [agent("a1", "h1", AgentState.RUNNING, 4)], running, failures=failure)]
    )
    assert allocations(ask(shot, {"a": ("T4", 2)}))["a"].world_size == 2
