"""Hand-built snapshots for tests of `decide`, and a tiny store that applies its actions as agents would answer them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heet_elastic.coordinator.api import (
    Allocate,
    Axes,
    Decision,
    DropClaims,
    Forget,
    Memory,
    Row,
    SetAccount,
    SetProfile,
    SetResult,
    SetStatus,
    Table,
    Unwant,
    Want,
    World,
)
from heet_elastic.coordinator.decide import decide
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Control,
    Gpu,
    Host,
    JobSpec,
    JobView,
    Member,
    Snapshot,
    Versioned,
)
from heet_elastic.scheduler.api import Choice, Policy, Problem
from heet_elastic.scheduler.policies import POLICIES

SETTINGS = CoordinatorSettings(settle_s=0.0, settle_most_s=0.0, cooldown_s=0.0)


def host(name: str, kind: str = "T4", gpus: int = 4, agents: Iterable[str] = (), **more: Any) -> Host:
    """A live host; `agents`: names of processes besides the jobs' agents."""
    devices = tuple(Gpu(uuid=f"{name}-g{i}", host_type=kind, model=kind) for i in range(gpus))
    return replace(Host(name, devices, "10.0.0.1", f"boot-{name}", tuple(agents)), **more)


def agent(
    name: str, on: str, state: AgentState = AgentState.WAITING, round_: int = 0, most: int = 8, **more: Any
) -> AgentRecord:
    """An agent's record; `clean` is its round unless given."""
    more.setdefault("clean", round_)
    return AgentRecord(name, on, "10.0.0.1", state, round=round_, most_workers=most, **more)


def spec(job: str, hosts: tuple[int, int] = (1, 4), **more: Any) -> JobSpec:
    """A job of `hosts` = (MIN, MAX)."""
    return JobSpec(job, job, "run1", min_hosts=hosts[0], max_hosts=hosts[1], **more)


def view(
    asked: JobSpec,
    agents: Iterable[AgentRecord] = (),
    allocation: Allocation | None = None,
    control: Control | None = None,
    **more: Any,
) -> JobView:
    """A job's view; revisions are made up."""
    return JobView(
        asked.job,
        spec=Versioned(asked, 1, 1),
        allocation=None if allocation is None else Versioned(allocation, 2, 10 + allocation.round),
        agents={a.agent: Versioned(a, 3, 20) for a in agents},
        control=None if control is None else Versioned(control, 4, 4),
        **more,
    )


def snapshot(hosts: Iterable[Host], views: Iterable[JobView], **more: Any) -> Snapshot:
    """A snapshot at revision 100."""
    return Snapshot(100, {h.name: h for h in hosts}, {v.job: v for v in views}, **more)


def row(axes: Axes, speed: Mapping[str, float], exponent: float = 0.9, **more: Any) -> Row:
    """A row with speed[h] x w^exponent on every host type (0 where not named)."""
    counts = np.arange(1, axes.workers + 1, dtype=np.float64) ** exponent
    table = np.stack([speed.get(h, 0.0) * counts for h in axes.host_types])
    shape = table.shape
    return Row(
        np.repeat(table[..., None], 2, axis=2),
        np.full(shape, 0.1),
        np.zeros((*shape, 2), dtype=np.int8),
        **more,
    )


@dataclass(frozen=True)
class Wants:
    """A policy that gives every job what the test says: job -> (host type, workers)."""

    wants: Mapping[str, tuple[str, int]]
    name: str = "wants"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        types = {h: i for i, h in enumerate(problem.host_types)}
        picked = [self.wants.get(j, ("", 0)) for j in problem.jobs]
        type_J = np.array([types.get(h, -1) if n else -1 for h, n in picked], dtype=np.int64)
        workers_J = np.array([n for _, n in picked], dtype=np.int64)
        frozen = problem.frozen_J
        type_J[frozen], workers_J[frozen] = problem.current_type_J()[frozen], problem.current_workers_J()[frozen]
        return Choice(type_J, workers_J, np.arange(len(picked), dtype=np.float64))


def ask(
    shot: Snapshot,
    policy: Policy | Mapping[str, tuple[str, int]] | str = "heet",
    now: float = 0.0,
    memory: Memory | None = None,
    settings: CoordinatorSettings = SETTINGS,
    table: Table | None = None,
) -> Decision:
    """One decision."""
    if isinstance(policy, str):
        policy = POLICIES[policy]()
    elif isinstance(policy, Mapping):
        policy = Wants(policy)
    kinds = sorted({g.host_type for h in shot.hosts.values() for g in h.gpus})
    axes = Axes(tuple(kinds), 64, tuple(8 for _ in kinds))
    world = World(shot, table or Table(axes), memory or Memory(), leader="leader-1")
    return decide(now, world, policy, settings, np.random.default_rng(0))


class Lab:
    """A store in miniature that applies decisions, with agents that answer rounds one step at a time.

    `using`: what each agent's workers really hold, which is what must never overlap.
    """

    def __init__(self, hosts: Iterable[Host], policy: Policy | Mapping[str, tuple[str, int]] | str = "heet") -> None:
        self.hosts = {h.name: h for h in hosts}
        self.policy = policy
        self.settings = SETTINGS
        self.table: Table | None = None
        self.now = 0.0
        self.revision = 1
        self.memory = Memory()
        self.views: dict[str, Any] = {}
        self.using: dict[str, frozenset[tuple[str, str]]] = {}
        self.decision = Decision((), "")
        self.overlaps: list[str] = []

    def _put(self, job: str, **changes: Any) -> None:
        old = self.views.get(job, JobView(job))
        self.views = {**self.views, job: replace(old, **changes)}

    def _versioned(self, record: Any, old: Versioned[Any] | None = None) -> Versioned[Any]:
        self.revision += 1
        return Versioned(record, old.create_revision if old else self.revision, self.revision)

    def submit(self, asked: JobSpec) -> None:
        self._put(asked.job, spec=self._versioned(asked))

    def put_agent(self, job: str, record: AgentRecord) -> None:
        agents = dict(self.views[job].agents)
        agents[record.agent] = self._versioned(record, agents.get(record.agent))
        self._put(job, agents=agents)

    def drop_agent(self, job: str, name: str) -> None:
        """Its lease ended; what its workers do is another matter."""
        agents = dict(self.views[job].agents)
        agents.pop(name)
        self._put(job, agents=agents)

    def control(self, job: str, **what: Any) -> None:
        self._put(job, control=self._versioned(Control(**what)))

    def snapshot(self) -> Snapshot:
        return Snapshot(self.revision, dict(self.hosts), self.views)

    def decide(self, seconds: float = 1.0) -> Decision:
        """Time passes, one decision is made and written."""
        self.now += seconds
        self.shot = self.snapshot()
        self.decision = ask(self.shot, self.policy, self.now, self.memory, self.settings, self.table)
        self.memory = self.decision.memory
        for action in self.decision.actions:
            self._apply(action)
        return self.decision

    def _apply(self, action: object) -> None:
        match action:
            case Allocate(job, allocation, expected):
                view = self.views[job]
                seen = view.allocation.mod_revision if view.allocation else 0
                if seen == expected and view.frozen is None and view.result is None:
                    self._put(job, allocation=self._versioned(allocation, view.allocation))
            case Want(job, wanted):
                self._put(job, wanted={**self.views[job].wanted, wanted.host: self._versioned(wanted)})
            case Unwant(job, name):
                self._put(job, wanted={h: w for h, w in self.views[job].wanted.items() if h != name})
            case SetStatus(job, status):
                self._put(job, status=self._versioned(status))
            case SetAccount(job, account):
                self._put(job, account=self._versioned(account))
            case SetResult(job, result):
                self._put(job, result=self._versioned(result))
            case Forget(job):
                self.views = {j: v for j, v in self.views.items() if j != job}
            case SetProfile() | DropClaims():
                pass

    def react(self, job: str, name: str) -> None:
        """The agent does its next step towards the newest round: stop, report clean, start, run."""
        view = self.views[job]
        record = view.agents[name].record
        newest = view.allocation.record if view.allocation is not None else None
        if newest is None:
            return
        member = newest.member(name) if view.result is None else None
        behind = record.round < newest.round
        state = record.state
        if (state is AgentState.RUNNING and (member is None or behind)) or (state is AgentState.FAILED and behind):
            self.put_agent(job, replace(record, state=AgentState.STOPPING, round=newest.round))
        elif state is AgentState.STARTING and not behind and member is not None:
            self._use(name, frozenset((member.host, d) for d in member.gpus))
            self.put_agent(job, replace(record, state=AgentState.RUNNING))
        elif (
            state is AgentState.STOPPING
            or (state is AgentState.STARTING and behind)
            or (state is AgentState.WAITING and member is not None)
        ):
            self.using.pop(name, None)
            state = AgentState.STARTING if member is not None else AgentState.WAITING
            self.put_agent(job, replace(record, state=state, round=newest.round, clean=newest.round))

    def _use(self, name: str, devices: frozenset[tuple[str, str]]) -> None:
        for other, held in self.using.items():
            if other != name and held & devices:
                self.overlaps.append(f"{name} starts on {sorted(held & devices)} while {other} runs there")
        self.using[name] = devices

    def calm(self, rounds: int = 30) -> None:
        """Decide and let every agent react until nothing changes."""
        for _ in range(rounds):
            before = self.views
            self.decide()
            for job, view in list(self.views.items()):
                for name in list(view.agents):
                    self.react(job, name)
            if all(
                v.allocation == before[j].allocation and v.agents == before[j].agents
                for j, v in self.views.items()
                if j in before
            ):
                return
        raise AssertionError(f"no calm after {rounds} decisions: {self.decision.reasons}")

    def round(self, job: str) -> Any:
        stored = self.views[job].allocation
        return None if stored is None else stored.record

    def gpus(self, job: str) -> dict[str, tuple[str, ...]]:
        """Devices of each member of the newest round, in rank order."""
        newest = self.round(job)
        return {} if newest is None else {m.agent: m.gpus for m in newest.members}


def planned(
    round_: int, members: Iterable[tuple[str, str, tuple[str, ...]]], cause: Cause = Cause.PLAN, **more: Any
) -> Allocation:
    """A round; `members` as (agent, host, devices)."""
    more.setdefault("leader", "leader-0" if cause is Cause.PLAN else "")
    return Allocation(
        round_,
        cause,
        tuple(Member(*m) for m in members),
        "as before",
        incarnation="run1",
        **more,
    )
