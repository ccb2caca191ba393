"""Actions as transactions. Pure. Every one also compares the fence: the store's id and this term of the leader.

Besides: a round compares the allocation as it was seen and the absence of `frozen` and of a result; what is said about
a job compares its description as seen, so that nothing is written about a job that is gone or has begun anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heet_elastic.coordinator.api import (
    Action,
    Allocate,
    DropClaims,
    Forget,
    SetAccount,
    SetProfile,
    SetResult,
    SetStatus,
    Unwant,
    Want,
)
from heet_elastic.model import Snapshot
from heet_elastic.store.api import MAX_TXN_OPERATIONS, Compare, Delete, Operation, Put, absent
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode

KEPT_FAILURES = 8
"""Rounds whose failures are kept."""

_BATCH = (MAX_TXN_OPERATIONS - 8) // 2
"""Statuses and accounts that go into one transaction: a compare and a put each, and the fence."""

Transaction = tuple[list[Compare], list[Operation]]


def transactions(
    actions: Sequence[Action], keys: Keys, snapshot: Snapshot, wall_s: float | None = None
) -> list[tuple[Transaction, list[Action]]]:
    """The actions as transactions in the order in which they must be written, each with the actions that it holds.

    Statuses, accounts and profiles share transactions. Accounts come first: they say which round ran last, which must
    be known before another one is written. wall_s: the time of day, for histories alone (`Account.first_seen`).
    """
    accounts = [_dated(a, snapshot, wall_s) for a in actions if isinstance(a, SetAccount)]
    said = [a for a in actions if isinstance(a, (SetStatus, SetProfile))]
    single = [a for a in actions if not isinstance(a, (SetStatus, SetAccount, SetProfile))]
    alone: list[tuple[Transaction, list[Action]]] = [(transaction(a, keys, snapshot), [a]) for a in single]
    return [*_batches(accounts, keys, snapshot), *alone, *_batches(said, keys, snapshot)]


def _dated(action: SetAccount, snapshot: Snapshot, wall_s: float | None) -> SetAccount:
    """The account with the time of day at which its job was first seen, as it was written first."""
    account = action.account
    if account.first_seen is not None or wall_s is None:
        return action
    view = snapshot.jobs.get(action.job)
    stored = None if view is None or view.account is None else view.account.record
    known = stored.first_seen if stored is not None and stored.incarnation == account.incarnation else None
    return SetAccount(action.job, replace(account, first_seen=wall_s - account.age_s if known is None else known))


def _batches(actions: Sequence[Action], keys: Keys, snapshot: Snapshot) -> list[tuple[Transaction, list[Action]]]:
    found: list[tuple[Transaction, list[Action]]] = []
    for start in range(0, len(actions), _BATCH):
        batch = list(actions[start : start + _BATCH])
        parts = [transaction(a, keys, snapshot) for a in batch]
        compares = list(dict.fromkeys(c for part, _ in parts for c in part))
        found.append(((compares, [op for _, ops in parts for op in ops]), batch))
    return found


def transaction(action: Action, keys: Keys, snapshot: Snapshot) -> Transaction:
    """Compares (without the fence) and operations of one action."""
    match action:
        case Allocate():
            return _allocate(action, keys)
        case Want(job, wanted):
            return [absent(keys.result(job)), *_same_spec(job, keys, snapshot)], [
                Put(keys.wanted(job, wanted.host), encode(wanted))
            ]
        case Unwant(job, host):
            return [], [Delete(keys.wanted(job, host))]
        case SetStatus(job, status):
            return _same_spec(job, keys, snapshot), [Put(keys.status(job), encode(status))]
        case SetAccount(job, account):
            return _same_spec(job, keys, snapshot), [Put(keys.account(job), encode(account))]
        case SetResult(job, result):
            return [absent(keys.result(job)), *_same_spec(job, keys, snapshot)], [Put(keys.result(job), encode(result))]
        case SetProfile(name, profile):
            return [], [Put(keys.profile(name), encode(profile))]
        case Forget(job):
            return _same_spec(job, keys, snapshot), [Delete(keys.job(job), prefix=True)]
        case DropClaims(host):
            known = snapshot.claims.get(host)
            revision = 0 if known is None else known.mod_revision
            return [Compare(keys.claims(host), "mod_revision", revision)], [Delete(keys.claims(host))]


def _allocate(action: Allocate, keys: Keys) -> Transaction:
    job, new = action.job, action.allocation
    compares = [
        Compare(keys.allocation(job), "mod_revision", action.expected_revision),
        absent(keys.frozen(job)),
        absent(keys.result(job)),
    ]
    operations: list[Operation] = [
        Put(keys.allocation(job), encode(new)),
        Delete(keys.round_store(job, new.round - 1)),
    ]
    if new.round > KEPT_FAILURES:
        operations.append(Delete(keys.failures_of(job, new.round - KEPT_FAILURES), prefix=True))
    return compares, operations


def _same_spec(job: str, keys: Keys, snapshot: Snapshot) -> list[Compare]:
    view = snapshot.jobs.get(job)
    revision = 0 if view is None or view.spec is None else view.spec.mod_revision
    return [Compare(keys.spec(job), "mod_revision", revision)]
