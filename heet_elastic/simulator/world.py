"""The store as the simulator keeps it: records of hosts, jobs and agents, changed one at a time, and its snapshot.

It plays the part of etcd and of the torchrun agents. Every change of a job replaces that job's JobView and no other, as
watch events do live, so `decide` recomputes only what changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from heet_elastic.coordinator.api import (
    Action,
    Allocate,
    Forget,
    SetAccount,
    SetProfile,
    SetResult,
    SetStatus,
)
from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Epoch,
    Host,
    JobSpec,
    JobView,
    LeaderRecord,
    Profile,
    Result,
    SampleRecord,
    Snapshot,
    Versioned,
)
from heet_elastic.simulator.jobs import SimJob

LEADER = "simulated-leader"


def agent_name(job: str, host: Host) -> str:
    """The one agent that a simulated job has on a host, since its last boot."""
    return f"{job[:60]}@{host.name}/{host.boot_id}"


class World:
    """Mutable records with an immutable view. Revisions grow by one with every change, as etcd's do."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self.revision = 1
        self.hosts: Mapping[str, Host] = MappingProxyType(dict(hosts))
        self.jobs: dict[str, JobView] = {}
        self.profiles: dict[str, Profile] = {}
        self._leader = Versioned(LeaderRecord(LEADER, "simulator", 0, ""), 1, 1)
        self._epoch = Epoch(LEADER)

    def snapshot(self) -> Snapshot:
        """What `decide` sees now; stays as it is when the world goes on. What did not change is the same object."""
        return Snapshot(
            revision=self.revision,
            hosts=self.hosts,
            jobs=MappingProxyType(dict(self.jobs)),
            leader=self._leader,
            epoch=self._epoch,
            profiles=self.profiles,
        )

    def submit(self, job: SimJob, family: str) -> None:
        """A new job: its spec, and one waiting agent of it on every host that is up."""
        self.revision += 1
        spec = JobSpec(
            job=job.job,
            name=job.row,
            incarnation=job.job,
            min_hosts=1,
            max_hosts=len(self.hosts) + 1,  # one more than there are, so that one host does not make it rigid
            min_workers=job.min_workers,
            max_workers=job.max_workers,
            requested_workers=job.requested,
            priority=job.priority,
            total_work=job.total_work,
            work_unit="samples",
            script=family,
        )
        agents = {a.agent: self._versioned(a) for a in (self._agent(job.job, h) for h in self.hosts.values())}
        self.jobs[job.job] = JobView(job.job, spec=self._versioned(spec), agents=agents)

    def _agent(self, job: str, host: Host) -> AgentRecord:
        return AgentRecord(
            agent=agent_name(job, host),
            host=host.name,
            address=host.name,
            state=AgentState.WAITING,
            most_workers=len(host.gpus),
            incarnation=job,
        )

    def _versioned(self, record: Any) -> Versioned[Any]:
        return Versioned(record, self.revision, self.revision)

    def _changed(self, old: Versioned[Any] | None, record: Any) -> Versioned[Any]:
        return Versioned(record, self.revision if old is None else old.create_revision, self.revision)

    def apply(self, action: Action) -> None:
        """Write an action that only changes records (allocations are the engine's business, see `allocate`)."""
        self.revision += 1
        match action:
            case SetAccount(job, account) if job in self.jobs:
                view = self.jobs[job]
                self.jobs[job] = replace(view, account=self._changed(view.account, account))
            case SetStatus(job, status) if job in self.jobs:
                view = self.jobs[job]
                self.jobs[job] = replace(view, status=self._changed(view.status, status))
            case SetResult(job, result) if job in self.jobs and self.jobs[job].result is None:
                self.jobs[job] = replace(self.jobs[job], result=self._versioned(result), agents={})
            case SetProfile(name, profile):
                self.profiles = {**self.profiles, name: profile}
            case Forget(job):
                self.jobs.pop(job, None)
            case _:
                pass

    def allocate(self, action: Allocate) -> Allocation | None:
        """Write a plan; the allocation that it replaced. LookupError when its compare does not hold (a lost race)."""
        view = self.jobs[action.job]
        seen = 0 if view.allocation is None else view.allocation.mod_revision
        if seen != action.expected_revision or view.frozen is not None or view.result is not None:
            raise LookupError(f"round {action.allocation.round} of {action.job} lost its race")
        self.revision += 1
        self.jobs[action.job] = replace(view, allocation=self._changed(view.allocation, action.allocation))
        return None if view.allocation is None else view.allocation.record

    def set_agents(self, job: str, states: Mapping[str, AgentState], round_: int) -> None:
        """Agents report a state about `round_`: they have stopped the workers of every round before it."""
        view = self.jobs.get(job)
        if view is None:
            return
        self.revision += 1
        agents = dict(view.agents)
        for name, state in states.items():
            old = agents.get(name)
            if old is not None:
                agents[name] = self._changed(old, replace(old.record, state=state, round=round_, clean=round_))
        self.jobs[job] = replace(view, agents=agents)

    def put_sample(self, job: str, sample: SampleRecord) -> None:
        """The job's counters, written by one of its agents."""
        view = self.jobs[job]
        self.revision += 1
        self.jobs[job] = replace(view, samples={sample.agent: sample})

    def finish(self, job: str, round_: int) -> None:
        """All members of the job's round are done."""
        view = self.jobs[job]
        self.revision += 1
        result = Result(outcome="succeeded", reason="all workers ended with 0", incarnation=job, round=round_)
        self.jobs[job] = replace(view, result=self._versioned(result), agents={})

    def lose_host(self, host: str, jobs: Iterable[str]) -> None:
        """The host and every agent on it vanish; `jobs`: all that are in the system."""
        self.revision += 1
        gone = self.hosts[host]
        self.hosts = MappingProxyType({name: h for name, h in self.hosts.items() if name != host})
        for job in jobs:
            view = self.jobs.get(job)
            if view is not None and (name := agent_name(job, gone)) in view.agents:
                self.jobs[job] = replace(view, agents={a: v for a, v in view.agents.items() if a != name})

    def return_host(self, host: Host, jobs: Iterable[str]) -> None:
        """The host is back (booted anew), with a new waiting agent of every job in the system."""
        self.revision += 1
        self.hosts = MappingProxyType(dict(sorted({**self.hosts, host.name: host}.items())))
        for job in jobs:
            view = self.jobs.get(job)
            if view is not None and view.result is None:
                record = self._agent(job, host)
                self.jobs[job] = replace(view, agents={**view.agents, record.agent: self._versioned(record)})
