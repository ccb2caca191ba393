"""A store in this process, with etcd's rules: revisions, compares, leases, resumable watches, compaction.

Two modes. With threads, every watch has its own and abandoned leases run out by the clock. Without
(`MemoryStore(clock, threads=False)`), nothing happens by itself: `advance` ends the leases that are due, `expire` ends
one, `pump` delivers watch events; a model-based test decides the order of everything.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from heet_elastic.store.api import Committed, Compare, Delete, Entry, Event, Lost, Operation, Outcome, Put, View
from heet_elastic.store.limits import check_transaction
from heet_elastic.store.memory_handles import MemoryLease, MemoryWatch

HISTORY_LIMIT = 20_000
"""Revisions that are kept for watches; older ones are compacted away."""


@dataclass(slots=True)
class _LeaseState:
    ttl_s: float
    handle: MemoryLease
    keys: set[str] = field(default_factory=set)
    runs_out_at: float | None = None  # None while somebody keeps it alive


class MemoryStore:
    """`heet_elastic.store.api.Store` in this process; safe to call from several threads.

    clock: monotonic seconds. threads: see the module. store_id_key: as for etcd, watches resync when its value is
    deleted or changed. `wipe`, `compact`, `expire`, `advance` and `pump` are the levers
    of tests and simulations.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, threads: bool = True, store_id_key: str | None = None
    ) -> None:
        self.clock = clock
        self.store_id_key = store_id_key
        self.changed = threading.Condition(threading.RLock())
        self.revision = 1
        self.compacted = 0
        self.generation = 0
        self._threads = threads
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _LeaseState] = {}
        self._next_lease = 1000
        self._history: list[tuple[int, tuple[Event, ...]]] = []
        self._watches: list[MemoryWatch] = []
        self._reaper: threading.Thread | None = None
        self._closed = False
        self._read_by_thread = threading.local()

    def read(self, prefix: str) -> View:
        """All keys starting with `prefix`, as one snapshot."""
        with self.changed:
            self._read_by_thread.generation = self.generation
            found = {k: e for k, e in sorted(self._entries.items()) if k.startswith(prefix)}
            return View(self.revision, MappingProxyType(found))

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Outcome:
        """Apply `operations` iff all `compares` hold; UsageError for what no store would take."""
        check_transaction(compares, operations)
        with self.changed:
            leases = {op.lease for op in operations if isinstance(op, Put) and op.lease}
            if not all(map(self._holds, compares)) or not leases <= self._leases.keys():
                return Lost(self.revision)
            return Committed(self._apply(operations))

    def lease(self, ttl_s: float, on_lost: Callable[[str], None] | None = None) -> MemoryLease:
        """A new lease; with threads=False it lasts until `expire`, `revoke` or, once abandoned, `advance`."""
        with self.changed:
            self._next_lease += 1
            handle = MemoryLease(self, self._next_lease, ttl_s, on_lost)
            self._leases[handle.id] = _LeaseState(ttl_s, handle)
            return handle

    def watch(
        self,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> MemoryWatch:
        """Every change under `prefix` after `after_revision`; from a thread, or when `pump` is called."""
        watch = MemoryWatch(self, prefix, after_revision, on_events, on_resync)
        with self.changed:
            self._watches.append(watch)
        if self._threads:
            watch.start()
        return watch

    def close(self) -> None:
        """End every watch of this store. Its content stays readable."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        for watch in list(self._watches):
            watch.close()
        if self._reaper is not None and self._reaper is not threading.current_thread():
            self._reaper.join()

    def pump(self) -> int:
        """Deliver what is due to every watch, in the order of their creation; the number of callbacks made."""
        return sum(watch.pump() for watch in list(self._watches))

    def advance(self) -> int:
        """End the abandoned leases that have run out by the clock; how many."""
        now = self.clock()
        with self.changed:
            due = [i for i, s in self._leases.items() if s.runs_out_at is not None and s.runs_out_at <= now]
        for lease_id in due:
            self.expire(lease_id)
        return len(due)

    def expire(self, lease_id: int, tell: bool = True) -> None:
        """End a lease and its keys in one revision, as the server does after a holder's silence.

        tell=False leaves the holder in the belief that it still has the lease, as when it is cut off.
        """
        with self.changed:
            state = self._leases.pop(lease_id, None)
            if state is None:
                return
            self._apply([Delete(key) for key in sorted(state.keys)])
        if tell:
            self._tell_lost(state, "the store has ended the lease")

    def compact(self, revision: int) -> None:
        """Forget history before `revision`; watches that still need it are resynced."""
        with self.changed:
            self.compacted = max(self.compacted, min(revision, self.revision))
            keep = bisect.bisect_left(self._history, self.compacted, key=lambda item: item[0])
            del self._history[:keep]
            self.changed.notify_all()

    def wipe(self) -> None:
        """An emptied store behind the same address: revisions start again, leases are unknown."""
        with self.changed:
            leases, self._leases = list(self._leases.values()), {}
            self._entries, self._history = {}, []
            self.revision, self.compacted = 1, 0
            self.generation += 1
            self.changed.notify_all()
        for state in leases:
            self._tell_lost(state, "the store does not know the lease")

    def generation_read(self) -> int:
        """The generation (number of wipes) that this thread has read last."""
        return int(getattr(self._read_by_thread, "generation", self.generation))

    def store_id(self) -> bytes | None:
        """The value of the store id key."""
        with self.changed:
            entry = None if self.store_id_key is None else self._entries.get(self.store_id_key)
            return None if entry is None else entry.value

    def history_after(self, revision: int) -> list[tuple[int, tuple[Event, ...]]]:
        """Revisions above `revision` with their events, oldest first."""
        first = bisect.bisect_right(self._history, revision, key=lambda item: item[0])
        return self._history[first:]

    def _holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        if compare.target == "value":
            return entry is not None and entry.value == compare.expected
        if entry is None:
            return compare.expected == 0
        actual = entry.mod_revision if compare.target == "mod_revision" else entry.create_revision
        return actual == compare.expected

    def _apply(self, operations: Sequence[Operation]) -> int:
        """Write under the next revision; without any change the revision stays, as in etcd."""
        revision = self.revision + 1
        events: list[Event] = []
        for op in operations:
            if isinstance(op, Put):
                events.append(Event(op.key, self._put(op, revision), revision))
            else:
                gone = [k for k in self._entries if k.startswith(op.key)] if op.prefix else [op.key]
                events += [Event(k, None, revision) for k in sorted(gone) if self._remove(k)]
        if events:
            self.revision = revision
            self._history.append((revision, tuple(events)))
            if len(self._history) > HISTORY_LIMIT:
                self.compact(self._history[HISTORY_LIMIT // 2][0])
            self.changed.notify_all()
        return self.revision

    def _put(self, op: Put, revision: int) -> Entry:
        old = self._entries.get(op.key)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(op.key)
        if op.lease:
            self._leases[op.lease].keys.add(op.key)
        created = revision if old is None else old.create_revision
        entry = self._entries[op.key] = Entry(op.key, op.value, created, revision, op.lease)
        return entry

    def _remove(self, key: str) -> bool:
        old = self._entries.pop(key, None)
        if old is None:
            return False
        if old.lease in self._leases:
            self._leases[old.lease].keys.discard(key)
        return True

    def _tell_lost(self, state: _LeaseState, reason: str) -> None:
        callback = state.handle.lose(reason)
        if callback is None:
            return
        if self._threads:
            threading.Thread(target=callback, name="memory-lease-lost", daemon=True).start()
        else:
            callback()

    def let_run_out(self, lease_id: int, at: float) -> None:
        """Nobody keeps the lease alive any more: it ends at that time."""
        with self.changed:
            if lease_id not in self._leases:
                return
            self._leases[lease_id].runs_out_at = at
            if self._threads and self._reaper is None:
                self._reaper = threading.Thread(target=self._reap, name="memory-leases", daemon=True)
                self._reaper.start()
            self.changed.notify_all()

    def _reap(self) -> None:
        while True:
            with self.changed:
                if self._closed:
                    return
                due = [s.runs_out_at for s in self._leases.values() if s.runs_out_at is not None]
                self.changed.wait(max(0.0, min(due) - self.clock()) if due else None)
            self.advance()

    def forget(self, watch: MemoryWatch) -> None:
        """A watch was closed."""
        with self.changed:
            if watch in self._watches:
                self._watches.remove(watch)
