"""Actions of the protocol as transactions of the store. Pure; every write also compares the store's id."""

from __future__ import annotations

from collections.abc import Sequence

from heet_elastic.rendezvous.values import (
    Action,
    CreateSpec,
    PutRecord,
    ReplaceJob,
    Restore,
    WriteDone,
    WriteFailure,
    WriteFrozen,
    WriteResult,
    WriteRound,
)
from heet_elastic.store.api import Compare, Delete, Operation, Put, absent
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode

KEPT_FAILURES = 8
"""Failures of that many rounds are kept for people."""

Transaction = tuple[list[Compare], list[Operation]]


def transaction(keys: Keys, job: str, agent: str, action: Action, lease: int, fence: Sequence[Compare]) -> Transaction:
    """Compares and operations of an action. `lease` is this agent's, `fence` compares the store's id."""
    compares, operations = _parts(keys, job, agent, action, lease)
    return [*fence, *compares], operations


def _parts(keys: Keys, job: str, agent: str, action: Action, lease: int) -> Transaction:
    match action:
        case PutRecord(record):
            return [], [Put(keys.agent(job, agent), encode(record), lease)]
        case CreateSpec(spec):
            return [absent(keys.spec(job))], [Put(keys.spec(job), encode(spec))]
        case ReplaceJob():
            return _replace(keys, job, action)
        case WriteRound():
            return _round(keys, job, action)
        case WriteFailure(failure, record):
            return [], [
                Put(keys.failure(job, failure.round, agent), encode(failure)),
                Put(keys.agent(job, agent), encode(record), lease),
            ]
        case WriteFrozen(frozen):
            return [absent(keys.frozen(job))], [Put(keys.frozen(job), encode(frozen))]
        case WriteDone(done, record):
            return [], [
                Put(keys.done(job, agent), encode(done)),
                Put(keys.agent(job, agent), encode(record), lease),
            ]
        case WriteResult(result, expected):
            compares = [absent(keys.result(job)), Compare(keys.allocation(job), "mod_revision", expected)]
            return compares, [Put(keys.result(job), encode(result))]
        case Restore():
            return _restore(keys, job, action)


def _round(keys: Keys, job: str, action: WriteRound) -> Transaction:
    new = action.allocation
    compares = [Compare(keys.allocation(job), "mod_revision", action.expected_revision), absent(keys.result(job))]
    operations: list[Operation] = [
        Put(keys.allocation(job), encode(new)),
        Delete(keys.round_store(job, new.round - 1)),
    ]
    if new.round > KEPT_FAILURES:
        operations.append(Delete(keys.failures_of(job, new.round - KEPT_FAILURES), prefix=True))
    if action.unless_led:
        compares.append(absent(keys.epoch))
    for claims, revision in action.claims:
        compares.append(Compare(keys.claims(claims.host), "mod_revision", revision))
        operations.append(Put(keys.claims(claims.host), encode(claims)))
    return compares, operations


def _replace(keys: Keys, job: str, action: ReplaceJob) -> Transaction:
    compares = [
        Compare(keys.spec(job), "mod_revision", action.expected_spec_revision),
        Compare(keys.result(job), "mod_revision", action.expected_result_revision),
    ]
    # One by one: etcd refuses a transaction that deletes a range and puts a key inside it.
    old: list[Operation] = [Delete(key, prefix=key.endswith("/")) for key in keys.run(job)]
    return compares, [*old, Put(keys.spec(job), encode(action.spec))]


def _restore(keys: Keys, job: str, action: Restore) -> Transaction:
    compares: list[Compare] = []
    operations: list[Operation] = []
    if action.epoch is not None:
        compares.append(absent(keys.epoch))
        operations.append(Put(keys.epoch, encode(action.epoch)))
    if action.spec is not None:
        compares.append(Compare(keys.spec(job), "mod_revision", action.expected_spec_revision))
        operations.append(Put(keys.spec(job), encode(action.spec)))
    if action.allocation is not None:
        compares.append(Compare(keys.allocation(job), "mod_revision", action.expected_revision))
        operations.append(Put(keys.allocation(job), encode(action.allocation)))
    return compares, operations
