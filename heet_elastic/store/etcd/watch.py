"""A watch on etcd that resumes: from its revision after any interruption, by a resync where events may be missing.

On every (re)connection, before any event of it is believed, the watch compares what is behind the address with what it
knew: the cluster id, the revision (never backwards) and the value of the store id key. An emptied etcd repeats its
revisions, and a watch from an old one would wait there for ever without a word.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from heet_elastic.errors import HeetError
from heet_elastic.store.api import Entry, Event
from heet_elastic.store.etcd import errors
from heet_elastic.store.etcd.channel import Channel
from heet_elastic.store.etcd.connection import SETTLE_S, Connector, backoff
from heet_elastic.store.etcd.errors import Kind
from heet_elastic.store.etcd.etcd3_loader import load

log = logging.getLogger(__name__)

_NEEDS_LEADER = (("hasleader", "true"),)
"""A member that is cut off from its cluster then ends the stream instead of staying silent."""


def prefix_end(prefix: bytes) -> bytes:
    """The end of the range of all keys that start with `prefix` (etcd's convention; b"\\0" = no end)."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def to_entry(kv: Any) -> Entry:
    """An etcd key-value. Keys that are no UTF-8 (not heet's) keep their bytes as surrogates."""
    return Entry(kv.key.decode("utf-8", "surrogateescape"), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


class EtcdWatch:
    """A running watch; its thread ends at `close`."""

    def __init__(
        self,
        connector: Connector,
        identity: Callable[[], tuple[bytes | None, int]],
        store_id: bytes | None,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
        on_close: Callable[[EtcdWatch], None],
    ) -> None:
        self._connector = connector
        self._identity = identity  # store id and revision, by a linearizable read
        self._store_id = store_id
        self._cluster_id = 0
        self._prefix = prefix.encode("utf-8", "surrogateescape")
        self._revision = after_revision
        self._on_events = on_events
        self._on_resync = on_resync
        self._on_close = on_close
        self._must_resync: str | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._silent_since: float | None = time.monotonic()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name=f"etcd-watch {prefix}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def silent_for_s(self) -> float:
        """Seconds without contact; 0.0 while connected."""
        since = self._silent_since
        return 0.0 if since is None else time.monotonic() - since

    def move(self) -> None:
        """Go over to the connector's present channel, without missing an event."""
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def end(self) -> None:
        """Begin to close: no callback starts any more."""
        self._closed.set()
        self.move()

    def close(self) -> None:
        """End the watch and join its thread (unless called from it). Waits for a call to etcd that is under way."""
        self.end()
        self._on_close(self)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pauses = backoff(0.05, 1.0)
        while not self._closed.is_set():
            try:
                if self._stream():
                    pauses = backoff(0.05, 1.0)
            except (HeetError, grpc.RpcError) as e:
                self._complain(e)
            except Exception:
                if not self._closed.is_set():  # a channel that is closed under a call raises ValueError
                    log.exception("the watch of %s begins anew", self._prefix.decode(errors="replace"))
            if self._silent_since is None:
                self._silent_since = time.monotonic()
                pauses = backoff(0.05, 1.0)
            self._closed.wait(next(pauses))

    def _complain(self, e: Exception) -> None:
        """Log a refusal once; an outage is told by `silent_for_s`."""
        if isinstance(e, grpc.RpcError):
            if errors.classify(e) in (Kind.UNAVAILABLE, Kind.TOKEN):
                return
            e = errors.to_heet(e, self._connector.settings.where, self._connector.settings.user)
        if str(e) != self._complaint and not self._closed.is_set():
            self._complaint = str(e)
            log.warning("the watch of %s waits: %s", self._prefix.decode(errors="replace"), e)

    def _stream(self) -> bool:
        """One stream until it ends. True when it ended in order (moved, resynced) and the next may begin at once."""
        if self._must_resync is not None and not self._resync(self._must_resync):
            return False
        channel = self._connector.current()
        channel.settle(SETTLE_S)
        self._connector.authenticate(channel)
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for request in self._create_requests():
            requests.put(request)
        call = channel.watch.Watch(iter(requests.get, None), metadata=channel.metadata + _NEEDS_LEADER)
        with self._lock:
            self._call = call
        try:
            if self._closed.is_set():
                return True
            return self._consume(channel, call)
        except grpc.RpcError as e:
            if errors.classify(e) is Kind.UNAVAILABLE:
                self._connector.failed(channel, e)
            elif errors.classify(e) is Kind.TOKEN:
                self._connector.renew(channel, channel.token)
            raise
        finally:
            with self._lock:
                self._call = None
            requests.put(None)
            call.cancel()

    def _create_requests(self) -> list[Any]:
        """The watch itself (the first on its stream, so number 0), and one of the store id."""
        api = load()
        ranges = [{"key": self._prefix or b"\0", "range_end": prefix_end(self._prefix), "progress_notify": True}]
        id_key = self._connector.settings.store_id_key
        if id_key is not None:
            ranges.append({"key": id_key.encode()})
        creates = [api.WatchCreateRequest(start_revision=self._revision + 1, **fields) for fields in ranges]
        return [api.WatchRequest(create_request=create) for create in creates]

    def _consume(self, channel: Channel, call: Any) -> bool:
        for response in call:
            if self._closed.is_set():
                return True
            if response.compact_revision:
                return self._resync(f"revision {self._revision + 1} has been compacted")
            if response.canceled:
                kind = errors.classify_text(grpc.StatusCode.UNKNOWN, response.cancel_reason)
                if kind is Kind.TOKEN:
                    self._connector.renew(channel, channel.token)
                settings = self._connector.settings
                raise errors.to_heet_text(
                    kind, grpc.StatusCode.UNKNOWN, response.cancel_reason, settings.where, settings.user
                )
            if response.watch_id != 0:
                reason = self._another_id(response.events)
            elif response.created:
                reason = self._another_store(response.header)
                if reason is None:
                    channel.served()
                    self._silent_since, self._complaint = None, ""
            else:
                self._deliver(response)
                reason = None
            if reason is not None:
                return self._resync(reason)
        return False

    def _another_id(self, events: Sequence[Any]) -> str | None:
        """Why events of the store id key make this another store; None when they do not (its first value)."""
        for event in events:
            value = None if event.type == load().Event.DELETE else event.kv.value
            if self._store_id is None:
                self._store_id = value
            elif value != self._store_id:
                return "the id of the store was deleted or changed"
        return None

    def _another_store(self, header: Any) -> str | None:
        """Why what is behind the address is not the store that this watch has followed; None when it is."""
        if self._cluster_id and header.cluster_id != self._cluster_id:
            return "another cluster is behind the address"
        # Not the header's revision: a member that lags behind the others has an older one for a moment.
        store_id, revision = self._identity()
        if revision < self._revision:
            return f"the store went back from revision {self._revision} to {revision}"
        if self._store_id is not None and store_id != self._store_id:
            return "another store is behind the address"
        self._cluster_id, self._store_id = header.cluster_id, store_id
        return None

    def _resync(self, reason: str) -> bool:
        """Have the callee read again. False when that has to be tried again."""
        self._must_resync = reason
        # Read before the callee does: a store that is exchanged in between is noticed at the next connection.
        store_id, _ = self._identity()
        self._revision = self._on_resync(reason)
        self._store_id, self._cluster_id, self._must_resync = store_id, 0, None
        return True

    def _deliver(self, response: Any) -> None:
        """Pass on the events of a response by revision; those that were delivered before are dropped."""
        if not response.events:
            self._revision = max(self._revision, response.header.revision)
            return
        batch: list[Event] = []
        for event in response.events:
            revision = event.kv.mod_revision
            if revision <= self._revision:
                continue
            if batch and batch[0].revision != revision:
                self._hand_over(batch)
                batch = []
            entry = to_entry(event.kv)
            deleted = event.type == load().Event.DELETE
            batch.append(Event(entry.key, None if deleted else entry, revision))
        if batch:
            self._hand_over(batch)

    def _hand_over(self, batch: list[Event]) -> None:
        if self._closed.is_set():
            return
        self._revision = batch[0].revision
        try:
            self._on_events(batch, self._revision)
        except Exception:
            self._must_resync = "a callback of the watch failed"
            raise
