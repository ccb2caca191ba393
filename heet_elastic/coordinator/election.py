"""Who leads: the leader key, created under a lease by whoever finds it absent.

A term has a fresh UUID in the key's value, and the key's create revision: every write of a term compares both, and the
store's id, so a leader that was stopped or cut off and comes back writes nothing. It notices by itself, too: its lease
counts as lost once nothing was heard of it for the TTL. A dead leader's key goes with its lease, after at most one TTL.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import LeaderRecord, Versioned
from heet_elastic.store.api import Committed, Compare, Lease, Put, Store, absent
from heet_elastic.store.fence import fence, same_store
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Term:
    """One reign: the leader key as this process wrote it, in the store of that id, and the lease under it."""

    leader: Versioned[LeaderRecord]
    store_id: bytes
    lease: Lease

    @property
    def alive(self) -> bool:
        """Whether this process may believe that it leads."""
        return self.lease.alive

    def compares(self, keys: Keys) -> tuple[Compare, ...]:
        """What every write of this term compares."""
        return fence(keys, self.store_id, self.leader)

    def resign(self) -> None:
        """Give the leadership up at once; where the store does not answer, it runs out by itself."""
        try:
            self.lease.revoke()
        except StoreUnavailableError as e:
            log.warning("the leadership could not be given back (%s): it runs out within %g s", e, self.lease.ttl_s)


def campaign(
    store: Store,
    keys: Keys,
    store_id: bytes,
    host: str,
    policy: str,
    version: str,
    ttl_s: float,
    on_lost: Callable[[str], None],
) -> Term | None:
    """Try to lead: a term, or None where somebody else leads. Raises what the store raises.

    Where the fate of the write is unknown, the key is read again: it is ours exactly if it holds our UUID.
    """
    lease = store.lease(ttl_s, on_lost)
    record = LeaderRecord(uuid.uuid4().hex, host, os.getpid(), policy, version)
    value = encode(record)
    try:
        revision = _create(store, keys, store_id, value, lease)
    except BaseException:
        lease.abandon()
        raise
    if revision is None:
        lease.revoke()
        return None
    return Term(Versioned(record, revision, revision), store_id, lease)


def _create(store: Store, keys: Keys, store_id: bytes, value: bytes, lease: Lease) -> int | None:
    """Create revision of our leader key; None = another one is there."""
    try:
        outcome = store.txn([absent(keys.leader), same_store(keys, store_id)], [Put(keys.leader, value, lease.id)])
    except StoreUnavailableError:
        entry = store.read(keys.leader).entries.get(keys.leader)
        return entry.create_revision if entry is not None and entry.value == value else None
    return outcome.revision if isinstance(outcome, Committed) else None
