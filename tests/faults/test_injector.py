"""The fault injector does what it says, over the memory store and over a real etcd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Committed, Lost, Put, absent
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from tests.faults.injector import FaultScript, FaultyStore, touching
from tests.store.labs import EtcdLab, Lab, MemoryLab, Recorder, new_etcd, wait_until

A, B = "/t/a", "/t/b"


@pytest.fixture(params=["memory", "etcd"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    one: Lab = MemoryLab() if request.param == "memory" else EtcdLab(new_etcd(tmp_path), "/t/", own=True)
    yield one
    one.close()


def values(lab: Lab) -> dict[str, bytes]:
    return {k: e.value for k, e in lab.store.read("/t/").entries.items()}


def test_a_lost_transaction_is_not_applied(lab: Lab) -> None:
    script = FaultScript()
    fault = script.lost_txn_at(2)
    store = FaultyStore(lab.store, script)
    assert isinstance(store.txn([], [Put(A, b"1")]), Committed)
    assert not fault.fired
    assert isinstance(store.txn([absent(B)], [Put(B, b"2")]), Lost)
    assert isinstance(store.txn([absent(B)], [Put(B, b"3")]), Committed)
    assert fault.fired
    assert values(lab) == {A: b"1", B: b"3"}


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_transaction_was_applied_or_not(lab: Lab, applied: bool) -> None:
    script = FaultScript()
    fault = script.unknown_txn_at(1, applied, touching("/b"))
    store = FaultyStore(lab.store, script)
    store.txn([], [Put(A, b"1")])
    with pytest.raises(StoreUnavailableError):
        store.txn([], [Put(B, b"2")])
    assert fault.fired
    assert (B in values(lab)) is applied


def test_a_late_transaction_competes_with_what_happened_since(lab: Lab) -> None:
    script = FaultScript()
    script.late_txn_at(1, after_calls=2)
    script.late_txn_at(2, after_calls=2)
    store = FaultyStore(lab.store, script)
    for key in (A, B):
        with pytest.raises(StoreUnavailableError):
            store.txn([absent(key)], [Put(key, b"late")])
    lab.store.txn([], [Put(B, b"other")])
    assert list(store.read("/t/").entries) == [A, B]
    store.read("/t/")
    assert values(lab) == {A: b"late", B: b"other"}
    assert script.unfired() == []


def test_unavailable_calls_have_no_effect(lab: Lab) -> None:
    script = FaultScript()
    script.unavailable_from(2, 3)
    store = FaultyStore(lab.store, script)
    store.txn([], [Put(A, b"1")])
    for call in (lambda: store.read("/t/"), lambda: store.txn([], [Put(B, b"")]), lambda: store.lease(1.0)):
        with pytest.raises(StoreUnavailableError):
            call()
    assert list(store.read("/t/").entries) == [A]
    assert script.unfired() == []


@pytest.mark.parametrize("tell", [True, False])
def test_leases_end_with_or_without_their_holders_knowledge(lab: Lab, tell: bool) -> None:
    script, told = FaultScript(), list[str]()
    fault = script.lose_leases_at(2, tell)
    store = FaultyStore(lab.store, script)
    lease = store.lease(60.0, told.append)
    store.txn([], [Put(A, b"", lease.id)])
    assert isinstance(store.txn([], [Put(B, b"", lease.id)]), Lost)
    assert fault.fired
    assert values(lab) == {}
    assert lease.alive is not tell
    assert bool(told) is tell


def test_batches_come_twice_or_late_in_order_and_a_mirror_bears_it(lab: Lab) -> None:
    script = FaultScript()
    script.duplicate_batch_at(1)
    script.hold_batches_at(2, 2)
    store, recorder = FaultyStore(lab.store, script), Recorder(lab.store, "/t/")
    watch = store.watch("/t/", lab.store.read("/t/").revision, recorder.on_events, recorder.on_resync)
    for n in range(4):
        lab.store.txn([], [Put(f"/t/{n}", b"")])
    recorder.wait(lambda r: len(r.batches) == 5)
    assert recorder.keys == ["/t/0", "/t/0", "/t/1", "/t/2", "/t/3"]
    assert script.unfired() == []
    watch.close()

    # The store's order is restored by a mirror whatever comes twice, and however late.
    again = FaultScript()
    again.replay_batch_at(1)
    again.duplicate_batch_at(2)
    again.resync_at(4)
    mirror = Mirror(FaultyStore(lab.store, again), "/t/", Keys())
    revisions: list[int] = []
    mirror.listen(lambda: revisions.append(mirror.view.revision))
    mirror.start()
    for n in range(5):
        lab.store.txn([], [Put("/t/x", b"%d" % n)])
    lab.store.txn([], [Put("/t/last", b"")])
    wait_until(lambda: "/t/last" in mirror.view.entries)
    assert mirror.view == lab.store.read("/t/")
    assert revisions == sorted(revisions)
    assert mirror.generation == 2
    assert again.unfired() == []
    mirror.close()


def test_a_client_that_is_cut_off_hears_nothing_and_catches_up_when_healed(lab: Lab) -> None:
    store = FaultyStore(lab.store)
    mirror = Mirror(store, "/t/", Keys())
    mirror.start()
    store.cut()
    lab.store.txn([], [Put(A, b"1")])
    with pytest.raises(StoreUnavailableError):
        store.read("/t/")
    assert mirror.silent_for_s() > 0
    assert not mirror.connected
    assert mirror.view.entries == {}
    store.heal()
    wait_until(lambda: A in mirror.view.entries)
    wait_until(lambda: mirror.connected)
    store.close()
    mirror.close()
