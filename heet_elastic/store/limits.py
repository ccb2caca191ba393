"""What a transaction may hold: the same refusals from every store, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence

from heet_elastic.errors import UsageError
from heet_elastic.store.api import MAX_TXN_OPERATIONS, MAX_VALUE_BYTES, Compare, Delete, Operation, Put

MAX_REQUEST_BYTES = 1_400_000
"""Sum of keys and values of one transaction; etcd refuses requests over 1.5 MiB, framing included."""


def check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """UsageError when no store would take this transaction: too many parts, too large, or one key written twice.

    Writing one key twice is refused because etcd refuses it: all operations of a transaction share one revision.
    """
    for what, parts in (("compares", compares), ("operations", operations)):
        if len(parts) > MAX_TXN_OPERATIONS:
            raise UsageError(
                f"a transaction with {len(parts)} {what}: a store takes at most {MAX_TXN_OPERATIONS}; split it"
            )
    puts = [op for op in operations if isinstance(op, Put)]
    deletes = [op for op in operations if isinstance(op, Delete)]
    keys = [c.key for c in compares] + [p.key for p in puts] + [d.key for d in deletes if not d.prefix]
    if not all(keys):
        raise UsageError("a transaction names an empty key: every key needs a name")
    _check_sizes(compares, puts)
    _check_overlap(puts, deletes)


def _check_sizes(compares: Sequence[Compare], puts: Sequence[Put]) -> None:
    total = sum(len(c.expected) for c in compares if isinstance(c.expected, bytes))
    for put in puts:
        if len(put.value) > MAX_VALUE_BYTES:
            raise UsageError(
                f"the value of {put.key} has {len(put.value)} bytes: a store takes at most {MAX_VALUE_BYTES} (1 MiB)"
            )
        total += len(put.key) + len(put.value)
    if total > MAX_REQUEST_BYTES:
        raise UsageError(f"a transaction of {total} bytes: a store takes at most {MAX_REQUEST_BYTES}; split it")


def _check_overlap(puts: Sequence[Put], deletes: Sequence[Delete]) -> None:
    written = {put.key for put in puts}
    if len(written) < len(puts):
        raise UsageError("a transaction puts one key twice: keep the last value only")
    for delete in deletes:
        clash = (k for k in written if k.startswith(delete.key)) if delete.prefix else iter({delete.key} & written)
        if (key := next(clash, None)) is not None:
            raise UsageError(f"a transaction both deletes and puts {key}: do it in two")
