"""Fencing: what every write compares besides its own key, so that a stale leader or a stale store never matters.

Revisions alone do not fence: an emptied etcd gives the same ones again. So every write compares the store's random id,
and a coordinator's also the leader key's create revision and value (which holds the UUID of this election).
"""

from __future__ import annotations

import uuid

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import LeaderRecord, Versioned
from heet_elastic.store.api import Compare, Lost, Put, Store, absent
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode

_TRIES = 5


def same_store(keys: Keys, store_id: bytes) -> Compare:
    """Holds in the store that was given this id, and in no other behind the same address."""
    return Compare(keys.store_id, "value", store_id)


def same_leader(keys: Keys, leader: Versioned[LeaderRecord]) -> tuple[Compare, Compare]:
    """Hold as long as this election's leader leads."""
    return (
        Compare(keys.leader, "create_revision", leader.create_revision),
        Compare(keys.leader, "value", encode(leader.record)),
    )


def fence(keys: Keys, store_id: bytes, leader: Versioned[LeaderRecord] | None = None) -> tuple[Compare, ...]:
    """The compares that every write adds: the store, and for a coordinator's its leadership."""
    return (same_store(keys, store_id), *(() if leader is None else same_leader(keys, leader)))


def read_store_id(store: Store, keys: Keys) -> bytes | None:
    """The store's id, None where nobody has given it one. Raises what `read` raises."""
    entry = store.read(keys.store_id).entries.get(keys.store_id)
    return None if entry is None else entry.value


def ensure_store_id(store: Store, keys: Keys) -> bytes:
    """The store's id, created if absent by whoever comes first. Raises what `read` and `txn` raise."""
    for _ in range(_TRIES):
        known = read_store_id(store, keys)
        if known is not None:
            return known
        fresh = uuid.uuid4().hex.encode()
        if not isinstance(store.txn([absent(keys.store_id)], [Put(keys.store_id, fresh)]), Lost):
            return fresh
    raise StoreUnavailableError(f"{keys.store_id} comes and goes: is something else writing under heet's prefix?")
