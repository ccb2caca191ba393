"""Short stories of the protocol that must end one way: fencing, recovery, spares, two runs under one id."""

from __future__ import annotations

from dataclasses import replace

from heet_elastic.model import Cause, JobSpec
from heet_elastic.rendezvous.values import Order, WorkerState
from tests.properties.protocol_lab import JOB, SETTINGS, Lab, LabAgent

SPEC = JobSpec(JOB, "n", "i", min_hosts=1, max_hosts=3)
UNFENCED = replace(SETTINGS, fence_s=0.0)


def running(lab: Lab, hosts: str) -> list[LabAgent]:
    agents = [lab.start(f"h{h}") for h in hosts]
    lab.settle(5)
    assert all(a.running for a in agents)
    return agents


def test_a_cut_off_agent_stops_its_workers_after_the_fence_time_and_joins_again_afterwards():
    lab = Lab(SPEC, hosts=3)
    a, b = running(lab, "ab")
    lab.settle(SETTINGS.flap_window_s + 5, dt=1.0)  # else it would count as one that joins and dies
    lab.cut(b)
    lab.settle(SETTINGS.fence_s + 2)
    assert b.local.workers is WorkerState.NONE
    assert a.running
    lab.reconnect(b)
    lab.settle(10)
    assert a.running
    assert b.running
    assert a.local.workers_round == b.local.workers_round


def test_agents_that_were_all_fenced_form_the_job_again_when_the_store_is_back():
    lab = Lab(SPEC, hosts=3)
    agents = running(lab, "ab")
    before = agents[0].local.workers_round
    for agent in agents:
        lab.cut(agent)
    lab.settle(SETTINGS.fence_s + 2)
    assert not any(a.running for a in agents)
    for agent in agents:
        lab.reconnect(agent)
    lab.settle(12)
    assert all(a.running for a in agents)
    assert agents[0].local.workers_round > before
    assert lab.view().allocation.record.restarts_used == 0  # type: ignore[union-attr]


def test_an_outage_shorter_than_the_fence_time_changes_nothing():
    lab = Lab(SPEC, hosts=3)
    agents = running(lab, "ab")
    round_ = agents[0].local.workers_round
    for agent in agents:
        lab.cut(agent)
    lab.settle(SETTINGS.fence_s - 1)
    for agent in agents:
        lab.reconnect(agent)
    lab.settle(10)
    assert [a.local.workers_round for a in agents] == [round_, round_]


def test_an_emptied_store_gets_its_highest_round_back_and_nobody_restarts():
    lab = Lab(SPEC, hosts=3)
    agents = running(lab, "abc")
    known = lab.view().allocation.record  # type: ignore[union-attr]
    lab.wipe()
    lab.settle(6)
    assert lab.view().allocation.record == known  # type: ignore[union-attr]
    assert all(a.running and a.local.workers_round == known.round for a in agents)


def test_a_newcomer_that_is_faster_in_an_emptied_store_joins_the_old_run():
    lab = Lab(SPEC, hosts=3)
    a, b = running(lab, "ab")
    for agent in (a, b):
        lab.cut(agent)
    lab.wipe()
    new = lab.start("hc")
    for _ in range(3):
        lab.tick(new)
    for agent in (a, b):
        lab.reconnect(agent)
    lab.settle(10)
    assert all(x.running for x in (a, b, new))
    assert len({x.local.workers_round for x in (a, b, new)}) == 1


def test_another_job_under_a_live_id_is_refused_and_after_its_end_it_is_a_new_run():
    lab = Lab(SPEC, hosts=3)
    (a,) = running(lab, "a")
    other = lab.start("hb", spec=replace(SPEC, script="other.py"))
    lab.tick(other)
    assert other.exit == "refused" or other.target.order is Order.REFUSE
    lab.worker_succeeds(a)
    lab.settle(3)
    assert lab.view().result is not None
    again = lab.start("hb", spec=replace(SPEC, script="other.py"))
    lab.settle(5)
    assert again.running
    assert lab.view().result is None


def test_the_cause_of_every_round_is_told():
    lab = Lab(SPEC, hosts=3)
    a, b = running(lab, "ab")
    lab.worker_fails(a)
    lab.settle(3)
    allocation = lab.view().allocation.record  # type: ignore[union-attr]
    assert (allocation.cause, allocation.restarts_used) == (Cause.FAILURE, 1)
    lab.leave(b)
    lab.settle(3)
    allocation = lab.view().allocation.record  # type: ignore[union-attr]
    assert (allocation.cause, allocation.restarts_used) == (Cause.MEMBERSHIP, 1)
    assert "leaves" in allocation.reason


def cut_off_while_a_newcomer_joins(lab: Lab) -> tuple[LabAgent, LabAgent]:
    """a runs alone, writes the round of both, and is cut off before it sees it: its workers train on."""
    (a,) = running(lab, "a")
    b = lab.start("hb")
    for _ in range(200):
        lab.advance(0.1)
        b.fetch()
        b.step()
        b.obey()
        a.fetch()
        a.step()
        if lab.view().allocation.record.member(b.id):  # type: ignore[union-attr]
            lab.cut(a)
            return a, b
    raise AssertionError("b was never asked to join")


def test_a_newcomer_does_not_start_a_second_copy_while_the_only_survivor_is_cut_off():
    lab = Lab(SPEC, hosts=3, settings=UNFENCED)
    a, b = cut_off_while_a_newcomer_joins(lab)
    lab.settle(30)
    assert a.running
    assert not b.running
    assert "host ha vanished with workers of this job" in b.target.reason
    lab.reconnect(a)
    lab.settle(10)
    assert a.running
    assert b.running
    assert a.local.workers_round == b.local.workers_round


def test_a_newcomer_starts_once_the_survivors_host_is_proven_quiet():
    lab = Lab(SPEC, hosts=3, settings=UNFENCED)
    a, b = cut_off_while_a_newcomer_joins(lab)
    lab.settle(10)
    assert not b.running
    lab.crash(a)
    lab.settle(10)
    assert not b.running
    lab.start("ha")  # finds the devices unlocked
    lab.settle(10)
    assert b.running


def test_a_newcomer_starts_when_the_survivor_was_seen_to_stop_its_old_workers():
    lab = Lab(SPEC, hosts=3, settings=UNFENCED)
    (a,) = running(lab, "a")
    b = lab.start("hb")
    for _ in range(200):
        lab.advance(0.1)
        b.fetch()
        b.step()
        lab.tick(a)
        if a.local.asking:
            break
    lab.tick(a)
    b.fetch()
    b.step()
    lab.crash(a)
    lab.settle(10)
    assert b.running


def test_a_survivor_that_leaves_before_the_round_began_makes_room_when_its_workers_are_gone():
    lab = Lab(SPEC, hosts=3, settings=UNFENCED)
    a, b = cut_off_while_a_newcomer_joins(lab)
    lab.reconnect(a)
    lab.leave(a)
    a.step()  # its workers still save a checkpoint
    lab.advance(SETTINGS.ttl_s / 2)
    for _ in range(10):
        lab.advance(0.1)
        b.fetch()
        b.step()
        b.obey()
        assert not b.running
    lab.settle(10)
    assert a.id not in lab.agents
    assert b.running


def test_who_waits_for_a_host_that_is_left_alone_is_told_until_when():
    lab = Lab(replace(SPEC, min_hosts=2), hosts=3, settings=UNFENCED)
    a, b = running(lab, "ab")
    lab.crash(b)
    lab.settle(5)
    assert not a.running
    lab.start("hb")
    lab.settle(3)
    assert not a.running
    said = a.target.reason
    assert "hb is left alone for 60 s more: an agent there was lost soon after it had joined" in said
    lab.settle(SETTINGS.flap_window_s, dt=1.0)
    assert a.running
