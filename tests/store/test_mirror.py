"""The live copy of a prefix: follows, resyncs, says how long contact is lost, and never raises from a reader."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import LeaderRecord, Versioned
from heet_elastic.store.api import Delete, Lost, Put, View
from heet_elastic.store.fence import ensure_store_id, fence, read_store_id, same_leader
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import encode
from tests.faults.injector import FaultScript, FaultyStore
from tests.store.labs import EtcdLab, Lab, new_etcd, wait_until

KEYS = Keys()


def stepped() -> tuple[MemoryStore, Mirror]:
    """A store whose events come when the test pumps them, and a mirror of all of heet's keys."""
    store = MemoryStore(clock=lambda: 0.0, threads=False, store_id_key=KEYS.store_id)
    return store, Mirror(store, KEYS.root, KEYS)


def put(store: MemoryStore, name: str, value: bytes = b"") -> int:
    return store.txn([], [Put(KEYS.root + name, value)]).revision


def test_before_the_start_it_is_empty_and_answers() -> None:
    _, mirror = stepped()
    assert mirror.view == View(0)
    assert (mirror.generation, mirror.store_id, mirror.connected, mirror.silent_for_s()) == (0, b"", False, 0.0)
    assert mirror.wait(0, timeout_s=0.0) == View(0)


def test_the_start_reads_everything_and_gives_the_store_an_id() -> None:
    store, mirror = stepped()
    put(store, "x")
    mirror.start()
    assert set(mirror.view.entries) == {KEYS.root + "x", KEYS.store_id}
    assert mirror.view.revision == store.revision
    assert mirror.store_id == read_store_id(store, KEYS) != b""
    assert mirror.generation == 1
    assert mirror.connected


def test_a_reader_who_may_not_write_leaves_the_store_without_id() -> None:
    store, _ = stepped()
    mirror = Mirror(store, KEYS.root, KEYS, create_store_id=False)
    mirror.start()
    assert mirror.store_id == b""
    assert store.read("").entries == {}


def test_views_are_values_that_follow_the_store() -> None:
    store, mirror = stepped()
    mirror.start()
    first = mirror.view
    assert mirror.view is first
    revision = put(store, "x", b"1")
    assert mirror.view is first
    store.pump()
    second = mirror.view
    assert (second.revision, second.entries[KEYS.root + "x"].value) == (revision, b"1")
    store.txn([], [Delete(KEYS.root + "x")])
    store.pump()
    assert KEYS.root + "x" in second.entries
    assert KEYS.root + "x" not in mirror.view.entries
    assert KEYS.root + "x" not in first.entries
    assert mirror.view == store.read(KEYS.root)


def test_drain_tells_what_changed_since_the_last_time() -> None:
    store, mirror = stepped()
    mirror.start()
    assert mirror.drain() == (mirror.view, None)
    assert mirror.drain() == (mirror.view, frozenset())
    put(store, "x")
    put(store, "y")
    store.txn([], [Delete(KEYS.root + "x")])
    store.pump()
    assert mirror.drain()[1] == frozenset({KEYS.root + "x", KEYS.root + "y"})
    put(store, "z")
    store.wipe()
    store.pump()
    assert mirror.drain() == (mirror.view, None)


def test_an_emptied_store_starts_a_new_generation_with_a_new_id() -> None:
    store, mirror = stepped()
    put(store, "x")
    mirror.start()
    before = mirror.store_id
    store.wipe()
    store.pump()
    assert mirror.generation == 2
    assert set(mirror.view.entries) == {KEYS.store_id}
    assert mirror.store_id not in (before, b"")
    assert mirror.store_id == read_store_id(store, KEYS)


def test_listeners_hear_of_every_change_and_resync() -> None:
    store, mirror = stepped()
    heard: list[int] = []
    mirror.listen(lambda: heard.append(mirror.view.revision))
    mirror.start()
    revision = put(store, "x")
    store.pump()
    assert heard == [revision]
    store.wipe()
    store.pump()
    assert len(heard) == 2


def test_a_start_that_fails_may_be_tried_again() -> None:
    store, _ = stepped()
    script = FaultScript()
    script.unavailable_from(2)
    mirror = Mirror(FaultyStore(store, script), KEYS.root, KEYS)
    with pytest.raises(StoreUnavailableError):
        mirror.start()
    mirror.start()
    assert mirror.connected
    assert script.unfired() == []


class TestWaiting:
    def test_it_ends_with_the_change_that_is_waited_for(self) -> None:
        store = MemoryStore(store_id_key=KEYS.store_id)
        mirror = Mirror(store, KEYS.root, KEYS)
        mirror.start()
        seen = mirror.view.revision
        writer = threading.Timer(0.05, put, (store, "x"))
        writer.start()
        assert KEYS.root + "x" in mirror.wait(seen, timeout_s=20).entries
        writer.join()
        mirror.close()
        store.close()

    def test_own_writes_are_waited_for_by_their_revision(self) -> None:
        store = MemoryStore(store_id_key=KEYS.store_id)
        mirror = Mirror(store, KEYS.root, KEYS)
        mirror.start()
        for n in range(50):
            revision = put(store, "x", b"%d" % n)
            assert mirror.wait(revision - 1, timeout_s=20).entries[KEYS.root + "x"].value == b"%d" % n
        mirror.close()
        store.close()

    @pytest.mark.parametrize("end", ["wake", "close", "resync"])
    def test_it_ends_without_a_newer_revision_too(self, end: str) -> None:
        store, mirror = stepped()
        mirror.start()

        def emptied() -> None:
            store.wipe()
            store.pump()

        ends = {"wake": mirror.wake, "close": mirror.close, "resync": emptied}
        timer = threading.Timer(0.05, ends[end])
        start = time.monotonic()
        timer.start()
        mirror.wait(10**6, timeout_s=60)
        timer.join()
        assert time.monotonic() - start < 50

    def test_a_generation_that_has_passed_is_not_waited_for(self) -> None:
        store, mirror = stepped()
        for n in range(9):
            put(store, str(n))
        mirror.start()
        seen, generation = mirror.view.revision, mirror.generation
        store.wipe()
        store.pump()
        start = time.monotonic()
        assert mirror.wait(seen, timeout_s=60, generation=generation).revision < seen
        assert time.monotonic() - start < 50

    def test_it_ends_after_its_time(self) -> None:
        _, mirror = stepped()
        mirror.start()
        assert mirror.wait(10**6, timeout_s=0.01) == mirror.view


class TestFences:
    def test_of_many_starters_all_agree_on_one_store_id(self, lab: Lab) -> None:
        keys = Keys(lab.prefix + "heet")
        ids: list[bytes] = []
        go = threading.Barrier(8)

        def ensure() -> None:
            go.wait()
            ids.append(ensure_store_id(lab.store, keys))

        threads = [threading.Thread(target=ensure) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ids) == 8
        assert set(ids) == {read_store_id(lab.store, keys)}

    def test_a_leader_writes_until_another_is_elected_even_with_the_same_value(self, lab: Lab) -> None:
        keys, record = Keys(lab.prefix + "heet"), LeaderRecord("uuid", "h", 1, "heet")
        store_id = ensure_store_id(lab.store, keys)
        elected = lab.store.txn([], [Put(keys.leader, encode(record))])
        leader = Versioned(record, elected.revision, elected.revision)
        mine = fence(keys, store_id, leader)
        assert not isinstance(lab.store.txn(mine, [Put(keys.epoch, b"1")]), Lost)
        lab.store.txn([], [Delete(keys.leader)])
        assert isinstance(lab.store.txn(mine, [Put(keys.epoch, b"2")]), Lost)
        lab.store.txn([], [Put(keys.leader, encode(record))])
        assert isinstance(lab.store.txn(mine, [Put(keys.epoch, b"3")]), Lost)
        assert same_leader(keys, leader) == mine[1:]

    def test_nobody_writes_into_another_store(self, lab: Lab) -> None:
        keys = Keys(lab.prefix + "heet")
        store_id = ensure_store_id(lab.store, keys)
        lab.store.txn([], [Put(keys.store_id, b"another")])
        assert isinstance(lab.store.txn(fence(keys, store_id), [Put(keys.epoch, b"")]), Lost)


class TestOnEtcd:
    @pytest.fixture
    def lab(self, tmp_path: Path):
        one = EtcdLab(new_etcd(tmp_path), KEYS.root, own=True)
        yield one
        one.close()

    def test_an_outage_is_told_and_survived_with_and_without_the_data(self, lab: EtcdLab) -> None:
        mirror = Mirror(lab.store, KEYS.job("j"), KEYS)
        mirror.start()
        wait_until(lambda: mirror.connected)
        before = mirror.store_id
        lab.store.txn([], [Put(KEYS.spec("j"), b"1")])
        wait_until(lambda: KEYS.spec("j") in mirror.view.entries)

        lab.down()
        wait_until(lambda: mirror.silent_for_s() > 0.2)
        assert not mirror.connected
        assert KEYS.spec("j") in mirror.view.entries
        lab.up()
        wait_until(lambda: mirror.connected)
        assert (mirror.generation, mirror.store_id) == (1, before)

        lab.down()
        lab.up_emptied()
        wait_until(lambda: mirror.generation == 2 and mirror.connected)
        assert mirror.view.entries == {}
        assert mirror.store_id == read_store_id(lab.store, KEYS) != before
        mirror.close()
