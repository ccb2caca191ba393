"""A cluster without processes: agents that obey the protocol over a memory store, and faults at every joint.

Time, delivery of store events, process ends and the fate of transactions are all moved by the test. What torch and the
handler do between two steps of the protocol is modelled in `LabAgent.obey`: stopping workers, device locks, the round's
store with its acknowledgements.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from heet_elastic.coordinator.api import Memory as DecideMemory
from heet_elastic.coordinator.api import Table
from heet_elastic.coordinator.api import World as DecideWorld
from heet_elastic.coordinator.decide import decide
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.coordinator.election import Term, campaign
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.coordinator.writes import transactions
from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import (
    Allocation,
    Epoch,
    Failure,
    Gpu,
    HostRecord,
    JobSpec,
    JobView,
    Snapshot,
    check_invariants,
)
from heet_elastic.predictor import METHODS
from heet_elastic.rendezvous.protocol import advance
from heet_elastic.rendezvous.values import Local, Memory, Order, ProtocolSettings, Target, WorkerState, World
from heet_elastic.rendezvous.writes import transaction
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.store.api import Committed, Compare, Lease, Operation, Outcome, Put, View, absent
from heet_elastic.store.fence import ensure_store_id, fence
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder
from tests.faults.injector import FaultScript, FaultyStore

JOB = "j"
FATES = ("lost", "lost on the way", "applied but unknown", "late")
SETTINGS = ProtocolSettings(ttl_s=2.0, acknowledge_s=2.0, stop_limit_s=20.0, fence_s=6.0)
KEYS = Keys()


@dataclass
class LabAgent:
    """One torchrun: its own (perhaps old) view of the store, its workers, its locks."""

    lab: Lab
    local: Local
    devices: tuple[str, ...]
    memory: Memory = field(default_factory=Memory)
    target: Target = field(default_factory=lambda: Target(Order.IDLE))
    view: View | None = None
    decoder: SnapshotDecoder = field(default_factory=lambda: SnapshotDecoder(KEYS))
    connected_since: float = 0.0
    cut: bool = False
    cut_at: float = 0.0
    frozen: bool = False  # SIGSTOP
    lease: Lease | None = None
    host_written: tuple[int, tuple[str, ...]] | None = None
    stop_delay_until: float | None = None
    exit: str = ""
    forming: Allocation | None = None
    generation: int = 1
    store_id: bytes = b""

    @property
    def id(self) -> str:
        return self.local.agent

    @property
    def job(self) -> str:
        return self.local.asked.job

    @property
    def running(self) -> bool:
        """Whether worker processes live (running, failed siblings count as ended)."""
        return self.local.workers is WorkerState.RUNNING

    def fetch(self) -> None:
        """The newest view reaches this agent."""
        if self.cut or self.frozen:
            return
        store_id = ensure_store_id(self.lab.store, KEYS)
        if store_id != self.store_id:
            self.generation += 1
            self.store_id = store_id
            self.host_written = None
        self.view = self.lab.store.read(KEYS.root)

    def world(self) -> World:
        snapshot: Snapshot = self.decoder.decode(self.view, None).snapshot if self.view else Snapshot(0)
        return World(
            job=snapshot.jobs.get(self.job, JobView(self.job)),
            epoch=snapshot.epoch,
            led=snapshot.leader is not None,
            hosts=snapshot.hosts,
            claims=snapshot.claims,
            connected=not self.cut and self.view is not None,
            connected_since=self.connected_since,
            silent_s=self.lab.now - self.cut_at if self.cut else 0.0,
            generation=self.generation,
        )

    def step(self) -> None:
        if self.frozen or self.exit:
            return
        step = advance(self.lab.now, self.world(), self.local, self.memory, self.lab.settings)
        self.memory, self.target = step.memory, step.target
        if self.cut or self.view is None:
            return
        self._register()
        for action in step.actions:
            compares, operations = transaction(
                KEYS, self.job, self.id, action, self.lease.id if self.lease else 0, fence(KEYS, self.store_id)
            )
            try:
                self.lab.txn(compares, operations)
            except StoreUnavailableError:
                return

    def _register(self) -> None:
        if self.lease is None or not self.lease.alive:
            self.lease = self.lab.store.lease(self.lab.settings.ttl_s)
            self.host_written = None
        held = tuple(d for d in self.devices if self.lab.locks.get((self.local.host, d)) not in (None, self.id))
        if self.host_written != (self.lease.id, held):
            gpus = tuple(Gpu(d, "T4", "T4") for d in self.devices)
            record = HostRecord(self.local.host, self.id, "127.0.0.1", "boot", gpus, locked=held)
            put = Put(KEYS.host(self.local.host, self.id), encode(record), self.lease.id)
            outcome = self.lab.store.txn(list(fence(KEYS, self.store_id)), [put])
            if isinstance(outcome, Committed):
                self.host_written = (self.lease.id, held)

    def set(self, **facts: object) -> None:
        self.local = replace(self.local, **facts)  # type: ignore[arg-type]

    def obey(self) -> None:
        """What the thread that torch runs does about the target."""
        if self.frozen or self.exit:
            return
        if self.target.order is Order.REFUSE:
            self.lab.end(self, "refused")
        elif self.target.order is Order.FINISH:
            self.lab.end(self, self.target.result.outcome if self.target.result else "?")
        elif self.local.leaving:
            self._stop_workers()
            newest = self.memory.allocation.round if self.memory.allocation else 0
            self.set(clean=newest + 1, workers=WorkerState.NONE)
        elif self.local.workers is WorkerState.SUCCEEDED:
            return
        elif self.target.order is Order.RESCALE:
            if self.stop_delay_until is None or self.lab.now >= self.stop_delay_until:
                self._stop_workers()
                self.set(workers=WorkerState.NONE, failure=None, first_exit=False, asking=True, died_of_sigterm=False)
                self.set(clean=self.memory.allocation.round if self.memory.allocation else 0)
        elif self.target.order is Order.IDLE and self.local.asking:
            newest = self.memory.allocation.round if self.memory.allocation else 0
            self.lab.unlock(self)
            self.set(clean=newest)
        elif self.target.order is Order.FORM and self.target.allocation:
            self._form(self.target.allocation)

    def _stop_workers(self) -> None:
        self.lab.break_collectives(self)
        self.lab.unlock(self)

    def _form(self, allocation: Allocation) -> None:
        member = allocation.member(self.id)
        assert member is not None
        self.set(clean=allocation.round)
        holders = {d: self.lab.locks.get((self.local.host, d)) for d in member.gpus}
        busy = tuple(d for d, h in holders.items() if h not in (None, self.id))
        if busy:
            self.set(busy=busy, busy_holder="somebody", busy_round=allocation.round)
            return
        self.lab.unlock(self)
        for device in member.gpus:
            self.lab.locks[self.local.host, device] = self.id
        self.forming = allocation
        self.lab.acknowledge(self, allocation)

    def formed(self, allocation: Allocation) -> None:
        self.forming = None
        self.stop_delay_until = None
        self.set(
            formed=allocation.round,
            workers=WorkerState.RUNNING,
            workers_round=allocation.round,
            asking=False,
            unacknowledged=(),
            busy=(),
        )


class Lab:
    """The cluster. Every method is one event; `check` holds the invariants."""

    def __init__(
        self,
        spec: JobSpec,
        hosts: int,
        devices: int = 1,
        settings: ProtocolSettings = SETTINGS,
        store: Callable[[Callable[[], float]], Any] | None = None,
    ) -> None:
        self.now = 1000.0
        self.settings = settings
        self.spec = spec
        self.devices = devices
        self.store = store(lambda: self.now) if store else MemoryStore(lambda: self.now, threads=False)
        self.script = FaultScript()
        self.faulty = FaultyStore(self.store, self.script)
        self.agents: dict[str, LabAgent] = {}
        self.locks: dict[tuple[str, str], str] = {}
        self.acks: dict[tuple[int, tuple[str, ...]], set[str]] = {}
        self.coordinators: list[LabCoordinator] = []
        self.hosts = [f"h{i}" for i in range(hosts)]
        self.count = 0
        self.highest: dict[str, int] = {}
        self.restarts: dict[str, int] = {}
        self.ends: list[tuple[str, str]] = []

    # ------------------------------------------------------------------ events

    def start(self, host: str, max_restarts: int = 1, spec: JobSpec | None = None) -> LabAgent:
        self.count += 1
        name = f"a{self.count:03d}"
        asked = replace(spec or self.spec, incarnation=f"i{self.count}")
        local = Local(name, host, "127.0.0.1", self.count, asked, self.devices, max_restarts, asking=True)
        agent = LabAgent(self, local, tuple(f"{host}-{i}" for i in range(self.devices)), connected_since=self.now)
        self.agents[name] = agent
        agent.fetch()
        return agent

    def crash(self, agent: LabAgent) -> None:
        """The host dies: record gone after the TTL, workers and locks at once, peers' collectives fail."""
        if agent.lease is not None:
            agent.lease.abandon()
        self._vanish(agent)

    def end(self, agent: LabAgent, how: str) -> None:
        """The process ends by itself."""
        agent.exit = how
        self.ends.append((agent.id, how))
        if agent.lease is not None and agent.lease.alive:
            agent.lease.revoke()
        self._vanish(agent)

    def _vanish(self, agent: LabAgent) -> None:
        self.agents.pop(agent.id, None)
        was_running = agent.running
        self.unlock(agent)
        if was_running:
            self.break_collectives(agent)

    def break_collectives(self, origin: LabAgent) -> None:
        """Workers of the same round fail within milliseconds of a peer's end."""
        for other in self.agents.values():
            same = (other.job, other.local.workers_round) == (origin.job, origin.local.workers_round)
            if other is not origin and other.running and same:
                self.worker_fails(other, secondary=True)

    def worker_fails(self, agent: LabAgent, secondary: bool = False) -> None:
        if not agent.running:
            return
        n = agent.local.workers_round
        failure = Failure(n, agent.id, agent.local.host, 0, 1, "boom", secondary=secondary, steps=5)
        agent.set(workers=WorkerState.FAILED, failure=failure)
        if not secondary:
            self.break_collectives(agent)

    def worker_succeeds(self, agent: LabAgent) -> None:
        if agent.running:
            agent.set(workers=WorkerState.SUCCEEDED, first_exit=True)

    def leave(self, agent: LabAgent) -> None:
        agent.set(leaving=True)

    def gone(self, agent: LabAgent) -> None:
        """A leaving agent's workers have ended; it gives its lease back."""
        self.end(agent, "left")

    def cut(self, agent: LabAgent) -> None:
        agent.cut, agent.cut_at = True, self.now
        if agent.lease is not None and agent.lease.alive:
            agent.lease.abandon()

    def reconnect(self, agent: LabAgent) -> None:
        agent.cut = False
        agent.lease = None
        agent.connected_since = self.now
        agent.fetch()

    def wipe(self) -> None:
        self.store.wipe()
        for coordinator in self.coordinators:
            coordinator.term = None
        for agent in self.agents.values():
            agent.lease = None
            agent.connected_since = self.now
        # What nobody in touch remembers is lost with the store.
        self.highest.clear()
        self.restarts.clear()
        for agent in self.agents.values():
            known = agent.memory.allocation
            if known is not None and not (agent.cut or agent.frozen):
                self.highest[agent.job] = max(self.highest.get(agent.job, 0), known.round)
                self.restarts[agent.job] = max(self.restarts.get(agent.job, 0), known.restarts_used)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.store.advance()

    def txn(self, compares: list[Compare], operations: list[Operation]) -> Outcome:
        return self.faulty.txn(compares, operations)

    def disturb(self, fates: Sequence[str]) -> None:
        """What becomes of the next transactions, one each (FATES)."""
        self.undisturbed()
        for n, fate in enumerate(fates, start=1):
            match fate:
                case "lost":
                    self.script.lost_txn_at(n)
                case "late":
                    self.script.late_txn_at(n, after_calls=2)
                case _:
                    self.script.unknown_txn_at(n, applied=fate == "applied but unknown")

    def undisturbed(self) -> None:
        """Transactions are answered again."""
        self.script.txns.clear()

    def unlock(self, agent: LabAgent) -> None:
        for device in [d for d, holder in self.locks.items() if holder == agent.id]:
            del self.locks[device]

    def acknowledge(self, agent: LabAgent, allocation: Allocation) -> None:
        """The round's TCPStore: complete when every member has acknowledged while rank 0 lives."""
        key = (allocation.round, tuple(m.agent for m in allocation.members))
        self.acks.setdefault(key, set()).add(agent.id)
        waiting = [self.agents.get(a) for a in key[1]]
        if all(a is not None and a.forming == allocation for a in waiting):
            for member in waiting:
                assert member is not None
                member.formed(allocation)
        elif agent.id == key[1][0]:
            missing = tuple(a for a in key[1] if a not in self.acks[key])
            agent.set(unacknowledged=missing, unacknowledged_round=allocation.round)

    # ------------------------------------------------------------------ settling and invariants

    def tick(self, agent: LabAgent) -> None:
        """One full turn of one agent."""
        agent.fetch()
        agent.step()
        agent.obey()
        self.check()

    def settle(self, seconds: float, dt: float = 0.25) -> None:
        """Everybody runs undisturbed for a while."""
        for _ in range(int(seconds / dt)):
            for coordinator in self.coordinators:
                if not coordinator.frozen:
                    coordinator.fetch()
                    coordinator.step()
                    self.check()
            for agent in sorted(self.agents.values(), key=lambda a: a.id):
                if agent.local.leaving and not agent.running and agent.local.clean > agent.local.workers_round:
                    self.tick(agent)
                    if agent.id in self.agents:
                        self.gone(agent)
                    continue
                self.tick(agent)
            self.advance(dt)

    def snapshot(self) -> Snapshot:
        return SnapshotDecoder(KEYS).decode(self.store.read(KEYS.root), None).snapshot

    def view(self, job: str = JOB) -> JobView:
        return self.snapshot().jobs.get(job, JobView(job))

    def check(self) -> None:
        snapshot = self.snapshot()
        assert not check_invariants(snapshot)
        for job, view in snapshot.jobs.items():
            self._check_rounds(job, view)
        for job in {a.job for a in self.agents.values()}:
            self._check_copies(job)

    def _check_rounds(self, job: str, view: JobView) -> None:
        """Rounds and restarts only grow; a round is within the job's limits, or empty."""
        if view.allocation is None or view.spec is None:
            return
        allocation, spec = view.allocation.record, view.spec.record
        if allocation.incarnation != spec.incarnation:
            return
        if allocation.round >= self.highest.get(job, 0):
            assert allocation.restarts_used >= self.restarts.get(job, 0)
            self.highest[job], self.restarts[job] = allocation.round, allocation.restarts_used
        if allocation.members:
            assert spec.max_workers is None or allocation.world_size <= spec.max_workers
            assert len(allocation.members) <= spec.max_hosts
            done = len(view.done)
            assert len(allocation.members) + done >= spec.min_hosts
            assert done or allocation.world_size >= spec.min_workers

    def _check_copies(self, job: str) -> None:
        """No two complete live copies of a job."""
        by_round: dict[int, set[str]] = {}
        for agent in self.agents.values():
            if agent.running and agent.job == job:
                by_round.setdefault(agent.local.workers_round, set()).add(agent.id)
        for older, newer in itertools.pairwise(sorted(by_round)):
            complete = self.members_of(older, by_round[older]) == by_round[older]
            assert not complete, f"rounds {older} and {newer} of {job} both run in full: {by_round}"

    def members_of(self, round_: int, some: set[str]) -> set[str]:
        return next((set(k[1]) for k in self.acks if k[0] == round_ and some <= set(k[1])), set())


class LabCoordinator:
    """One coordinator: its own (perhaps old) view, its term, the live `decide`."""

    def __init__(self, lab: Lab, name: str, settings: CoordinatorSettings) -> None:
        self.lab, self.name, self.settings = lab, name, settings
        self.policy = POLICIES[settings.policy]()
        self.predictor = METHODS[settings.predictor]([], np.random.default_rng(0))
        self.rng = np.random.default_rng(0)
        self.decoder = SnapshotDecoder(KEYS)
        self.view: View | None = None
        self.term: Term | None = None
        self.memory = DecideMemory()
        self.table = Table()
        self.frozen = False
        self.quiet_until = 0.0
        self.store_id = b""
        lab.coordinators.append(self)

    def fetch(self) -> None:
        store_id = ensure_store_id(self.lab.store, KEYS)
        if self.store_id and store_id != self.store_id:
            self.quiet_until = self.lab.now + self.settings.recovery_window_s
            self.term = None
        self.store_id = store_id
        self.view = self.lab.store.read(KEYS.root)

    def step(self) -> None:
        """One look at the newest view that it fetched; a stalled one acts on an old view when it wakes."""
        if self.frozen or self.view is None:
            return
        try:
            self._step()
        except StoreUnavailableError:
            return

    def _step(self) -> None:
        assert self.view is not None
        snapshot = self.decoder.decode(self.view, None).snapshot
        if self.term is None or not self.term.alive:
            if snapshot.leader is not None:
                return
            self.term = campaign(
                self.lab.store, KEYS, self.store_id, self.name, "heet", "", SETTINGS.ttl_s, lambda _: None
            )
            self.memory = DecideMemory()
            return
        if self.lab.now < self.quiet_until:
            return
        if snapshot.epoch is None:
            compares = [*self.term.compares(KEYS), absent(KEYS.epoch)]
            self.lab.txn(compares, [Put(KEYS.epoch, encode(Epoch(self.name)))])
            return
        self.table = refresh(self.table, snapshot, self.predictor, self.settings.most_workers)
        world = DecideWorld(snapshot, self.table, self.memory, self.term.leader.record.uuid)
        decision = decide(self.lab.now, world, self.policy, self.settings, self.rng)
        self.memory = decision.memory
        live = {j for j, v in snapshot.jobs.items() if v.spec is not None and v.result is None and v.agents}
        assert all(decision.reasons.get(j) for j in live), f"no reason: {live - decision.reasons.keys()}"
        for (compares, operations), _ in transactions(decision.actions, KEYS, snapshot):
            outcome = self.lab.txn([*self.term.compares(KEYS), *compares], operations)
            if isinstance(outcome, Committed):
                leader = self.lab.snapshot().leader
                assert leader is not None
                assert leader.record.uuid == self.term.leader.record.uuid, "a stale leader wrote"

    def stall(self) -> None:
        """SIGSTOP: its lease runs out meanwhile."""
        self.frozen = True
        if self.term is not None and self.term.alive:
            self.term.lease.abandon()
