"""Leases and watches of a `MemoryStore`: what its clients hold."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Event

if TYPE_CHECKING:
    from heet_elastic.store.memory import MemoryStore

log = logging.getLogger(__name__)

RETRY_S = 0.05
"""Pause of a watch whose resync failed."""


class MemoryLease:
    """A lease of a MemoryStore: kept alive as long as the store lives, unless abandoned or expired."""

    def __init__(self, store: MemoryStore, lease_id: int, ttl_s: float, on_lost: Callable[[str], None] | None) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self._store = store
        self._on_lost = on_lost
        self._lost = False
        self._kept = True
        self._granted_at = store.clock()

    @property
    def alive(self) -> bool:
        """False once the store has ended it, or it was abandoned `ttl_s` ago."""
        return not self._lost and (self._kept or self._store.clock() - self._granted_at < self.ttl_s)

    @property
    def last_ack(self) -> float:
        """Now while it is kept alive; the time of abandoning or loss afterwards."""
        return self._store.clock() if self._kept and not self._lost else self._granted_at

    def revoke(self) -> None:
        """End the lease and its keys now."""
        self._on_lost = None
        self._store.expire(self.id, tell=True)

    def abandon(self) -> None:
        """Stop keeping it alive; it runs out `ttl_s` from now."""
        self._granted_at, self._kept, self._on_lost = self._store.clock(), False, None
        self._store.let_run_out(self.id, self._granted_at + self.ttl_s)

    def lose(self, reason: str) -> Callable[[], None] | None:
        """Mark as lost; the callback that the store still has to make, if any."""
        if self._lost:
            return None
        self._granted_at, self._lost = self._store.clock(), True
        callback, self._on_lost = self._on_lost, None
        return None if callback is None else lambda: callback(reason)


class MemoryWatch:
    """A watch of a MemoryStore."""

    def __init__(
        self,
        store: MemoryStore,
        prefix: str,
        after_revision: int,
        on_events: Callable[[Sequence[Event], int], None],
        on_resync: Callable[[str], int],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._revision = after_revision
        self._on_events = on_events
        self._on_resync = on_resync
        self._generation = self._resyncing = store.generation_read()
        self._store_id = store.store_id()
        self._resync_failed = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._delivering = threading.RLock()

    def silent_for_s(self) -> float:
        """Always 0.0: this store is never out of reach."""
        return 0.0

    def close(self) -> None:
        """End the watch and join its thread (unless called from it)."""
        with self._store.changed:
            self._closed = True
            self._store.changed.notify_all()
        self._store.forget(self)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def start(self) -> None:
        """Deliver from a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=f"memory-watch {self._prefix}", daemon=True)
        self._thread.start()

    def pump(self) -> int:
        """Deliver what is due; the number of callbacks made. Without effect after close."""
        with self._delivering:
            calls = 0
            while not self._closed and (due := self._due()) is not None:
                calls += 1
                if isinstance(due, str):
                    self._resync_failed = True
                    try:
                        self._revision = self._on_resync(due)
                    except StoreUnavailableError:
                        return calls
                    self._resync_failed = False
                    self._generation, self._store_id = self._resyncing, self._store.store_id()
                else:
                    revision, events = due
                    self._revision = revision
                    if events:
                        self._on_events(events, revision)
            return calls

    def _due(self) -> str | tuple[int, Sequence[Event]] | None:
        """The reason of a resync, the next revision with events, or None when up to date."""
        store = self._store
        with store.changed:
            if self._generation != store.generation or self._revision > store.revision:
                self._resyncing = store.generation
                return "another store is behind the address"
            if self._revision + 1 < store.compacted:
                self._resyncing = store.generation
                return f"revision {self._revision + 1} has been compacted"
            for revision, events in store.history_after(self._revision):
                if self._another_id(events):
                    self._resyncing = store.generation
                    return "the id of the store was deleted or changed"
                mine = [e for e in events if e.key.startswith(self._prefix)]
                if mine:
                    return revision, mine
            self._revision = store.revision
            return None

    def _another_id(self, events: Sequence[Event]) -> bool:
        for event in events:
            if event.key == self._store.store_id_key:
                value = None if event.entry is None else event.entry.value
                if self._store_id is not None and value != self._store_id:
                    return True
                self._store_id = value
        return False

    def _run(self) -> None:
        store = self._store
        while True:
            try:
                self.pump()
            except Exception:
                self._generation = -1
                log.exception("the watch of %s is read anew", self._prefix)
            with store.changed:
                if self._closed:
                    return
                if self._resync_failed:
                    store.changed.wait(RETRY_S)
                elif self._generation == store.generation and self._revision >= store.revision:
                    store.changed.wait()
