"""The coordinator's loop over a store in memory: what it writes, when it keeps still, and how it takes over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from heet_elastic.coordinator.daemon import Coordinator
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import AgentState, Claim, Claims, Control, HostRecord, JobView, Result
from heet_elastic.store.api import Put, Store
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder
from tests.faults.injector import FaultScript, FaultyStore, touching
from tests.integration.processes import wait_until
from tests.unit.decide_worlds import agent, host, planned, spec

KEYS = Keys()
SETTINGS = CoordinatorSettings(
    policy="fifo",
    predictor="line",
    settle_s=0.0,
    settle_most_s=0.0,
    cooldown_s=0.0,
    ttl_s=2.0,
    recovery_window_s=0.4,
    late_join_s=5.0,
)
SOON = 20.0


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    memory = MemoryStore()
    yield memory
    memory.close()


@contextmanager
def running(store: Store, name: str = "c1", **more: Any) -> Iterator[Coordinator]:
    coordinator = Coordinator(store, replace(SETTINGS, **more), name, seed=0)
    thread = threading.Thread(target=coordinator.run, name=name)
    thread.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()
        thread.join(SOON)
        assert not thread.is_alive()


class Cluster:
    """Records of one host and of jobs with one agent each, under a lease that lasts."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lease = store.lease(600.0)
        self.put(KEYS.host("h1", "a1"), HostRecord("h1", "a1", "10.0.0.1", "boot", host("h1").gpus))

    def put(self, key: str, record: object, leased: bool = True) -> None:
        self.store.txn([], [Put(key, encode(record), self.lease.id if leased else 0)])

    def job(self, job: str, **more: Any) -> None:
        self.put(KEYS.spec(job), spec(job, **more), leased=False)
        self.put(KEYS.agent(job, f"{job}1"), agent(f"{job}1", "h1"))

    def snapshot(self) -> Any:
        return SnapshotDecoder(KEYS).decode(self.store.read(KEYS.root)).snapshot

    def view(self, job: str) -> Any:
        return self.snapshot().jobs.get(job, JobView(job))

    def round(self, job: str) -> int:
        view = self.view(job)
        return view.allocation.record.round if view.allocation else 0


def test_a_job_gets_its_round_with_status_and_account_and_the_epoch_came_before(store):
    cluster = Cluster(store)
    with running(store) as coordinator:
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "a round")
        view: Any = wait_until(lambda: v if (v := cluster.view("a")).status and v.account else None, SOON, "a status")
        assert coordinator.leading
        snapshot = cluster.snapshot()
    epoch = store.read(KEYS.epoch).entries[KEYS.epoch]
    assert snapshot.epoch is not None
    assert epoch.create_revision < view.allocation.create_revision
    assert view.allocation.record.leader == snapshot.leader.record.uuid
    assert view.status.record.reason
    assert view.account.record.incarnation == "run1"


def test_a_coordinator_that_stops_takes_its_leadership_along(store):
    with running(store):
        wait_until(lambda: KEYS.leader in store.read(KEYS.leader).entries, SOON, "somebody leads")
    assert store.read(KEYS.leader).entries == {}


def test_a_standby_says_who_leads_and_takes_over_what_runs(store, caplog):
    caplog.set_level(logging.INFO)
    cluster = Cluster(store)
    cluster.job("a")
    with running(store, "c1") as first:
        wait_until(lambda: first.leading and cluster.round("a") == 1, SOON, "c1 plans")
        with running(store, "c2") as second:
            wait_until(lambda: "standby: c1 (pid" in caplog.text, SOON, "c2 says that it stands by")
            first.stop()
            wait_until(lambda: second.leading, SOON, "c2 leads")
            cluster.job("b")
            wait_until(lambda: (s := cluster.view("b").status) and s.record.reason, SOON, "c2 decides")
            assert cluster.round("a") == 1, "what runs is adopted as it is"


def test_c35_a_leader_whose_lease_ended_unnoticed_steps_down_without_having_written(store):
    cluster = Cluster(store)
    script = FaultScript()
    fault = script.lose_leases_at(1, tell=False, touches=touching("/jobs/late/allocation"))
    with running(FaultyStore(store, script), "c1") as first:
        wait_until(lambda: first.leading, SOON, "c1 leads")
        lost_term = cluster.snapshot().leader.record.uuid
        with running(store, "c2"):
            cluster.job("late")
            wait_until(lambda: cluster.round("late") == 1, SOON, "whoever leads next plans")
            assert fault.fired
            view = cluster.view("late")
            assert view.allocation.record.leader != lost_term, "the term that ended wrote"
            assert view.allocation.create_revision == view.allocation.mod_revision, "written once"


@pytest.mark.parametrize("applied", [True, False])
def test_a_round_whose_fate_is_unknown_is_looked_at_again(store, applied: bool):
    cluster = Cluster(store)
    script = FaultScript()
    fault = script.unknown_txn_at(1, applied, touches=touching("/allocation"))
    with running(FaultyStore(store, script)):
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "the round is there")
        wait_until(lambda: cluster.view("a").status, SOON, "the decision after it")
        assert fault.fired
        view = cluster.view("a")
        assert (view.allocation.record.round, len(view.allocation.record.members)) == (1, 1)
        assert view.allocation.create_revision == view.allocation.mod_revision


def test_a_write_that_lost_a_race_is_decided_again(store):
    cluster = Cluster(store)
    script = FaultScript()
    fault = script.lost_txn_at(1, touches=touching("/allocation"))
    with running(FaultyStore(store, script)):
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "the round is there")
        assert fault.fired


def test_c34_nothing_is_decided_right_after_the_store_was_emptied(store, caplog):
    caplog.set_level(logging.INFO)
    cluster = Cluster(store)
    with running(store, recovery_window_s=1.0) as coordinator:
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "a round")
        running_round = cluster.view("a").allocation.record
        store.wipe()
        again = Cluster(store)
        again.job("other")
        wait_until(lambda: "another store answers" in caplog.text, SOON, "it notices")
        wait_until(lambda: coordinator.leading, SOON, "it leads in the new store")
        assert again.round("other") == 0, "the agents of a have not yet put their round back"
        again.put(KEYS.spec("a"), spec("a"), leased=False)
        again.put(KEYS.agent("a", "a1"), agent("a1", "h1", AgentState.RUNNING, 1))
        again.put(KEYS.allocation("a"), running_round, leased=False)
        wait_until(lambda: (s := again.view("other").status) and s.record.reason, SOON, "it decides again")
        assert again.view("a").allocation.record == running_round
        assert again.round("other") == 0, "a holds all devices"


def test_claims_are_deleted_and_rounds_formed_without_a_coordinator_adopted(store):
    cluster = Cluster(store)
    formed = replace(planned(3, [("a1", "h1", ("h1-g0",))]), leader="")
    cluster.put(KEYS.spec("a"), spec("a", hosts=(1, 1)), leased=False)
    cluster.put(KEYS.agent("a", "a1"), agent("a1", "h1", AgentState.RUNNING, 3, most=1))
    cluster.put(KEYS.allocation("a"), formed, leased=False)
    cluster.put(KEYS.claims("h1"), Claims("h1", (Claim("a", "a1", 3, ("h1-g0",)),)))
    with running(store):
        wait_until(lambda: not cluster.snapshot().claims, SOON, "claims are gone")
        wait_until(lambda: cluster.view("a").status, SOON, "a decision")
        assert cluster.view("a").allocation.record == formed


def test_a_cancelled_job_gets_a_result_and_latecomers_are_told(store):
    cluster = Cluster(store)
    with running(store):
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "a round")
        cluster.put(KEYS.control("a"), Control(action="cancel"), leased=False)
        wait_until(lambda: cluster.view("a").result and cluster.view("a").ended, SOON, "an end")
        assert cluster.view("a").result.record.outcome == "cancelled"
        assert store.read(KEYS.ended("a")).entries[KEYS.ended("a")].lease != 0


def test_an_ended_job_is_forgotten_with_all_its_keys(store):
    cluster = Cluster(store)
    cluster.put(KEYS.spec("old"), spec("old"), leased=False)
    cluster.put(KEYS.result("old"), Result("succeeded", "", "run1"), leased=False)
    with running(store, retention_s=0.2):
        wait_until(lambda: "old" not in cluster.snapshot().jobs, SOON, "it is forgotten")
    assert [k for k in store.read(KEYS.jobs).entries if "old" in k] == []


def test_what_cannot_be_read_is_reported_once_and_skipped(store, caplog):
    caplog.set_level(logging.WARNING)
    cluster = Cluster(store)
    store.txn([], [Put(KEYS.spec("broken"), b"{not json")])
    with running(store):
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "the other job gets its round")
        cluster.job("b")
        wait_until(lambda: cluster.view("b").status, SOON, "another decision")
    assert caplog.text.count("skipped what cannot be read") == 1


def test_a_reason_is_logged_when_it_changes_and_not_before(store, caplog):
    caplog.set_level(logging.INFO)
    cluster = Cluster(store)
    with running(store):
        cluster.job("a")
        wait_until(lambda: cluster.round("a") == 1, SOON, "a round")
        for n in range(5):  # samples, records: nothing that calls for a choice
            cluster.put(KEYS.agent("a", "a1"), agent("a1", "h1", pid=n))
        cluster.job("b")
        wait_until(lambda: cluster.view("b").status, SOON, "b is looked at")
    reasons = [r.message for r in caplog.records if "heet_elastic.coordinator" in r.name]
    assert len(reasons) == len(set(reasons))
