"""Hand-built snapshots for tests of `decide`, and a tiny store that applies its actions as agents would answer them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
    HostRecord,
    JobSpec,
    JobView,
    Snapshot,
    Versioned,
    merge_hosts,
)
from heet_elastic.scheduler.api import Choice, Policy, Problem
from heet_elastic.scheduler.policies import POLICIES

SETTINGS = CoordinatorSettings(settle_s=0.0, settle_most_s=0.0, cooldown_s=0.0)


def host(name: str, kind: str = "T4", gpus: int = 4, agents: Iterable[str] = (), **more: object) -> Host:
    """A live host; `agents`: names of processes besides the jobs' agents."""
    devices = tuple(Gpu(uuid=f"{name}-g{i}", host_type=kind, model=kind) for i in range(gpus))
    return replace(Host(name, devices, "10.0.0.1", f"boot-{name}", tuple(agents)), **more)  # type: ignore[arg-type]


def agent(
    name: str, on: str, state: AgentState = AgentState.WAITING, round_: int = 0, most: int = 8, **more: object
) -> AgentRecord:
    """An agent's record; `clean` is its round unless given."""
    more.setdefault("clean", round_)
    return AgentRecord(name, on, "10.0.0.1", state, round=round_, most_workers=most, **more)  # type: ignore[arg-type]


def spec(job: str, hosts: tuple[int, int] = (1, 4), **more: object) -> JobSpec:
    """A job of `hosts` = (MIN, MAX)."""
    return JobSpec(job, job, "run1", min_hosts=hosts[0], max_hosts=hosts[1], **more)  # type: ignore[arg-type]


def view(
    asked: JobSpec,
    agents: Iterable[AgentRecord] = (),
    allocation: Allocation | None = None,
    control: Control | None = None,
    **more: object,
) -> JobView:
    """A job's view; revisions are made up."""
    return JobView(
        asked.job,
        spec=Versioned(asked, 1, 1),
        allocation=None if allocation is None else Versioned(allocation, 2, 10 + allocation.round),
        agents={a.agent: Versioned(a, 3, 20) for a in agents},
        control=None if control is None else Versioned(control, 4, 4),
        **more,  # type: ignore[arg-type]
    )


def snapshot(hosts: Iterable[Host], views: Iterable[JobView], **more: object) -> Snapshot:
    """A snapshot at revision 100."""
    return Snapshot(100, {h.name: h for h in hosts}, {v.job: v for v in views}, **more)  # type: ignore[arg-type]


def row(axes: Axes, speed: Mapping[str, float], exponent: float = 0.9, **more: object) -> Row:
    """A row with speed[h] x w^exponent on every host type (0 where not named)."""
    counts = np.arange(1, axes.workers + 1, dtype=np.float64) ** exponent
    table = np.stack([speed.get(h, 0.0) * counts for h in axes.host_types])
    shape = table.shape
    return Row(
        np.repeat(table[..., None], 2, axis=2),
        np.full(shape, 0.1),
        np.zeros((*shape, 2), dtype=np.int8),
        **more,  # type: ignore[arg-type]
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
