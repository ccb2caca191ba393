"""Who leads: one at a time, whatever becomes of the writes, and a stale leader writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from heet_elastic.coordinator.election import Term, campaign
from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Committed, Lost, Put, Store
from heet_elastic.store.fence import ensure_store_id
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from tests.faults.injector import FaultScript, FaultyStore, touching

KEYS = Keys()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    memory = MemoryStore()
    ensure_store_id(memory, KEYS)
    yield memory
    memory.close()


def run(store: Store, name: str = "c1") -> Any:
    return campaign(store, KEYS, ensure_store_id(store, KEYS), name, "heet", "0", 5.0, lambda _: None)


def write(store: Store, term: Term) -> object:
    return store.txn(term.compares(KEYS), [Put(KEYS.epoch, b"written")])


def leads(store: Store) -> bool:
    return KEYS.leader in store.read(KEYS.leader).entries


def test_the_first_leads_and_the_second_stands_by(store):
    first = run(store, "c1")
    assert first is not None
    assert first.leader.record.host == "c1"
    assert run(store, "c2") is None
    assert isinstance(write(store, first), Committed)


def test_a_leader_that_resigns_is_followed_at_once(store):
    first = run(store, "c1")
    first.resign()
    assert not leads(store)
    second = run(store, "c2")
    assert second is not None
    assert second.leader.record.uuid != first.leader.record.uuid


def test_the_loser_leaves_no_lease_behind(store):
    run(store, "c1")
    before = set(store._leases)
    assert run(store, "c2") is None
    assert set(store._leases) == before


def test_an_unknown_campaign_that_was_applied_is_a_term(store):
    script = FaultScript()
    fault = script.unknown_txn_at(1, applied=True, touches=touching("/leader"))
    term = run(FaultyStore(store, script))
    assert fault.fired
    assert term is not None
    assert isinstance(write(store, term), Committed)


def test_an_unknown_campaign_that_was_not_applied_is_none(store):
    script = FaultScript()
    fault = script.unknown_txn_at(1, applied=False, touches=touching("/leader"))
    assert run(FaultyStore(store, script)) is None
    assert fault.fired
    assert not leads(store)


def test_a_campaign_that_arrives_late_leads_nobody(store):
    script = FaultScript()
    fault = script.late_txn_at(1, after_calls=1, touches=touching("/leader"))
    faulty = FaultyStore(store, script)
    term = run(faulty)
    assert fault.fired
    faulty.read(KEYS.root)
    assert (term is not None) == leads(store), "it leads exactly if its key is there"


def test_no_answer_at_all_is_an_error_and_leaves_no_lease(store):
    script = FaultScript()
    script.unknown_txn_at(1, applied=False, touches=touching("/leader"))
    faulty = FaultyStore(store, script)
    store_id = ensure_store_id(store, KEYS)
    script.unavailable_from(3, 1)  # lease, transaction, and then the look whether it was applied
    with pytest.raises(StoreUnavailableError):
        campaign(faulty, KEYS, store_id, "c1", "heet", "0", 5.0, lambda _: None)
    assert not leads(store)


def test_c35_a_leader_whose_lease_ended_unnoticed_writes_nothing_any_more(store):
    first = run(store, "c1")
    store.expire(first.lease.id, tell=False)
    assert isinstance(write(store, first), Lost)
    second = run(store, "c2")
    assert isinstance(write(store, first), Lost)
    assert isinstance(write(store, second), Committed)


def test_a_leader_of_an_emptied_store_writes_nothing_though_revisions_repeat(store):
    first = run(store, "c1")
    store.wipe()
    ensure_store_id(store, KEYS)
    again = run(store, "c1")
    assert again.leader.create_revision == first.leader.create_revision, "revisions alone would not tell"
    assert isinstance(write(store, first), Lost)
    assert isinstance(write(store, again), Committed)
