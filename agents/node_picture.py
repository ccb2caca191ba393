"""The daemon's picture of the store: the jobs that concern this host, from a live copy of jobs/ and nodes/."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from heet_elastic.agents.node_reconcile import Memory, Seen
from heet_elastic.agents.node_records import JobCommand, StartReport
from heet_elastic.errors import RecordError, StoreUnavailableError
from heet_elastic.model import JobSpec, JobView, Snapshot, Versioned
from heet_elastic.store.api import Compare, Store, View
from heet_elastic.store.fence import fence
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import decode
from heet_elastic.store.snapshot import SnapshotDecoder

log = logging.getLogger(__name__)

RETRY_S = 0.5
HOPELESS = 3
"""Failures in a row that another host must have reported before a job counts as hopeless there too."""


class Picture:
    """Follows jobs/ and nodes/. `start` first; used by the daemon's thread, woken from any."""

    def __init__(self, store: Store, keys: Keys, host: str) -> None:
        self._keys, self._host = keys, host
        self._jobs = Mirror(store, keys.jobs, keys)
        self._nodes = Mirror(store, keys.nodes, keys)
        self._decoder = SnapshotDecoder(keys)
        self._view, self._snapshot = View(0), Snapshot(0)
        self._looked = (0, 0)

    def start(self, given_up: threading.Event) -> None:
        """Read everything and follow it; tries again until `given_up`."""
        told = False
        for mirror in (self._jobs, self._nodes):
            while mirror.generation == 0 and not given_up.is_set():
                try:
                    mirror.start()
                except StoreUnavailableError as e:
                    if not told:
                        log.warning("waiting for etcd: %s", e)
                    told = True
                    given_up.wait(RETRY_S)

    def close(self) -> None:
        """Follow it no longer."""
        for mirror in (self._jobs, self._nodes):
            if mirror.generation:
                mirror.close()

    @property
    def connected(self) -> bool:
        """Whether changes arrive."""
        return self._jobs.connected

    def fence(self) -> tuple[Compare, ...]:
        """Compares that hold only in the store that the picture is of."""
        return fence(self._keys, self._jobs.store_id)

    def wake(self) -> None:
        """Make `wait` return."""
        self._jobs.wake()

    def wait(self, timeout_s: float) -> None:
        """Until something changes after the last `seen`."""
        self._jobs.wait(self._looked[0], timeout_s, self._looked[1])

    def seen(
        self, looked_after: Collection[str], pids: Mapping[str, tuple[int, int] | None], memory: Memory
    ) -> dict[str, Seen]:
        """Every job that is wanted here or is looked after, as the store shows it now."""
        self._looked = (self._jobs.view.revision, self._jobs.generation)
        self._view, changed = self._jobs.drain()
        self._snapshot = self._decoder.decode(self._view, changed).snapshot
        found = {}
        for job, view in self._snapshot.jobs.items():
            if view.spec is not None and (self._host in view.wanted or job in looked_after):
                pid = pids.get(job)
                found[job] = self._seen(view, view.spec.record, pid[0] if pid else 0, memory)
        return found

    def versioned_spec(self, job: str) -> Versioned[JobSpec] | None:
        """The job's spec as last seen."""
        view = self._snapshot.jobs.get(job)
        return None if view is None else view.spec

    def agent_of(self, job: str, pid: int) -> str | None:
        """The agent of a job that is process `pid` of this host, as far as it is registered."""
        view = self._snapshot.jobs.get(job)
        agents = () if view is None else tuple(view.agents.values())
        return next((a.record.agent for a in agents if a.record.host == self._host and a.record.pid == pid), None)

    def submitted(self, job: str) -> tuple[JobSpec | None, JobCommand | None]:
        """Spec and command of a job; None for what is absent, unreadable, or of another run than the spec."""
        spec = self.versioned_spec(job)
        entry = self._view.entries.get(self._keys.command(job))
        if spec is None or entry is None:
            return (None if spec is None else spec.record), None
        try:
            command = decode(entry.key, entry.value, JobCommand)
        except RecordError as e:
            log.warning("%s", e)
            return spec.record, None
        return spec.record, command if command.incarnation == spec.record.incarnation else None

    def _seen(self, view: JobView, spec: JobSpec, pid: int, memory: Memory) -> Seen:
        run = spec.incarnation
        wanted = view.wanted.get(self._host)
        allocation = None if view.allocation is None else view.allocation.record
        ours = allocation is not None and allocation.incarnation in ("", run)
        agents = [v.record for v in view.agents.values() if v.record.incarnation in ("", run)]
        track = memory.get(view.job)
        suspect = track is not None and track.failures >= HOPELESS
        return Seen(
            job=view.job,
            incarnation=run,
            wanted=wanted is not None and wanted.record.incarnation == run and spec.submitted,
            member=ours and allocation is not None and any(m.host == self._host for m in allocation.members),
            registered=any(a.host == self._host and a.pid == pid for a in agents),
            living=bool(agents),
            over=view.result is not None and view.result.record.incarnation == run,
            hopeless_elsewhere=suspect and self._hopeless_elsewhere(view.job, run),
            alone=suspect and len(self._nodes.view.entries) <= 1,
        )

    def _hopeless_elsewhere(self, job: str, run: str) -> bool:
        for key, entry in self._view.entries.items():
            name = self._keys.parse(key) if key.startswith(f"{self._keys.job(job)}starts/") else None
            if name is None or name.host == self._host:
                continue
            try:
                report = decode(key, entry.value, StartReport)
            except RecordError:
                continue
            if report.incarnation == run and report.failures >= HOPELESS:
                return True
        return False
