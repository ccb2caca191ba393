"""The member's picture of the store: live copies of its job's keys and of the few keys that concern everybody."""

from __future__ import annotations

import threading
import time

from heet_elastic.model import JobView, Snapshot
from heet_elastic.rendezvous.values import World
from heet_elastic.store.api import Compare, Store
from heet_elastic.store.fence import fence
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.snapshot import SnapshotDecoder


class MirroredWorld:
    """Follows jobs/<job>/, epoch and leader; and, while no coordinator ever led, hosts/ and claims/.

    With a coordinator an agent hears of its own job alone: what it follows does not grow with the cluster.
    """

    def __init__(self, store: Store, keys: Keys, job: str) -> None:
        self._store, self._keys, self._job = store, keys, job
        self._changed = threading.Condition()
        self._version = 0
        self._decoders: dict[int, SnapshotDecoder] = {}
        self._own = self._mirror(keys.job(job))
        self._common = [self._mirror(keys.epoch), self._mirror(keys.leader)]
        self._pool = [self._mirror(keys.hosts), self._mirror(keys.claims_root)]
        self._following_pool = False
        self._connected_since: float | None = None
        self._lock = threading.Lock()

    def _mirror(self, prefix: str) -> Mirror:
        mirror = Mirror(self._store, prefix, self._keys)
        mirror.listen(self.poke)
        return mirror

    def start(self) -> None:
        """Read everything once and follow it. Raises what `Store.read` raises; may then be called again."""
        for mirror in (*self._common, self._own):
            if mirror.generation == 0:
                mirror.start()
        if not self._decode(self._common[0]).epoch:
            for mirror in self._pool:
                if mirror.generation == 0:
                    mirror.start()
            self._following_pool = True
        self._connected_since = time.monotonic()

    def close(self) -> None:
        """Follow nothing any longer."""
        for mirror in (*self._common, self._own, *self._pool):
            if mirror.generation:
                mirror.close()

    def world(self) -> World:
        """The newest picture."""
        with self._lock:
            own = self._decode(self._own)
            epoch = self._decode(self._common[0]).epoch
            leader = self._decode(self._common[1]).leader
            hosts, claims = {}, {}
            if self._following_pool and epoch is None:
                hosts = dict(self._decode(self._pool[0]).hosts)
                claims = dict(self._decode(self._pool[1]).claims)
            silent = self._own.silent_for_s()
            if silent > 0:
                self._connected_since = None
            elif self._connected_since is None:
                self._connected_since = time.monotonic()
            return World(
                job=own.jobs.get(self._job, JobView(self._job)),
                epoch=epoch,
                led=leader is not None,
                hosts=hosts,
                claims=claims,
                connected=silent == 0,
                connected_since=self._connected_since or 0.0,
                silent_s=silent,
                generation=self._own.generation,
            )

    def revision(self) -> int:
        """Revision of the job's part of the picture."""
        return self._own.view.revision

    def version(self) -> int:
        """Number of changes and pokes so far, for `wait`."""
        return self._version

    def wait(self, after_version: int, timeout_s: float) -> None:
        """Return when anything changed since that version, or `poke` was called, or time is up."""
        with self._changed:
            if self._version == after_version:
                self._changed.wait(timeout_s)

    def poke(self) -> None:
        """Wake `wait`."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def fence(self) -> tuple[Compare, ...]:
        """Compares that hold only in the store that the picture is of."""
        return fence(self._keys, self._own.store_id)

    def _decode(self, mirror: Mirror) -> Snapshot:
        decoder = self._decoders.setdefault(id(mirror), SnapshotDecoder(self._keys))
        view, touched = mirror.drain()
        return decoder.decode(view, touched).snapshot
