"""The thread between the store and the thread that torch runs: follows the store, steps the protocol, writes.

All decisions are `protocol.advance`'s. This thread gathers facts (store, workers, locks, samples), applies actions, and
publishes a Target that the handler obeys. Shared state is guarded by one condition.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from heet_elastic.agents.collector import Collector
from heet_elastic.agents.guard import DeviceGuard
from heet_elastic.agents.health import HostMonitor
from heet_elastic.errors import HeetError, StoreUnavailableError
from heet_elastic.model import Configuration, Failure, HostRecord, Result, RoundStore
from heet_elastic.rendezvous.protocol import advance
from heet_elastic.rendezvous.settings import RendezvousSettings
from heet_elastic.rendezvous.values import (
    Action,
    Local,
    Memory,
    Order,
    ProtocolSettings,
    PutRecord,
    Target,
    WorkerState,
    World,
    WriteResult,
)
from heet_elastic.rendezvous.workers import Ended, peek, read_error
from heet_elastic.rendezvous.writes import transaction
from heet_elastic.store.api import Committed, Compare, Lease, Lost, Operation, Outcome, Put, Store
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often locks and health of the host's devices are looked at."""

TICK_S = 0.05
"""How often workers are looked at: some microseconds each."""


class WorldSource(Protocol):
    """Where the member's picture of the store comes from."""

    def world(self) -> World:
        """The newest picture; never raises."""

    def revision(self) -> int:
        """Revision of that picture."""

    def version(self) -> int:
        """Number of changes and pokes so far, for `wait`."""

    def wait(self, after_version: int, timeout_s: float) -> None:
        """Return when anything changed since that version, or `poke` was called, or time is up."""

    def poke(self) -> None:
        """Wake `wait`."""

    def fence(self) -> tuple[Compare, ...]:
        """Compares that hold only in the store that the picture is of."""


class Member:
    """One agent's part in its job. `start` begins the thread; `close` ends it and gives the lease back."""

    def __init__(
        self,
        settings: RendezvousSettings,
        protocol: ProtocolSettings,
        store: Store,
        keys: Keys,
        source: WorldSource,
        guard: DeviceGuard,
        collector: Collector,
        health: HostMonitor,
        local: Local,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._protocol, self._store, self._keys = settings, protocol, store, keys
        self._source, self._guard, self._collector, self._health, self._say = source, guard, collector, health, say
        self._host = health.current()
        self.changed = threading.Condition()
        self._local = local
        self._memory = Memory()
        self._target = Target(Order.IDLE, "starting")
        self._lease: Lease | None = None
        self._host_written: tuple[int, HostRecord] | None = None
        self._pids: Mapping[int, int] = {}
        self._error_files: Mapping[int, str] = {}
        self._base_rank = 0
        self._ended: dict[int, Ended] = {}
        self._told: dict[int, Ended] = {}
        self._watching = False
        self._watched_since = 0.0
        self._said = ""
        self._next_sample = 0.0
        self._next_locks = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heet-member", daemon=True)
        self.reached = False  # etcd and a coordinator (or a self-formed round) were reached
        self.error: BaseException | None = None

    # ------------------------------------------------------------------ for the thread that torch runs

    def start(self) -> None:
        """Begin. Idempotent."""
        if not self._thread.is_alive() and not self._stop.is_set():
            self._thread.start()

    @property
    def target(self) -> Target:
        """The newest order."""
        return self._target

    @property
    def memory(self) -> Memory:
        """What the protocol remembers."""
        return self._memory

    def update(self, **facts: object) -> None:
        """Tell facts of Local that changed; wakes the thread."""
        with self.changed:
            self._local = replace(self._local, **facts)  # type: ignore[arg-type]
        self._source.poke()

    @property
    def local(self) -> Local:
        """What this process knows of itself."""
        return self._local

    def watch_workers(
        self, round_: int, pids: Mapping[int, int], error_files: Mapping[int, str], base_rank: int
    ) -> None:
        """Workers of a round were started: look at them from now on."""
        with self.changed:
            self._pids, self._error_files, self._base_rank = dict(pids), dict(error_files), base_rank
            self._watched_since = time.monotonic()
            self._ended, self._told = {}, {}
            self._watching = True
        self.update(workers=WorkerState.RUNNING, workers_round=round_, first_exit=False, failure=None)

    def tell_ended(self, exit_codes: Mapping[int, int]) -> None:
        """Workers (local rank -> exit code) that torch has reaped itself."""
        with self.changed:
            self._told = {rank: Ended(code) for rank, code in exit_codes.items()}
        self._source.poke()

    def stop_watching(self) -> None:
        """Workers are about to be stopped: their ends mean nothing from now on."""
        with self.changed:
            self._watching = False

    def publish(self, round_store: RoundStore) -> Outcome:
        """Publish a round's store under this agent's lease, iff that round still is the newest."""
        key = self._keys.allocation(self._settings.job)
        world = self._source.world()
        current = world.job.allocation
        if current is None or current.record.round != round_store.round or self._lease is None:
            return Lost(0)
        compares = [*self._source.fence(), Compare(key, "mod_revision", current.mod_revision)]
        put = Put(self._keys.round_store(self._settings.job, round_store.round), encode(round_store), self._lease.id)
        return self._store.txn(compares, [put])

    def round_store(self, round_: int) -> RoundStore | None:
        """Where that round's store listens, once its rank-0 agent has published it."""
        return self._source.world().job.stores.get(round_)

    def address_of(self, agent: str) -> str:
        """Address in the agent's record; empty when unknown."""
        versioned = self._source.world().job.agents.get(agent)
        return versioned.record.address if versioned else ""

    def begin_round(self, round_: int, configuration: Configuration | None, local_workers: int) -> Mapping[str, str]:
        """Environment of the round's workers; samples count for this configuration from now on."""
        with self.changed:
            return self._collector.round_environment(round_, configuration, local_workers)

    def close(self, farewell_s: float = 2.0) -> None:
        """End: last samples, last words of the protocol (a leaving agent's), lease revoked. Never raises."""
        if not self._thread.is_alive():
            self._collector.close()
            return
        deadline = time.monotonic() + farewell_s
        while self._local.leaving and self._farewell_due() and time.monotonic() < deadline:
            with self.changed:
                self.changed.wait(0.05)
        self._stop.set()
        self._source.poke()
        self._thread.join(5.0)
        if self._lease is not None:
            with contextlib.suppress(HeetError):
                self._lease.revoke()
        self._collector.close()

    def _farewell_due(self) -> bool:
        world = self._source.world()
        allocation = world.job.allocation
        if not world.connected or allocation is None or world.job.result is not None:
            return False
        members = [m.agent for m in allocation.record.members]
        survives = any(m.agent == self._local.agent for m in allocation.record.survivors)
        if survives and self._memory.over < allocation.record.round:
            return True  # the others wait for our word that our old workers are gone
        return members == [self._local.agent] or (
            self._local.agent in members and not any(a in world.job.agents for a in members if a != self._local.agent)
        )

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                version = self._source.version()
                self._step()
                self._source.wait(version, TICK_S if self._watching else 0.2)
            self._write_samples()
        except BaseException as e:
            # Training must not die of this thread, but a rendezvous that waits for it must hear of it.
            log.exception("the rendezvous thread ended")
            with self.changed:
                self.error = e
                self.changed.notify_all()

    def _step(self) -> None:
        world = self._source.world()
        self._look_at_workers()
        now = time.monotonic()
        with self.changed:
            local, before = self._local, self._memory
        step = advance(now, world, local, before, self._protocol)
        with self.changed:
            self._memory, self._target = step.memory, step.target
            self.reached = self.reached or world.led or step.target.order in (Order.FORM, Order.FINISH)
            self.changed.notify_all()
        self._tell(world, step.target)
        if not world.connected:
            return
        try:
            self._keep_registered(now)
            for action in step.actions:
                self._apply(action)
            self._sample(now)
        except StoreUnavailableError as e:
            log.info("etcd did not answer: %s", e)
            self._stop.wait(0.1)

    def _look_at_workers(self) -> None:
        with self.changed:
            if not self._watching:
                return
            ended = peek(self._pids, {**self._told, **self._ended})
            if ended == self._ended:
                return
            self._ended = ended
            local = self._local
            failed = {r: e for r, e in ended.items() if e.exit_code != 0}
            facts: dict[str, object] = {"first_exit": local.first_exit or any(e.exit_code == 0 for e in ended.values())}
            if failed:
                facts |= {
                    "workers": WorkerState.FAILED,
                    "failure": local.failure or self._failure(failed),
                    "died_of_sigterm": any(e.by_sigterm for e in failed.values()),
                }
            elif len(ended) == len(self._pids):
                facts["workers"] = WorkerState.SUCCEEDED
            self._local = replace(local, **facts)  # type: ignore[arg-type]

    def _failure(self, failed: Mapping[int, Ended]) -> Failure:
        lived_s = time.monotonic() - self._watched_since
        reports = {r: read_error(self._error_files.get(r), e.exit_code, lived_s) for r, e in failed.items()}
        rank = next((r for r in reports if not reports[r].secondary), next(iter(reports)))
        report = reports[rank]
        return Failure(
            round=self._local.workers_round,
            agent=self._local.agent,
            host=self._local.host,
            rank=self._base_rank + rank,
            exit_code=failed[rank].exit_code,
            error=report.message,
            place=report.place,
            steps=self._collector.steps(),
            secondary=report.secondary,
        )

    def _tell(self, world: World, target: Target) -> None:
        """One line when what we wait for has changed."""
        reason = (
            target.reason if world.connected else f"etcd at {self._settings.endpoint} does not answer, trying again"
        )
        forms = target.order is Order.FORM
        hindered = forms and target.allocation is not None and reason != target.allocation.reason
        if (target.order is Order.IDLE or hindered) and self._local.asking and reason and reason != self._said:
            self._said = reason
            self._say(f"waiting: {reason}")
        elif target.order is not Order.IDLE and not hindered:
            self._said = ""

    def _keep_registered(self, now: float) -> None:
        """Have a living lease and this host's record under it; look at the device locks while idle."""
        if self._lease is None or not self._lease.alive:
            self._lease = self._store.lease(self._settings.ttl_s, lambda _reason: self._source.poke())
            self._host_written = None
        if now >= self._next_locks:
            self._next_locks = now + LOOK_S
            self._look_at_host()
        wanted = (self._lease.id, self._host)
        if self._host_written != wanted:
            put = Put(self._keys.host(self._host.host, self._host.agent), encode(self._host), self._lease.id)
            if isinstance(self._store.txn(list(self._source.fence()), [put]), Committed):
                self._host_written = wanted

    def _look_at_host(self) -> None:
        """Health of the devices and locks of others on them; a dead reaper is replaced while workers live."""
        if self._watching:
            self._guard.start()
        locked = self._guard.locked_by_others([g.uuid for g in self._host.gpus])
        current = self._health.current(self._guard.held, self._guard.alive)
        self._host = replace(current, locked=locked)

    def _apply(self, action: Action) -> None:
        if self._lease is None:
            return
        if isinstance(action, PutRecord) and self._local.leaving and self._stop.is_set():
            return
        job, agent = self._settings.job, self._local.agent
        compares, operations = transaction(self._keys, job, agent, action, self._lease.id, self._source.fence())
        outcome = self._txn(compares, operations)
        if isinstance(action, WriteResult) and isinstance(outcome, Committed):
            self._mark_ended(action.result)

    def _txn(self, compares: list[Compare], operations: list[Operation]) -> Outcome:
        outcome = self._store.txn(compares, operations)
        # Do not step again on a picture older than our own write (or than what made it lose).
        deadline = time.monotonic() + (2.0 if isinstance(outcome, Committed) else 0.3)
        while self._source.revision() < outcome.revision and time.monotonic() < deadline:
            self._source.wait(self._source.version(), 0.02)
        return outcome

    def _mark_ended(self, result: Result) -> None:
        """Who comes within `late_join_s` seconds is late for this run, not the first of a new one."""
        if self._settings.late_join_s <= 0:
            return
        lease = self._store.lease(max(self._settings.late_join_s, 1.0))
        lease.abandon()
        put = Put(self._keys.ended(self._settings.job), encode(result), lease.id)
        self._store.txn(list(self._source.fence()), [put])

    def _sample(self, now: float) -> None:
        with self.changed:
            self._collector.poll()
        if now >= self._next_sample:
            self._next_sample = now + self._settings.sample_interval_s
            self._write_samples()

    def _write_samples(self) -> None:
        with self.changed:
            self._collector.poll()
            record = self._collector.record(self._local.agent)
        if not record.datagrams or self._memory.spec is None:
            return
        put = Put(self._keys.samples(self._settings.job, self._local.agent), encode(record))
        with contextlib.suppress(StoreUnavailableError):
            self._store.txn(list(self._source.fence()), [put])
