"""`heet_elastic.store.api.Store` on etcd's v3 API."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import grpc

from heet_elastic.errors import StoreRefusedError, StoreUnavailableError, UsageError
from heet_elastic.store.api import Committed, Compare, Event, Lost, Operation, Outcome, Put, View
from heet_elastic.store.etcd import errors
from heet_elastic.store.etcd.connection import Connector
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.etcd.lease import EtcdLease, LeaseKeeper
from heet_elastic.store.etcd.renewal import CertificateWatch
from heet_elastic.store.etcd.settings import EtcdSettings
from heet_elastic.store.etcd.watch import EtcdWatch, prefix_end, to_entry
from heet_elastic.store.limits import check_transaction


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """What etcd says of itself: version, size of its database file in bytes, current revision."""

    version: str
    database_bytes: int
    revision: int


class EtcdStore:
    """A store on etcd. The constructor does no I/O; `connect`, or the first call, opens the connection.

    After a fork the child's copy opens its own; the parent's leases and watches are not the child's.
    """

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._connector = Connector(settings, self._move)
        self._keeper = LeaseKeeper(self._connector)
        self._watches: set[EtcdWatch] = set()
        self._lock = threading.Lock()
        self._certificates: CertificateWatch | None = None
        self._read_ids = threading.local()
        _forkable.add(self)

    def connect(self) -> None:
        """Make sure that etcd is there and will serve us, within 5 s.

        Raises StoreUnavailableError when it is down; StoreRefusedError when a person must change something: not etcd,
        no v3 API, user or password, role, certificate (which one, and what is wrong with it); UsageError for a file.
        """
        self._connector.connect()
        self._watch_certificates()

    def read(self, prefix: str) -> View:
        """All keys starting with `prefix`, as one linearizable snapshot. Repeated within the timeout when it fails."""
        api = load()
        ranges = [_range_of(api, prefix)]
        if self._settings.store_id_key is not None:
            ranges.append(api.RangeRequest(key=self._settings.store_id_key.encode()))
        try:
            request = api.TxnRequest(success=[api.RequestOp(request_range=r) for r in ranges])
            response = self._call("Txn", request, prefix, retry=True)
            found = [r.response_range for r in response.responses]
            revision = response.header.revision
        except (StoreRefusedError, StoreUnavailableError) as e:
            if not errors.is_full(e.__cause__):
                raise
            # A full etcd refuses every transaction, even one that only reads. The id comes first, as in a resync.
            found = [self._call("Range", r, prefix, retry=True) for r in reversed(ranges)][::-1]
            revision = found[0].header.revision
        if self._settings.store_id_key is not None:
            self._read_ids.last = _first_value(found[1])
        return View(revision, MappingProxyType({entry.key: entry for entry in map(to_entry, found[0].kvs)}))

    def txn(self, compares: Sequence[Compare], operations: Sequence[Operation]) -> Outcome:
        """See `heet_elastic.store.api.Store.txn`. Never repeated: an error leaves unknown whether it was applied."""
        check_transaction(compares, operations)
        api = load()
        request = api.TxnRequest(
            compare=[_compare(api, c) for c in compares], success=[_operation(api, op) for op in operations]
        )
        asked = ", ".join(op.key for op in operations[:3])
        try:
            response = self._call("Txn", request, asked)
        except grpc.RpcError:  # a lease is gone
            return Lost(self._identity()[1])
        outcome = Committed if response.succeeded else Lost
        return outcome(response.header.revision)

    def lease(self, ttl_s: float, on_lost: Callable[[str], None] | None = None) -> EtcdLease:
        """A new lease, kept alive until `revoke`, `abandon`, `close` or loss; `ttl_s` becomes whole seconds."""
        if not ttl_s > 0:
            raise UsageError(f"a lease of {ttl_s} s: expected seconds above 0")
        self._watch_certificates()
        return self._keeper.grant(ttl_s, on_lost)

    def watch(
        self,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> EtcdWatch:
        """See `heet_elastic.store.api.Store.watch`. Call it from the thread that read the prefix.

        The store id that came with that thread's last `read` is what the watch holds the address to.
        """
        self._watch_certificates()
        store_id = getattr(self._read_ids, "last", None)
        watch = EtcdWatch(
            self._connector, self._identity, store_id, prefix, after_revision, on_events, on_resync, self._forget
        )
        with self._lock:
            self._watches.add(watch)
        watch.start()
        return watch

    def status(self) -> EtcdStatus:
        """Version, database size and revision of the member that answers."""
        response = self._connector.call("maintenance", "Status", load().StatusRequest(), "its status", retry=True)
        return EtcdStatus(response.version, response.dbSize, response.header.revision)

    def compact(self, revision: int) -> None:
        """Have etcd forget history before `revision` (needs no role); a revision compacted before is no error."""
        try:
            self._call("Compact", load().CompactionRequest(revision=revision), "compaction")
        except UsageError:
            raise
        except grpc.RpcError:
            return

    def close(self) -> None:
        """End watches, keep-alives and connections. Leases run out by themselves."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.end()
        self._connector.close()  # ends what the threads below may be waiting for
        for watch in watches:
            watch.close()
        self._keeper.close()
        if self._certificates is not None:
            self._certificates.close()

    def _call(self, method: str, request: Any, asked: str, retry: bool = False) -> Any:
        return self._connector.call("kv", method, request, asked, retry)

    def _identity(self) -> tuple[bytes | None, int]:
        """The store id (None: none yet, or no key for it is set) and the present revision."""
        key = self._settings.store_id_key
        request = load().RangeRequest(key=(key or "/heet").encode())
        response = self._call("Range", request, key or "", retry=True)
        return None if key is None else _first_value(response), response.header.revision

    def _forget(self, watch: EtcdWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _watch_certificates(self) -> None:
        with self._lock:
            if self._certificates is None and self._settings.files:
                self._certificates = CertificateWatch(self._settings, self._connector.replace)
                self._certificates.start()

    def _move(self) -> None:
        """Another channel is to be used: every watch goes over to it. Keep-alives and calls take it by themselves."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.move()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._watches, self._certificates = set(), None
        self._read_ids = threading.local()
        self._connector.after_fork()
        self._keeper.after_fork()


_forkable: weakref.WeakSet[EtcdStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_forkable):
        store._after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _range_of(api: Any, prefix: str) -> Any:
    start = prefix.encode("utf-8", "surrogateescape")
    return api.RangeRequest(key=start or b"\0", range_end=prefix_end(start))


def _first_value(response: Any) -> bytes | None:
    return bytes(response.kvs[0].value) if response.kvs else None


def _compare(api: Any, compare: Compare) -> Any:
    key = compare.key.encode("utf-8", "surrogateescape")
    if compare.target == "value":
        return api.Compare(key=key, target=api.Compare.VALUE, result=api.Compare.EQUAL, value=compare.expected)
    if compare.target == "mod_revision":
        return api.Compare(key=key, target=api.Compare.MOD, result=api.Compare.EQUAL, mod_revision=compare.expected)
    return api.Compare(key=key, target=api.Compare.CREATE, result=api.Compare.EQUAL, create_revision=compare.expected)


def _operation(api: Any, op: Operation) -> Any:
    key = op.key.encode("utf-8", "surrogateescape")
    if isinstance(op, Put):
        return api.RequestOp(request_put=api.PutRequest(key=key, value=op.value, lease=op.lease))
    if op.prefix:
        request = api.DeleteRangeRequest(key=key or b"\0", range_end=prefix_end(key))
    else:
        request = api.DeleteRangeRequest(key=key)
    return api.RequestOp(request_delete_range=request)
