"""A live copy of a prefix: read once, then kept up to date by a watch; reading it costs no call and never raises."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Entry, Event, Store, View, Watch
from heet_elastic.store.fence import ensure_store_id, read_store_id
from heet_elastic.store.keys import Keys

log = logging.getLogger(__name__)

_TRIES = 5


class Mirror:
    """What the store says under `prefix`, as last heard.

    create_store_id: give a store without id one (a reader that may not write passes False). `generation` grows with
    every resync: revisions of two generations must not be compared. Safe to use from several threads.
    """

    def __init__(self, store: Store, prefix: str, keys: Keys, create_store_id: bool = True) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._store = store
        self._prefix = prefix
        self._keys = keys
        self._create_store_id = create_store_id
        self._entries: dict[str, Entry] = {}
        self._view: View | None = View(0)
        self._revision = 0
        self._touched: set[str] | None = None
        self._generation = 0
        self._wakes = 0
        self._store_id = b""
        self._connected_since = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._watch: Watch | None = None

    def start(self) -> None:
        """Read the prefix and follow it. Raises what `Store.read` raises; may then be called again."""
        revision = self._read()
        self._watch = self._store.watch(self._prefix, revision, self._on_events, self._on_resync)

    def close(self) -> None:
        """Follow it no longer; what was heard stays readable."""
        if self._watch is not None:
            self._watch.close()
        self.wake()

    @property
    def view(self) -> View:
        """Everything under the prefix at one revision; immutable, and the same object until something changes."""
        with self.changed:
            if self._view is None:
                self._view = View(self._revision, MappingProxyType(dict(self._entries)))
            return self._view

    @property
    def generation(self) -> int:
        """Number of times that everything was read: 0 before `start`, 1 after it, more after each resync."""
        return self._generation

    @property
    def store_id(self) -> bytes:
        """Id of the store that the view is of, for `same_store`; empty before `start` or where it has none."""
        return self._store_id

    @property
    def connected(self) -> bool:
        """Whether changes arrive at present."""
        return self._watch is not None and self._watch.silent_for_s() == 0.0

    def silent_for_s(self) -> float:
        """Seconds since contact with the store was lost, by this host's monotonic clock; 0.0 while connected."""
        return 0.0 if self._watch is None else self._watch.silent_for_s()

    def drain(self) -> tuple[View, frozenset[str] | None]:
        """The view, and the keys changed since the last `drain`: None = any of them (first call, resync).

        For one consumer, which saves looking through the whole view (`SnapshotDecoder.decode`).
        """
        with self.changed:
            touched = None if self._touched is None else frozenset(self._touched)
            self._touched = set()
            return self.view, touched

    def wait(self, after_revision: int, timeout_s: float, generation: int | None = None) -> View:
        """The view once it is newer than `after_revision`, or after `timeout_s`, a resync, `wake` or `close`.

        generation: of the view that `after_revision` belongs to; when it is another by now, return at once.
        """
        deadline = time.monotonic() + timeout_s
        with self.changed:
            start = (self._generation if generation is None else generation, self._wakes)
            while self._revision <= after_revision and (self._generation, self._wakes) == start:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self.changed.wait(left_s):
                    break
            return self.view

    def wake(self) -> None:
        """Make every `wait` return now (something else than the store has happened)."""
        with self.changed:
            self._wakes += 1
            self.changed.notify_all()

    def listen(self, callback: Callable[[], None]) -> None:
        """Call back after every change, from the watch's thread; it must be quick and must not raise."""
        with self.changed:
            self._listeners.append(callback)

    def _read(self) -> int:
        """Take over everything under the prefix, with the id of the store that it is surely of; its revision."""
        for _ in range(_TRIES):
            store_id = self._read_store_id()
            view = self._store.read(self._prefix)
            if read_store_id(self._store, self._keys) == store_id:
                self._replace(view, store_id or b"")
                return view.revision
        raise StoreUnavailableError(f"{self._keys.store_id} keeps changing: is something else writing there?")

    def _read_store_id(self) -> bytes | None:
        if self._create_store_id:
            return ensure_store_id(self._store, self._keys)
        return read_store_id(self._store, self._keys)

    def _replace(self, view: View, store_id: bytes) -> None:
        with self.changed:
            self._entries, self._revision, self._view = dict(view.entries), view.revision, view
            self._touched = None
            self._store_id = store_id
            self._generation += 1
            self.changed.notify_all()

    def _on_resync(self, reason: str) -> int:
        log.info("%s is read anew: %s", self._prefix, reason)
        revision = self._read()
        self._tell()
        return revision

    def _on_events(self, events: Sequence[Event], revision: int) -> None:
        with self.changed:
            if revision <= self._revision:
                return
            for event in events:
                if event.entry is None:
                    self._entries.pop(event.key, None)
                else:
                    self._entries[event.key] = event.entry
                if self._touched is not None:
                    self._touched.add(event.key)
            self._revision, self._view = revision, None
            self.changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        with self.changed:
            listeners = list(self._listeners)
        for callback in listeners:
            callback()
