"""A store that fails on order, in the program's own coordinates: its 3rd transaction, its 2nd one on an allocation.

    script = FaultScript()
    fault = script.unknown_txn_at(3, applied=True)
    store = FaultyStore(MemoryStore(), script)
    ...
    assert fault.fired

Works over any store. One FaultyStore is one client: its `close` ends its own watches and leases alone. What a fault
does is what a real store can do: a transaction that is answered `Lost` was not applied, an unknown one was or was not,
a late one is applied after the caller has given up, in competition with everything that has happened since.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Compare, Event, Lease, Lost, Operation, Outcome, Store, View, Watch

Touches = Callable[[Sequence[Operation]], bool]


class Fate(Enum):
    """What becomes of a transaction."""

    LOST = "lost"  # answered Lost, not applied
    UNKNOWN_APPLIED = "unknown, applied"
    UNKNOWN_NOT_APPLIED = "unknown, not applied"
    LATE = "late"  # unknown to the caller; applied, if its compares then hold, after further calls
    LEASES_LOST = "leases lost"  # this client's leases end on the server just before
    LEASES_LOST_UNTOLD = "leases lost, untold"  # the same, and the holder goes on believing in them


@dataclass
class Fault:
    """One fault of a script. `fired` tells whether the program came by."""

    what: str
    first: int
    count: int = 1
    fate: Fate | None = None
    touches: Touches | None = None
    after_calls: int = 1
    seen: int = 0
    fired: bool = False

    def passes(self) -> bool:
        """Count one more candidate; whether this one is hit."""
        self.seen += 1
        hit = self.first <= self.seen < self.first + self.count
        self.fired = self.fired or hit
        return hit


@dataclass
class FaultScript:
    """The faults of one client. All numbers count from 1, over the calls or batches of that client."""

    calls: list[Fault] = field(default_factory=list)
    txns: list[Fault] = field(default_factory=list)
    batches: list[Fault] = field(default_factory=list)

    def unavailable_from(self, n: int, count: int = 1) -> Fault:
        """The n-th call (read, transaction, lease) and `count` - 1 more get no answer and have no effect."""
        return _add(self.calls, Fault("unavailable", n, count))

    def lost_txn_at(self, n: int, touches: Touches | None = None) -> Fault:
        """The n-th transaction (of those that `touches` picks) is told that it lost a race, and is not applied."""
        return _add(self.txns, Fault("lost", n, fate=Fate.LOST, touches=touches))

    def unknown_txn_at(self, n: int, applied: bool, touches: Touches | None = None) -> Fault:
        """The n-th transaction is unknown to its caller, and was applied or not."""
        fate = Fate.UNKNOWN_APPLIED if applied else Fate.UNKNOWN_NOT_APPLIED
        return _add(self.txns, Fault("unknown", n, fate=fate, touches=touches))

    def late_txn_at(self, n: int, after_calls: int, touches: Touches | None = None) -> Fault:
        """The n-th transaction is unknown to its caller, and reaches the store `after_calls` calls later."""
        return _add(self.txns, Fault("late", n, fate=Fate.LATE, touches=touches, after_calls=after_calls))

    def lose_leases_at(self, n: int, tell: bool = True, touches: Touches | None = None) -> Fault:
        """Just before the n-th transaction all leases of this client end, with or without its knowledge."""
        fate = Fate.LEASES_LOST if tell else Fate.LEASES_LOST_UNTOLD
        return _add(self.txns, Fault("leases lost", n, fate=fate, touches=touches))

    def duplicate_batch_at(self, n: int) -> Fault:
        """The n-th batch of events comes twice."""
        return _add(self.batches, Fault("duplicate", n))

    def replay_batch_at(self, n: int) -> Fault:
        """The n-th batch comes again after the one that follows it."""
        return _add(self.batches, Fault("replay", n))

    def hold_batches_at(self, n: int, count: int = 1) -> Fault:
        """The n-th batch and `count` - 1 more come late: together with the one after them, or at `FaultyStore.heal`."""
        return _add(self.batches, Fault("hold", n, count))

    def resync_at(self, n: int) -> Fault:
        """Instead of the n-th batch of events the callee is told to read everything again."""
        return _add(self.batches, Fault("resync", n))

    def unfired(self) -> list[Fault]:
        """Faults that the program never came by."""
        return [f for f in (*self.calls, *self.txns, *self.batches) if not f.fired]


def _add(faults: list[Fault], fault: Fault) -> Fault:
    faults.append(fault)
    return fault


def touching(*words: str) -> Touches:
    """Picks transactions of which some operation's key contains any of the words."""
    return lambda operations: any(word in op.key for op in operations for word in words)


class FaultyLease:
    """A lease of a FaultyStore."""

    def __init__(self, inner: Lease, on_lost: Callable[[str], None] | None) -> None:
        self.id = inner.id
        self.ttl_s = inner.ttl_s
        self._inner = inner
        self._on_lost = on_lost
        self._lost = False
        self._believed = False
        self._ended_at = 0.0

    @property
    def alive(self) -> bool:
        return self._believed or (not self._lost and self._inner.alive)

    @property
    def last_ack(self) -> float:
        return time.monotonic() if self._believed else self._inner.last_ack

    def revoke(self) -> None:
        self._on_lost, self._believed = None, False
        self._inner.revoke()

    def abandon(self) -> None:
        self._on_lost, self._believed = None, False
        self._inner.abandon()

    def end(self, tell: bool) -> None:
        """End it on the server."""
        if self._lost:
            return
        self._lost, self._believed = True, not tell
        self._inner.revoke()
        if tell:
            self.told("the store has ended the lease")

    def told(self, reason: str) -> None:
        """Pass a loss on, once."""
        self._lost = True
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback(reason)


class FaultyWatch:
    """A watch of a FaultyStore: holds batches back, doubles them, or replaces them by a resync."""

    def __init__(
        self,
        store: FaultyStore,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> None:
        self.inner: Watch | None = None
        self._store = store
        self._on_events = on_events
        self._on_resync = on_resync
        self._held: list[tuple[Sequence[Event], int]] = []
        self._again: list[tuple[Sequence[Event], int]] = []
        self._skip_until = 0
        self._lock = threading.RLock()

    def silent_for_s(self) -> float:
        own = self._store.cut_for_s()
        return own if own or self.inner is None else self.inner.silent_for_s()

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()

    def events(self, events: Sequence[Event], revision: int) -> None:
        """A batch comes from the store."""
        with self._lock:
            hit = {f.what for f in self._store.script.batches if f.passes()}
            if "resync" in hit:
                self._held, self._again = [], []
                self._skip_until = self._on_resync("the test wants it")
                return
            self._held += [(events, revision)] * (2 if "duplicate" in hit else 1) + self._again
            self._again = [(events, revision)] if "replay" in hit else []
            if "hold" not in hit and not self._store.cut_for_s():
                self.release()

    def resync(self, reason: str) -> int:
        """The store asks for a resync."""
        if self._store.cut_for_s():
            raise StoreUnavailableError("cut off by the test")
        with self._lock:
            self._held, self._again = [], []
            self._skip_until = 0
            return self._on_resync(reason)

    def release(self) -> None:
        """Deliver what is held back."""
        with self._lock:
            held, self._held = self._held, []
            for events, revision in held:
                if revision > self._skip_until:
                    self._on_events(events, revision)


class FaultyStore:
    """`Store` over another one, with the faults of a script; `cut` and `heal` are an outage of this client alone."""

    def __init__(self, store: Store, script: FaultScript | None = None) -> None:
        self.inner = store
        self.script = script or FaultScript()
        self._lock = threading.RLock()
        self._late: list[tuple[int, Sequence[Compare], Sequence[Operation]]] = []
        self._calls = 0
        self._cut_since: float | None = None
        self._watches: list[FaultyWatch] = []
        self._leases: list[FaultyLease] = []

    def cut(self) -> None:
        """From now on calls get no answer, events are held back, and the leases are no longer renewed."""
        self._cut_since = time.monotonic()
        for lease in self._leases:
            lease._inner.abandon()

    def heal(self) -> None:
        """The outage is over; held events are delivered."""
        self._cut_since = None
        for watch in list(self._watches):
            watch.release()

    def cut_for_s(self) -> float:
        """Seconds since `cut`; 0.0 when not cut off."""
        return 0.0 if self._cut_since is None else max(time.monotonic() - self._cut_since, 1e-9)

    def read(self, prefix: str) -> View:
        self._enter()
        return self.inner.read(prefix)

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Outcome:
        self._enter()
        with self._lock:
            hits = [f for f in self.script.txns if (f.touches is None or f.touches(operations)) and f.passes()]
        for fault in hits:
            if fault.fate in (Fate.LEASES_LOST, Fate.LEASES_LOST_UNTOLD):
                self.end_leases(tell=fault.fate is Fate.LEASES_LOST)
        for fault in hits:
            if fault.fate is Fate.LOST:
                return Lost(self.inner.read("\0").revision)
            if fault.fate is Fate.UNKNOWN_NOT_APPLIED:
                raise StoreUnavailableError("the test wants it unknown (it was not applied)")
            if fault.fate is Fate.LATE:
                self._late.append((self._calls + fault.after_calls, compares, operations))
                raise StoreUnavailableError("the test wants it unknown (it comes late)")
        outcome = self.inner.txn(compares, operations)
        if any(fault.fate is Fate.UNKNOWN_APPLIED for fault in hits):
            raise StoreUnavailableError("the test wants it unknown (it was tried)")
        return outcome

    def lease(self, ttl_s: float, on_lost: Callable[[str], None] | None = None) -> FaultyLease:
        self._enter()
        holder: list[FaultyLease] = []
        lease = FaultyLease(self.inner.lease(ttl_s, lambda reason: holder[0].told(reason)), on_lost)
        holder.append(lease)
        self._leases.append(lease)
        return lease

    def watch(
        self,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> FaultyWatch:
        watch = FaultyWatch(self, on_events, on_resync)
        self._watches.append(watch)
        watch.inner = self.inner.watch(prefix, after_revision, watch.events, watch.resync)
        return watch

    def end_leases(self, tell: bool = True) -> None:
        """End all leases of this client on the server."""
        for lease in self._leases:
            lease.end(tell)

    def close(self) -> None:
        """As a client that ends: its watches are closed, its leases run out."""
        for watch in self._watches:
            watch.close()
        for lease in self._leases:
            lease.abandon()

    def _enter(self) -> None:
        """One more call: what comes late arrives, then the call itself may find nobody."""
        with self._lock:
            self._calls += 1
            due = [item for item in self._late if item[0] <= self._calls]
            self._late = [item for item in self._late if item[0] > self._calls]
            hits = [fault for fault in self.script.calls if fault.passes()]
        for _, compares, operations in due:
            with contextlib.suppress(StoreUnavailableError):  # nobody waits for its answer
                self.inner.txn(compares, operations)
        if hits or self._cut_since is not None:
            raise StoreUnavailableError("the test wants the store away")
