"""What every store promises (heet_elastic.store.api), on the memory store and on a real etcd alike."""

from __future__ import annotations

import threading

import pytest

from heet_elastic.errors import StoreUnavailableError, UsageError
from heet_elastic.store.api import (
    MAX_TXN_OPERATIONS,
    MAX_VALUE_BYTES,
    Committed,
    Compare,
    Delete,
    Lost,
    Operation,
    Put,
    Watch,
    absent,
)
from tests.store.labs import STORE_ID_KEY, Lab, Recorder, wait_until


def watch(lab: Lab, recorder: Recorder, after_revision: int | None = None):
    """Follow the lab's prefix from now, or from a revision."""
    now = lab.store.read(lab.prefix).revision
    revision = now if after_revision is None else after_revision
    return lab.store.watch(lab.prefix, revision, recorder.on_events, recorder.on_resync)


class TestReadAndTransaction:
    def test_a_read_is_one_snapshot_of_exactly_the_prefix(self, lab: Lab) -> None:
        p = lab.prefix
        first = lab.store.txn([], [Put(p + "b", b"2"), Put(p + "a", b"1")])
        lab.store.txn([], [Put(p[:-1] + "0elsewhere", b"")])
        second = lab.store.txn([], [Put(p + "a", b"3")])
        assert isinstance(first, Committed)
        assert isinstance(second, Committed)
        view = lab.store.read(p)
        assert view.revision == second.revision
        assert list(view.entries) == [p + "a", p + "b"]
        a, b = view.entries[p + "a"], view.entries[p + "b"]
        assert (a.value, a.create_revision, a.mod_revision, a.lease) == (b"3", first.revision, second.revision, 0)
        assert (b.value, b.create_revision, b.mod_revision) == (b"2", first.revision, first.revision)

    def test_a_view_cannot_be_changed(self, lab: Lab) -> None:
        lab.store.txn([], [Put(lab.prefix + "a", b"1")])
        with pytest.raises(TypeError):
            lab.store.read(lab.prefix).entries[lab.prefix + "a"] = None  # type: ignore[index]

    def test_of_two_creators_one_wins_and_the_other_has_lost(self, lab: Lab) -> None:
        key = lab.prefix + "k"
        won = lab.store.txn([absent(key)], [Put(key, b"first")])
        lost = lab.client().txn([absent(key)], [Put(key, b"second")])
        assert isinstance(won, Committed)
        assert lost == Lost(won.revision)
        assert lab.store.read(key).entries[key].value == b"first"

    def test_of_many_creators_at_once_exactly_one_wins(self, lab: Lab) -> None:
        key, outcomes = lab.prefix + "k", []
        go = threading.Barrier(8)

        def create(n: int) -> None:
            go.wait()
            outcomes.append(lab.store.txn([absent(key)], [Put(key, b"%d" % n)]))

        threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(type(o).__name__ for o in outcomes) == ["Committed"] + ["Lost"] * 7

    @pytest.mark.parametrize("target", ["mod_revision", "create_revision", "value"])
    def test_each_compare_holds_for_what_is_there_and_for_nothing_else(self, lab: Lab, target: str) -> None:
        key = lab.prefix + "k"
        lab.store.txn([], [Put(key, b"1")])
        lab.store.txn([], [Put(key, b"2")])
        entry = lab.store.read(key).entries[key]
        right = getattr(entry, target)
        wrong = b"1" if target == "value" else right + 1
        assert isinstance(lab.store.txn([Compare(key, target, wrong)], [Delete(key)]), Lost)  # type: ignore[arg-type]
        assert isinstance(lab.store.txn([Compare(key, target, right)], [Delete(key)]), Committed)  # type: ignore[arg-type]

    def test_a_value_compare_never_holds_for_an_absent_key_but_revision_0_does(self, lab: Lab) -> None:
        key = lab.prefix + "k"
        assert isinstance(lab.store.txn([Compare(key, "value", b"")], []), Lost)
        assert isinstance(lab.store.txn([Compare(key, "mod_revision", 0), absent(key)], []), Committed)

    def test_all_compares_must_hold_and_nothing_is_written_otherwise(self, lab: Lab) -> None:
        a, b = lab.prefix + "a", lab.prefix + "b"
        lab.store.txn([], [Put(a, b"1")])
        assert isinstance(lab.store.txn([absent(b), absent(a)], [Put(b, b"x"), Delete(a)]), Lost)
        assert list(lab.store.read(lab.prefix).entries) == [a]

    def test_a_prefix_is_deleted_at_one_revision_and_an_absent_key_without_error(self, lab: Lab) -> None:
        p = lab.prefix
        lab.store.txn([], [Put(p + "x/1", b""), Put(p + "x/2", b""), Put(p + "y", b"")])
        assert isinstance(lab.store.txn([], [Delete(p + "x/", prefix=True), Delete(p + "absent")]), Committed)
        assert list(lab.store.read(p).entries) == [p + "y"]

    def test_a_transaction_that_changes_nothing_leaves_the_revision(self, lab: Lab) -> None:
        before = lab.store.read(lab.prefix).revision
        assert lab.store.txn([], [Delete(lab.prefix + "absent")]) == Committed(before)

    def test_values_are_bytes_of_any_kind(self, lab: Lab) -> None:
        value = bytes(range(256))
        lab.store.txn([], [Put(lab.prefix + "ü %/\U0001f600", value), Put(lab.prefix + "empty", b"")])
        entries = lab.store.read(lab.prefix).entries
        assert entries[lab.prefix + "ü %/\U0001f600"].value == value
        assert entries[lab.prefix + "empty"].value == b""


class TestLimits:
    def test_as_many_operations_as_allowed_pass_and_one_more_is_refused(self, lab: Lab) -> None:
        puts = [Put(f"{lab.prefix}{n:03d}", b"") for n in range(MAX_TXN_OPERATIONS + 1)]
        assert isinstance(lab.store.txn([], puts[:-1]), Committed)
        with pytest.raises(UsageError, match=r"129 operations.*at most 128"):
            lab.store.txn([], puts)
        with pytest.raises(UsageError, match="129 compares"):
            lab.store.txn([absent(put.key) for put in puts], [])
        assert len(lab.store.read(lab.prefix).entries) == MAX_TXN_OPERATIONS

    def test_a_value_of_1_mib_passes_and_one_byte_more_is_refused(self, lab: Lab) -> None:
        key = lab.prefix + "large"
        assert isinstance(lab.store.txn([], [Put(key, b"x" * MAX_VALUE_BYTES)]), Committed)
        with pytest.raises(UsageError, match=f"{key} has 1048577 bytes.*1 MiB"):
            lab.store.txn([], [Put(key, b"y" * (MAX_VALUE_BYTES + 1))])
        assert lab.store.read(key).entries[key].value == b"x" * MAX_VALUE_BYTES

    def test_values_that_are_too_much_together_are_refused(self, lab: Lab) -> None:
        with pytest.raises(UsageError, match="split it"):
            lab.store.txn([], [Put(f"{lab.prefix}{n}", b"x" * 800_000) for n in range(2)])

    def test_writing_one_key_twice_in_a_transaction_is_refused(self, lab: Lab) -> None:
        key = lab.prefix + "k"
        doubles: list[list[Operation]] = [
            [Put(key, b"1"), Put(key, b"2")],
            [Delete(key), Put(key, b"2")],
            [Put(key, b"2"), Delete(lab.prefix, prefix=True)],
        ]
        for operations in doubles:
            with pytest.raises(UsageError, match="transaction"):
                lab.store.txn([], operations)

    def test_a_key_without_name_is_refused(self, lab: Lab) -> None:
        with pytest.raises(UsageError, match="empty key"):
            lab.store.txn([], [Put("", b"")])


class TestLeases:
    def test_a_kept_lease_keeps_its_keys_beyond_its_ttl(self, lab: Lab) -> None:
        lease = lab.store.lease(1.0)
        lab.store.txn([], [Put(lab.prefix + "k", b"", lease.id)])
        first = lease.last_ack
        wait_until(lambda: lease.last_ack > first + 2 * lease.ttl_s)
        assert lease.alive
        assert lab.store.read(lab.prefix).entries[lab.prefix + "k"].lease == lease.id

    def test_an_abandoned_lease_takes_its_keys_with_it_at_one_revision(self, lab: Lab) -> None:
        recorder, lease = Recorder(lab.store, lab.prefix), lab.store.lease(1.0)
        lab.store.txn([], [Put(lab.prefix + k, b"", lease.id) for k in "ab"] + [Put(lab.prefix + "stays", b"")])
        watcher = watch(lab, recorder)
        lease.abandon()
        recorder.wait(lambda r: len(r.batches) > 0)
        watcher.close()
        ((_, events),) = recorder.batches
        assert sorted((e.key, e.entry) for e in events) == [(lab.prefix + "a", None), (lab.prefix + "b", None)]
        assert list(lab.store.read(lab.prefix).entries) == [lab.prefix + "stays"]
        wait_until(lambda: not lease.alive)

    def test_revoking_ends_the_keys_at_once_and_tells_nobody(self, lab: Lab) -> None:
        told: list[str] = []
        lease = lab.store.lease(60.0, told.append)
        lab.store.txn([], [Put(lab.prefix + "k", b"", lease.id)])
        lease.revoke()
        lease.revoke()
        assert not lease.alive
        assert lab.store.read(lab.prefix).entries == {}
        assert told == []

    def test_a_lease_that_the_store_ended_is_told_once(self, lab: Lab) -> None:
        told: list[str] = []
        lease = lab.store.lease(1.0, told.append)
        lab.end_lease(lease.id)
        wait_until(lambda: bool(told))
        assert not lease.alive
        assert len(told) == 1

    def test_a_put_under_a_lease_that_is_gone_has_lost(self, lab: Lab) -> None:
        lease = lab.store.lease(5.0)
        lease.revoke()
        outcome = lab.store.txn([], [Put(lab.prefix + "k", b"", lease.id), Put(lab.prefix + "other", b"")])
        assert isinstance(outcome, Lost)
        assert lab.store.read(lab.prefix).entries == {}

    def test_a_key_put_again_under_another_lease_survives_the_first(self, lab: Lab) -> None:
        old, new, key = lab.store.lease(60.0), lab.store.lease(60.0), lab.prefix + "k"
        lab.store.txn([], [Put(key, b"", old.id)])
        lab.store.txn([], [Put(key, b"", new.id)])
        old.revoke()
        assert lab.store.read(lab.prefix).entries[key].lease == new.id
        lab.store.txn([], [Put(key, b"")])
        new.revoke()
        assert lab.store.read(lab.prefix).entries[key].lease == 0


class TestWatches:
    def test_every_change_comes_exactly_once_in_order_with_a_revision_in_one_piece(self, lab: Lab) -> None:
        p, recorder = lab.prefix, Recorder(lab.store, lab.prefix)
        watcher = watch(lab, recorder)
        revisions = []
        for n in range(50):
            outcome = lab.client().txn([], [Put(f"{p}a{n}", b"1"), Put(f"{p}b", b"%d" % n)])
            revisions.append(outcome.revision)
        lab.store.txn([], [Delete(f"{p}a", prefix=True)])
        recorder.wait(lambda r: len(r.batches) == 51)
        watcher.close()
        assert recorder.revisions[:50] == revisions
        assert [[e.key for e in events] for _, events in recorder.batches[:50]] == [
            [f"{p}a{n}", f"{p}b"] for n in range(50)
        ]
        assert {e.key for e in recorder.batches[50][1]} == {f"{p}a{n}" for n in range(50)}
        assert all(e.entry is None for e in recorder.batches[50][1])
        assert recorder.resyncs == []

    def test_events_carry_the_new_entry(self, lab: Lab) -> None:
        recorder, key = Recorder(lab.store, lab.prefix), lab.prefix + "k"
        watcher = watch(lab, recorder)
        lab.store.txn([], [Put(key, b"v")])
        recorder.wait(lambda r: len(r.batches) == 1)
        watcher.close()
        assert recorder.batches[0][1][0].entry == lab.store.read(key).entries[key]

    def test_history_since_the_revision_is_delivered_first_however_long(self, lab: Lab) -> None:
        start = lab.store.read(lab.prefix).revision
        for n in range(1200):  # etcd catches up in pieces of 1000 revisions
            lab.store.txn([], [Put(lab.prefix + "k", b"%d" % n)])
        recorder = Recorder(lab.store, lab.prefix)
        watcher = watch(lab, recorder, start)
        recorder.wait(lambda r: len(r.batches) == 1200)
        watcher.close()
        values = [e.entry.value for _, events in recorder.batches for e in events if e.entry]
        assert values == [b"%d" % n for n in range(1200)]

    def test_other_prefixes_are_not_heard(self, lab: Lab) -> None:
        recorder = Recorder(lab.store, lab.prefix)
        watcher = watch(lab, recorder)
        lab.store.txn([], [Put(lab.prefix[:-1] + "0", b"")])
        lab.store.txn([], [Put(lab.prefix + "mine", b"")])
        recorder.wait(lambda r: len(r.batches) > 0)
        watcher.close()
        assert recorder.keys == [lab.prefix + "mine"]

    def test_nothing_is_delivered_after_close(self, lab: Lab) -> None:
        recorder, control = Recorder(lab.store, lab.prefix), Recorder(lab.store, lab.prefix)
        watcher, other = watch(lab, recorder), watch(lab, control)
        watcher.close()
        lab.store.txn([], [Put(lab.prefix + "k", b"")])
        control.wait(lambda r: len(r.batches) == 1)
        other.close()
        assert recorder.batches == []

    def test_a_watch_may_be_closed_from_its_own_callback(self, lab: Lab) -> None:
        heard = threading.Event()
        held: list[Watch] = []

        def on_events(*_: object) -> None:
            held[0].close()
            heard.set()

        held.append(lab.store.watch(lab.prefix, lab.store.read(lab.prefix).revision, on_events, lambda _: 0))
        lab.store.txn([], [Put(lab.prefix + "k", b"")])
        assert heard.wait(20)

    @pytest.mark.parametrize("error", [ValueError("a bug of the callee"), StoreUnavailableError("a call in between")])
    def test_a_callback_that_fails_leads_to_a_resync(self, lab: Lab, error: Exception) -> None:
        recorder, failed = Recorder(lab.store, lab.prefix), threading.Event()

        def on_events(*_: object) -> None:
            failed.set()
            raise error

        start = lab.store.read(lab.prefix).revision
        watcher = lab.store.watch(lab.prefix, start, on_events, recorder.on_resync)
        lab.store.txn([], [Put(lab.prefix + "k", b"")])
        recorder.wait(lambda r: len(r.resyncs) > 0)
        watcher.close()
        assert failed.is_set()
        assert lab.prefix + "k" in recorder.views[-1].entries


class TestOutages:
    def test_a_watch_resumes_after_the_server_was_killed_and_started_again(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        watcher = watch(lab, recorder)
        lab.store.txn([], [Put(p + "before", b"")])
        recorder.wait(lambda r: r.keys == [p + "before"])
        for n in range(2):
            lab.down()
            lab.up()
            lab.client().txn([], [Put(f"{p}after{n}", b"")])
            recorder.wait(lambda r, n=n: r.keys[-1] == f"{p}after{n}")  # type: ignore[misc]
        watcher.close()
        assert recorder.keys == [p + "before", p + "after0", p + "after1"]
        assert recorder.resyncs == []

    def test_what_happened_while_a_watch_was_cut_off_is_delivered_once(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        start = lab.store.read(p).revision
        for n in range(3):
            lab.store.txn([], [Put(f"{p}{n}", b"")])
        lab.down()
        watcher = lab.store.watch(p, start, recorder.on_events, recorder.on_resync)
        lab.up()
        recorder.wait(lambda r: len(r.batches) == 3)
        watcher.close()
        assert recorder.keys == [f"{p}{n}" for n in range(3)]

    def test_compaction_below_what_a_watch_has_seen_is_no_loss(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        watcher = watch(lab, recorder)
        lab.store.txn([], [Put(p + "1", b"")])
        recorder.wait(lambda r: len(r.batches) == 1)
        lab.compact()
        lab.store.txn([], [Put(p + "2", b"")])
        recorder.wait(lambda r: len(r.batches) == 2)
        watcher.close()
        assert recorder.resyncs == []

    def test_compaction_of_what_a_watch_still_needs_is_a_resync(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        start = lab.store.read(p).revision
        for n in range(5):
            lab.store.txn([], [Put(p + "k", b"%d" % n)])
        lab.compact()
        watcher = watch(lab, recorder, start)
        recorder.wait(lambda r: len(r.resyncs) == 1)
        lab.store.txn([], [Put(p + "later", b"")])
        recorder.wait(lambda r: r.keys == [p + "later"])
        watcher.close()
        assert "compacted" in recorder.resyncs[0]
        assert recorder.views[0].entries[p + "k"].value == b"4"

    def test_an_emptied_store_behind_the_same_address_is_a_resync(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        lab.store.txn([], [Put(STORE_ID_KEY, b"one")])
        for n in range(5):
            lab.store.txn([], [Put(p + "old", b"%d" % n)])
        watcher = watch(lab, recorder)
        lab.down()
        lab.up_emptied()
        recorder.wait(lambda r: len(r.resyncs) == 1)
        lab.client().txn([], [Put(p + "new", b"")])
        recorder.wait(lambda r: r.keys == [p + "new"])
        watcher.close()
        assert recorder.views[0].entries == {}
        assert len(recorder.resyncs) == 1

    def test_an_emptied_store_is_noticed_even_when_its_revisions_have_caught_up(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder = Recorder(lab.store, p)
        lab.store.txn([], [Put(STORE_ID_KEY, b"one")])
        watcher = watch(lab, recorder)
        lab.store.txn([], [Put(p + "k", b"old")])
        recorder.wait(lambda r: len(r.batches) == 1)
        lab.down()
        lab.up_emptied([Put(STORE_ID_KEY, b"two")] + [Put(p + "k", b"%d" % n) for n in range(20)])
        recorder.wait(lambda r: len(r.resyncs) == 1)
        watcher.close()
        assert recorder.keys == [p + "k"]
        assert recorder.views[0].entries[p + "k"].value == b"19"

    def test_a_store_id_that_somebody_deletes_or_changes_is_a_resync(self, own_lab: Lab) -> None:
        lab = own_lab
        recorder = Recorder(lab.store, lab.prefix)
        lab.store.txn([], [Put(STORE_ID_KEY, b"one")])
        watcher = watch(lab, recorder)
        lab.client().txn([], [Delete(STORE_ID_KEY)])
        recorder.wait(lambda r: len(r.resyncs) == 1)
        lab.client().txn([], [Put(STORE_ID_KEY, b"two")])
        lab.store.txn([], [Put(lab.prefix + "k", b"")])
        recorder.wait(lambda r: r.keys == [lab.prefix + "k"])
        lab.client().txn([], [Put(STORE_ID_KEY, b"three")])
        recorder.wait(lambda r: len(r.resyncs) == 2)
        watcher.close()

    def test_a_resync_that_fails_is_tried_again(self, own_lab: Lab) -> None:
        lab, p = own_lab, own_lab.prefix
        recorder, failures = Recorder(lab.store, p), list[str]()

        def on_resync(reason: str) -> int:
            if len(failures) < 2:
                failures.append(reason)
                raise StoreUnavailableError("not now")
            return recorder.on_resync(reason)

        start = lab.store.read(p).revision
        for n in range(5):
            lab.store.txn([], [Put(p + "k", b"%d" % n)])
        lab.compact()
        watcher = lab.store.watch(p, start, recorder.on_events, on_resync)
        recorder.wait(lambda r: len(r.resyncs) == 1)
        watcher.close()
        assert len(failures) == 2
