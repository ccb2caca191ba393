"""The loop: events of a virtual cluster on one side, the live `decide` on the other.

Like the live coordinator it keeps a snapshot up to date, asks `decide` after every instant at which the store changed
and when `decide` wanted to be woken, and writes what it returns. What etcd, agents and workers do live (devices that
become free when old workers are gone, samples, completions) is played by events here. One seed, one event log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from heet_elastic.coordinator.api import Allocate, Decision, Forget, Memory
from heet_elastic.coordinator.api import World as DecideWorld
from heet_elastic.coordinator.decide import decide
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import AgentState, Allocation, Cause, Host, Member, configuration_of
from heet_elastic.scheduler.api import Policy
from heet_elastic.simulator.clock import Clock
from heet_elastic.simulator.feed import Feed
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.metrics import RunResult
from heet_elastic.simulator.progress import Body, Workers
from heet_elastic.simulator.recorder import Recorder
from heet_elastic.simulator.settings import SimulationSettings
from heet_elastic.simulator.truth import Truth
from heet_elastic.simulator.world import LEADER, World, agent_name

STALLED_S = 30 * 86400.0
"""Virtual time without any event of a job after which a run is given up: its jobs can never start."""
SAMPLE_DELAY_S = 2.0
"""From a round's first step to its first samples in the store."""


class Kind(IntEnum):
    """Events, in the order in which those of one instant are applied."""

    DOWN = 0
    UP = 1
    DONE = 2
    FREED = 3
    SAMPLED = 4
    ARRIVE = 5
    WAKE = 6


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens. `stamp`: a job's epoch or a wake's number; an event that was overtaken is void."""

    kind: Kind
    name: str = ""
    stamp: int = 0
    round: int = 0


Report = Callable[[float], bool]
"""Called with the share of jobs that are done; returns True to stop the run early."""


class Simulation:
    """One run of one policy on one set of jobs."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        truth: Truth,
        policy: Policy,
        feed: Feed,
        settings: SimulationSettings,
        hosts: Mapping[str, Host],
        placed: Mapping[str, Workers] = MappingProxyType({}),
        report: Report = lambda _: False,
    ) -> None:
        self.truth, self.policy, self.feed, self.settings, self.report = truth, policy, feed, settings, report
        self.hosts = dict(hosts)
        self.placed = placed
        self.types = {(h.name, g.uuid): g.host_type for h in self.hosts.values() for g in h.gpus}
        self.world = World(self.hosts)
        self.clock: Clock[Event] = Clock()
        self.jobs = {j.job: j for j in jobs}
        self.bodies: dict[str, Body] = {}
        self.active: dict[str, Body] = {}
        self.memory = Memory()
        self.coordinator = coordinator_settings(settings, policy)
        self.rng = np.random.default_rng([settings.seed, 0x73696D])
        self.failure_rng = np.random.default_rng([settings.seed, 0x6661696C])
        self.decision_s: list[float] = []
        self.recorder = Recorder()
        self._wake = 0
        self._boots = 0
        self._finished = 0
        self._moved_at = 0.0

    def run(self) -> RunResult:
        """Run until every job is done, `report` asks to stop, or nothing can happen any more."""
        began = time.perf_counter()
        for job in self.jobs.values():
            self.clock.at(job.submit_s, Kind.ARRIVE, Event(Kind.ARRIVE, job.job))
        if self.settings.failures.mtbf_s > 0:
            for host in self.hosts:
                self._schedule_failure(host)
        stopped = False
        while self._finished < len(self.jobs) and len(self.clock) and not stopped:
            happened = [self._apply(e) for e in self.clock.pop_instant()]
            if any(happened):
                self._decide()
            stopped = self.report(self._finished / len(self.jobs)) or self._stalled()
        return self._result(time.perf_counter() - began, stopped)

    def _stalled(self) -> bool:
        return (
            not self.recorder.busy
            and len(self.bodies) == len(self.jobs)
            and self.clock.now - self._moved_at > STALLED_S
        )

    # -- events ------------------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> bool:
        """Make `event` happen; False when it is void."""
        match event.kind:
            case Kind.ARRIVE:
                self._arrive(self.jobs[event.name])
            case Kind.DONE:
                return self._done(event)
            case Kind.FREED:
                self._freed(event)
            case Kind.SAMPLED:
                return self._sampled(event)
            case Kind.DOWN:
                self._down(event.name)
            case Kind.UP:
                self._up(event.name)
            case Kind.WAKE:
                return event.stamp == self._wake
        return True

    def _arrive(self, job: SimJob) -> None:
        factor = 1.0
        if self.settings.costs.spread > 0:
            rng = np.random.default_rng([self.settings.seed, 0x636F7374, len(self.bodies)])
            factor = float(rng.lognormal(0.0, self.settings.costs.spread))
        now, interval = self.clock.now, self.settings.costs.checkpoint_interval_s
        body = Body(job, interval, factor, since=now, waiting_since=now)
        self.bodies[job.job] = self.active[job.job] = body
        self.world.submit(job, self.truth.rows[job.row].family)
        self._note("arrive", job.job)
        if job.job in self.placed:
            self._adopt(body, self.placed[job.job])

    def _adopt(self, body: Body, workers: Workers) -> None:
        """The job runs here already: no cost, no restart."""
        job, members = body.job.job, []
        for host, gpus in sorted(workers.items()):
            members.append(Member(agent_name(job, self.hosts[host]), host, tuple(gpus)))
        configuration = configuration_of(members, self.types)
        now = Allocation(1, Cause.PLAN, tuple(members), "runs here already", 0, job, configuration, LEADER)
        self.world.allocate(Allocate(job, now, 0))
        self.world.set_agents(job, {m.agent: AgentState.RUNNING for m in members}, 1)
        self._start(body, now, workers, cost_s=0.0)

    def _done(self, event: Event) -> bool:
        body = self.bodies[event.name]
        if body.epoch != event.stamp or body.finish_s is not None:
            return False
        now = self.clock.now
        body.finish(now)
        allocation = self.world.jobs[event.name].allocation
        self.feed.put_sample(self.world, body, now)
        self.world.finish(event.name, 0 if allocation is None else allocation.record.round)
        self._stop(body)
        del self.active[event.name]
        self._finished += 1
        self._note("done", event.name)
        return True

    def _freed(self, event: Event) -> None:
        """Agents report that the workers of rounds before `event.round` are gone."""
        view = self.world.jobs.get(event.name)
        if view is None or view.allocation is None or view.result is not None:
            return
        members = {m.agent for m in view.allocation.record.members}
        states = {}
        for name, versioned in view.agents.items():
            record = versioned.record
            if record.clean < event.round and (record.state is not AgentState.WAITING or name in members):
                states[name] = AgentState.RUNNING if name in members else AgentState.WAITING
        self.world.set_agents(event.name, states, event.round)

    def _sampled(self, event: Event) -> bool:
        body = self.bodies[event.name]
        if body.epoch != event.stamp:
            return False
        self.feed.put_sample(self.world, body, self.clock.now)
        return True

    def _schedule_failure(self, host: str) -> None:
        wait = float(self.failure_rng.exponential(self.settings.failures.mtbf_s))
        self.clock.at(self.clock.now + wait, Kind.DOWN, Event(Kind.DOWN, host))

    def _down(self, host: str) -> None:
        for body in self.active.values():
            if host in body.workers:
                self._stop(body)
        self.world.lose_host(host, self.active)
        self.clock.at(self.clock.now + self.settings.failures.repair_s, Kind.UP, Event(Kind.UP, host))
        self._note("host down", host)

    def _up(self, host: str) -> None:
        self._boots += 1
        self.hosts[host] = replace(self.hosts[host], boot_id=f"boot-{self._boots}")
        self.world.return_host(self.hosts[host], self.active)
        self._schedule_failure(host)
        self._note("host up", host)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        now = self.clock.now
        self.feed.refresh_samples(self.world, self.active, now)
        snapshot = self.world.snapshot()
        began = time.perf_counter()
        table = self.feed.table(snapshot, self.active, now)
        decision = decide(
            now, DecideWorld(snapshot, table, self.memory, LEADER), self.policy, self.coordinator, self.rng
        )
        self.decision_s.append(time.perf_counter() - began)
        self.memory = decision.memory
        for action in decision.actions:
            if isinstance(action, Allocate):
                self._allocate(action)
            else:
                self.world.apply(action)
                if isinstance(action, Forget):
                    self.feed.forget(action.job)
        self._schedule_wake(decision)
        self.recorder.look(now, len(self.active))

    def _schedule_wake(self, decision: Decision) -> None:
        wait = self.policy_interval_s()
        if decision.wake_in_s is not None:
            wait = min(wait, max(decision.wake_in_s, 0.01))
        self._wake += 1
        self.clock.at(self.clock.now + wait, Kind.WAKE, Event(Kind.WAKE, stamp=self._wake))

    def policy_interval_s(self) -> float:
        """Longest time between two decisions."""
        return self.coordinator.interval_s

    def _allocate(self, action: Allocate) -> None:
        body = self.active.get(action.job)
        if body is None:
            return
        old = self.world.allocate(action)
        new = action.allocation
        had = body.workers
        self._stop(body)
        if new.members:
            workers: Workers = {m.host: m.gpus for m in new.members}
            self._start(body, new, workers, self._cost(body, had, workers))
        self._note("probe" if new.probe else "round", action.job, new=describe(new), why=new.reason)
        self._agents_after(action.job, old, new)

    def _start(self, body: Body, new: Allocation, workers: Workers, cost_s: float) -> None:
        now = self.clock.now
        rate, efficiency = self._speed(body, workers)
        body.start(now, workers, new.configuration, rate, efficiency, cost_s)
        self.recorder.started(body, now)
        done = body.completion()
        if math.isfinite(done):
            self.clock.at(done, Kind.DONE, Event(Kind.DONE, body.job.job, body.epoch))
        # A probe round ends when it has measured long enough: its agents write then, too.
        for after_s in (SAMPLE_DELAY_S, *((self.coordinator.probe_s + SAMPLE_DELAY_S,) if new.probe else ())):
            if self.feed.samples and body.busy_until + after_s < done:
                event = Event(Kind.SAMPLED, body.job.job, body.epoch)
                self.clock.at(body.busy_until + after_s, Kind.SAMPLED, event)

    def _agents_after(self, job: str, old: Allocation | None, new: Allocation) -> None:
        """Old workers end within the cost of a scale-down; then their agents report their devices free."""
        self.world.set_agents(job, {m.agent: AgentState.STARTING for m in new.members}, 0)
        was = {m.agent: set(m.gpus) for m in old.members} if old is not None else {}
        now_has = {m.agent: set(m.gpus) for m in new.members}
        gives = any(gpus - now_has.get(agent, set()) for agent, gpus in was.items())
        delay = self.settings.costs.down_s if gives else 0.0
        event = Event(Kind.FREED, job, round=new.round)
        if delay > 0:
            self.clock.at(self.clock.now + delay, Kind.FREED, event)
        else:
            self._freed(event)

    def _speed(self, body: Body, workers: Workers) -> tuple[float, float]:
        """(work units per second, scaling efficiency) of a placement."""
        by_type: dict[str, int] = {}
        for host, gpus in workers.items():
            for gpu in gpus:
                kind = self.types[host, gpu]
                by_type[kind] = by_type.get(kind, 0) + 1
        row, total, hosts = body.job.row, sum(by_type.values()), len(workers)
        if len(by_type) == 1:
            (host_type,) = by_type
            rate = self.truth.speed(row, host_type, total, hosts)
            return rate, rate / (total * self.truth.unit_speed(row, host_type)) if rate > 0 else 0.0
        rate = self.truth.mixed_speed(row, by_type, hosts)
        best = sum(n * self.truth.unit_speed(row, t) for t, n in by_type.items())
        return rate, rate / best if best > 0 else 0.0

    def _cost(self, body: Body, had: Workers, workers: Workers) -> float:
        costs = self.settings.costs
        before = {(host, g) for host, gpus in had.items() for g in gpus}
        after = {(host, g) for host, gpus in workers.items() for g in gpus}
        if after < before:
            return costs.down_s * body.cost_factor
        moved = bool(before) and {self.types[g] for g in before} != {self.types[g] for g in after}
        cost = costs.migrate_s if moved and costs.migrate_s is not None else costs.up_s
        return cost * body.cost_factor

    # -- records -----------------------------------------------------------------------------------------------------

    def _stop(self, body: Body) -> None:
        """Its workers end now."""
        if not body.workers:
            return
        self.recorder.stopping(body, self.clock.now)
        body.stop(self.clock.now)

    def _note(self, what: str, name: str, **fields: object) -> None:
        if name in self.jobs:
            self._moved_at = self.clock.now
        self.recorder.note(self.clock.now, what, name, **fields)

    def _result(self, wall_s: float, stopped: bool) -> RunResult:
        median = self.truth.median_type()
        outcomes = []
        for job in self.jobs.values():
            body = self.bodies.get(job.job) or Body(job, waiting_since=self.clock.now, since=self.clock.now)
            body.advance(self.clock.now)
            requested_s = job.total_work / self.truth.reference_speed(job.row, job.requested, median)
            outcomes.append(body.outcome(requested_s, self.clock.now))
        unfinished = len(self.jobs) - self._finished
        notes = () if not unfinished else (f"{self.policy.name}: {unfinished} jobs had not ended",)
        return RunResult(
            policy=self.policy.name,
            seed=self.settings.seed,
            jobs=tuple(outcomes),
            decision_s=tuple(self.decision_s),
            gpus=len(self.types),
            end_s=self.clock.now,
            complete=unfinished == 0 or not stopped,
            wall_s=wall_s,
            notes=notes,
            samples=tuple(self.recorder.samples),
            spans=tuple(self.recorder.spans),
            log=tuple(self.recorder.log),
        )


def describe(allocation: Allocation) -> list[str]:
    """The members of a round as `host:workers`."""
    return [f"{m.host}:{len(m.gpus)}" for m in allocation.members]


def coordinator_settings(settings: SimulationSettings, policy: Policy) -> CoordinatorSettings:
    """The live coordinator's settings for a simulated cluster: its costs, its interval, no ended jobs kept."""
    interval_s = settings.interval_s if settings.interval_s is not None else policy.interval_s
    return CoordinatorSettings(
        interval_s=max(interval_s, 1.0),
        rescale_up_s=settings.costs.up_s,
        rescale_down_s=settings.costs.down_s,
        settle_s=0.0,
        settle_most_s=0.0,
        fence_time_s=settings.failures.fence_s,
        retention_s=1e12,
        retained_jobs=0,
        account_interval_s=86400.0 * 365,
        status_interval_s=86400.0 * 365,
        late_join_s=0.0,
        retained_profiles=500 if settings.history else 0,
    )
