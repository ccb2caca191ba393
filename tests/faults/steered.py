"""An etcd whose leases end by a clock that the test moves, so that a history of minutes is played in seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Compare, Delete, Lease, Operation, Outcome, Store, View

LASTS_S = 3600.0
"""TTL of the leases in etcd itself: none ends by etcd's own clock."""


class SteeredLease:
    """A lease of a SteeredEtcd: it ends by `revoke`, by `SteeredEtcd.wipe`, or `ttl_s` after `abandon`."""

    def __init__(self, store: SteeredEtcd, inner: Lease, ttl_s: float, on_lost: Callable[[str], None] | None) -> None:
        self.id, self.ttl_s = inner.id, ttl_s
        self.alive = True
        self.inner, self.on_lost = inner, on_lost
        self.runs_out_at: float | None = None
        self._store = store

    @property
    def last_ack(self) -> float:
        return self._store.clock()

    def revoke(self) -> None:
        self.alive, self.on_lost = False, None
        self._store.end(self)

    def abandon(self) -> None:
        self.alive, self.on_lost = False, None
        self.runs_out_at = self._store.clock() + self.ttl_s


class SteeredEtcd:
    """What the protocol's lab needs of a store, over etcd's keys that start with `root`."""

    def __init__(self, store: Store, clock: Callable[[], float], root: str) -> None:
        self.clock = clock
        self._store, self._root = store, root
        self._leases: list[SteeredLease] = []
        self.wipe()

    def read(self, prefix: str) -> View:
        return self._store.read(prefix)

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Outcome:
        return self._store.txn(compares, operations)

    def lease(self, ttl_s: float, on_lost: Callable[[str], None] | None = None) -> SteeredLease:
        lease = SteeredLease(self, self._store.lease(LASTS_S), ttl_s, on_lost)
        self._leases.append(lease)
        return lease

    def advance(self) -> int:
        """End the abandoned leases that have run out by the clock; how many."""
        now = self.clock()
        due = [lease for lease in self._leases if lease.runs_out_at is not None and lease.runs_out_at <= now]
        for lease in due:
            self.end(lease)
        return len(due)

    def wipe(self) -> None:
        """Every key and lease is gone. Revisions go on, unlike those of an emptied etcd."""
        for lease in list(self._leases):
            lease.alive = False
            self.end(lease)
        self._store.txn([], [Delete(self._root, prefix=True)])

    def end(self, lease: SteeredLease) -> None:
        """End a lease in etcd, with its keys."""
        if lease in self._leases:
            self._leases.remove(lease)
            with contextlib.suppress(StoreUnavailableError):
                lease.inner.revoke()
