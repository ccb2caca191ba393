"""Two coordinators, three members of etcd: who dies is replaced, and training does not notice."""

from __future__ import annotations

import time
from pathlib import Path

from heet_elastic.model import LeaderRecord
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode
from tests.integration.harness import Cluster
from tests.integration.processes import wait_until
from tests.store.labs import three_members

SLOW = 90.0
FAST = ("--cooldown-s=0", "--ttl-s=2", "--recovery-window-s=3")
IDLE = ["--no-group"]


def leader(lab: Cluster) -> int:
    """Pid of the coordinator that leads; 0 = none."""
    with lab.store() as store:
        entry = store.read(Keys().leader).entries.get(Keys().leader)
        return decode(entry.key, entry.value, LeaderRecord).pid if entry else 0


def test_a_killed_leader_is_replaced_and_the_new_one_plans_from_the_store_alone(lab: Cluster):
    coordinators = {p.pid: p for p in (lab.start_coordinator(*FAST), lab.start_coordinator(*FAST))}
    first = wait_until(lambda: leader(lab), SLOW, "somebody leads")
    other = next(p for pid, p in coordinators.items() if pid != first)
    wait_until(lambda: f"(pid {first}, policy" in other.output, SLOW, "the standby says who leads")
    a = lab.torchrun(host="a", nnodes="1:3", args=IDLE)
    lab.wait_step(world=1, timeout_s=SLOW)
    coordinators[first].kill()
    wait_until(lambda: leader(lab) == other.pid, SLOW, "the standby leads")
    starts, at = len(lab.events(kind="START")), time.monotonic()
    lab.torchrun(host="b", nnodes="1:3", args=IDLE)
    lab.wait_step(world=2, after=at, timeout_s=SLOW)
    assert len(lab.events(kind="START")) == starts + 2, "one round, for the join alone"
    assert a.alive


def test_c35_a_leader_that_was_stopped_for_three_leases_finds_another_one_and_writes_nothing(lab: Cluster):
    coordinators = {p.pid: p for p in (lab.start_coordinator(*FAST), lab.start_coordinator(*FAST))}
    first = wait_until(lambda: leader(lab), SLOW, "somebody leads")
    other = next(p for pid, p in coordinators.items() if pid != first)
    coordinators[first].freeze()
    wait_until(lambda: leader(lab) == other.pid, SLOW, "the standby leads")
    agents = [lab.torchrun(host=h, nnodes="1:2", args=IDLE) for h in "ab"]
    lab.wait_step(world=2, timeout_s=SLOW)
    starts, at = len(lab.events(kind="START")), time.monotonic()
    coordinators[first].thaw()
    wait_until(lambda: "leads no more" in coordinators[first].output, SLOW, "the old leader notices")
    lab.wait_step(world=2, after=at + 3, timeout_s=SLOW)
    assert leader(lab) == other.pid
    assert len(lab.events(kind="START")) == starts
    assert all(a.alive for a in agents)


def test_a_member_of_etcd_killed_three_times_in_turn_changes_no_round(lab: Cluster, tmp_path: Path):
    with three_members(tmp_path / "members") as members:
        endpoint = ",".join(member.endpoint for member in members)
        agents = [lab.torchrun(host=h, nnodes="1:2", endpoint=endpoint, args=IDLE, conf={"ttl_s": 8}) for h in "ab"]
        lab.wait_step(world=2, timeout_s=SLOW)
        starts = len(lab.events(kind="START"))
        for member in members:
            member.kill()
            at = time.monotonic()
            lab.wait_step(world=2, after=at + 2, timeout_s=SLOW)
            member.start()
        settings = EtcdSettings(parse_endpoints(endpoint), timeout_s=5.0)
        at = time.monotonic()
        lab.wait_step(world=2, after=at + 9, timeout_s=SLOW)
        store = EtcdStore(settings)
        records = list(store.read(Keys().agents("j")).entries)
        store.close()
        assert len(records) == 2
        assert len(lab.events(kind="START")) == starts
        assert all(a.alive for a in agents)
        for agent in agents:
            agent.terminate()
            agent.wait(SLOW)
