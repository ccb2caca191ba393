"""The contract of a store: one snapshot of a prefix, fenced transactions, leases, resumable watches.

A call has three outcomes: its value; `Lost` (a compare did not hold: a normal return, nothing was written);
`StoreUnavailableError` (what became of the call is *unknown*: read again before deciding). Never a bool for all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

MAX_VALUE_BYTES = 1 << 20
"""Largest value of a key. etcd refuses requests over 1.5 MiB; a store refuses such a value with UsageError."""

MAX_TXN_OPERATIONS = 128
"""etcd's default limit on the operations of one transaction; more is a UsageError (split what may be split)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key with its value and revisions. `lease` is 0 where the key has none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """All keys under a prefix at one revision of the store."""

    revision: int
    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: `key`'s mod_revision, create_revision or value equals `expected`.

    Revision 0 means that the key is absent.
    """

    key: str
    target: Literal["mod_revision", "create_revision", "value"]
    expected: int | bytes


def absent(key: str) -> Compare:
    """The condition that a key does not exist."""
    return Compare(key, "create_revision", 0)


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key, attached to a lease when one is given (else to none)."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or with `prefix` every key that starts with it. Absent keys are no error."""

    key: str
    prefix: bool = False


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """The transaction was applied at this revision (all of it)."""

    revision: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A compare did not hold; nothing was written. `revision` is the store's at that moment."""

    revision: int


Outcome = Committed | Lost


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a key: its new entry, or None when it was deleted or its lease ended."""

    key: str
    entry: Entry | None
    revision: int


class Lease(Protocol):
    """A lease that the store keeps alive in the background until `revoke`, `abandon` or loss."""

    id: int
    ttl_s: float

    @property
    def alive(self) -> bool:
        """False once the store said that it is gone, or nothing was heard for `ttl_s` (self-fencing)."""

    @property
    def last_ack(self) -> float:
        """Local monotonic time of the last confirmed keep-alive."""

    def revoke(self) -> None:
        """End the lease and its keys now. Raises StoreUnavailableError when unknown; the lease then runs out."""

    def abandon(self) -> None:
        """Stop keeping it alive, without a call to the store (it runs out by itself)."""


class Watch(Protocol):
    """A running watch; `close` ends it and joins its thread."""

    def silent_for_s(self) -> float:
        """Seconds since contact with the store was lost (local monotonic time); 0.0 while events flow."""

    def close(self) -> None:
        """End the watch. No callback runs after it returns (unless called from one)."""


class Store(Protocol):
    """What heet needs of a store. Implementations are safe to call from several threads."""

    def read(self, prefix: str) -> View:
        """All keys starting with `prefix`, as one snapshot, linearizable. Raises StoreUnavailableError."""

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Outcome:
        """Apply `operations` in order iff all `compares` hold.

        Raises StoreUnavailableError when it is unknown whether it was applied, and UsageError for a value over
        MAX_VALUE_BYTES or more than MAX_TXN_OPERATIONS compares or operations, before anything is sent.
        A lease that does not exist any more makes it `Lost`.
        """

    def lease(self, ttl_s: float, on_lost: Callable[[str], None] | None = None) -> Lease:
        """A new lease, kept alive in the background. `on_lost(reason)` is called once, from a thread."""

    def watch(
        self,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> Watch:
        """Deliver every change under `prefix` after `after_revision`, in order, each exactly once, resuming by itself.

        `on_events(events, revision)` comes from the watch's thread; events of one revision come together.
        `on_resync(reason)` is called when events may have been missed (compaction, another store behind the address, a
        store id that was deleted or changed, an exception in `on_events`): the callee reads the prefix again and
        returns the revision that it has read; the watch goes on after it.
        An exception in `on_resync` (StoreUnavailableError) makes the watch try again with back-off.
        """

    def close(self) -> None:
        """End watches, keep-alives and connections."""
