"""Histories of a cluster for the properties of `decide`: events of jobs, agents, hosts and people, each checked.

The lab is a store that applies decisions exactly, and hosts whose device locks are the local truth; agents answer in
any order and at any time. A vanished agent's workers end with it (crashed) or go on unseen (cut off), until another
member of their round stops its own: then they fail in the next collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from heet_elastic.coordinator.api import Allocate, Memory
from heet_elastic.model import (
    TRANSITIONS,
    AgentState,
    Allocation,
    Cause,
    Failure,
    Frozen,
    Host,
    Member,
    Phase,
    Result,
    Snapshot,
    check_invariants,
    order_members,
)
from heet_elastic.scheduler.policies import POLICIES
from tests.unit.decide_worlds import SETTINGS, Lab, agent, ask, host, spec

Pick = Callable[[Sequence[Any]], Any]
"""Chance: one of these."""

TYPES = ("T4", "V100")
POLICY_NAMES = tuple(p for p in ("heet", "market", "fifo", "srsf") if p in POLICIES)


class LockedLab(Lab):
    """A lab whose agents take device locks and report devices busy that somebody unseen still uses."""

    def __init__(self, hosts: Sequence[Host], policy: str) -> None:
        super().__init__(hosts, policy)
        self.settings = replace(SETTINGS, cooldown_s=5.0, settle_s=1.0, settle_most_s=3.0, ttl_s=2.0, fence_time_s=40.0)
        self.cut_off: dict[str, tuple[str, int]] = {}  # agent -> job and round of workers that nobody sees
        self.cut_at: dict[str, float] = {}
        self.broken: set[tuple[str, int]] = set()  # job and round of which a member has stopped
        self.copies: list[str] = []
        self.reports: dict[str, tuple[float, frozenset[str]]] = {}  # host -> when its locks were last tried, and which

    def snapshot(self) -> Snapshot:
        """As reported: an idle agent tries the locks of its host's devices every `lock_report_s`."""
        for name in self.hosts:
            at, locked = self.reports.get(name, (-1e9, frozenset()))
            if self.now - at >= self.settings.lock_report_s:
                locked = frozenset(d for held in self.using.values() for h, d in held if h == name)
                self.reports[name] = (self.now, locked)
            if self.hosts[name].locked != locked:
                self.hosts[name] = replace(self.hosts[name], locked=locked)
        return super().snapshot()

    def stop_workers(self, job: str, name: str, round_: int) -> None:
        """Workers of one member end, so those of the others of that round fail in their next collective."""
        self.using.pop(name, None)
        self.broken.add((job, round_))
        for other in [o for o, which in self.cut_off.items() if which == (job, round_)]:
            del self.cut_off[other]
            self.using.pop(other, None)

    def lose(self, job: str, name: str, crashed: bool) -> None:
        """The agent's record goes."""
        round_ = self.views[job].agents[name].record.clean
        self.drop_agent(job, name)
        if crashed or (job, round_) in self.broken:
            self.stop_workers(job, name, round_)
        elif name in self.using:
            self.cut_off[name] = (job, round_)
            self.cut_at[name] = self.now

    def fence(self) -> None:
        """A cut-off agent stops its own workers after the fence time."""
        for name in [n for n in self.cut_off if self.now - self.cut_at[n] >= self.settings.fence_time_s]:
            if name in self.cut_off:
                job, round_ = self.cut_off.pop(name)
                self.stop_workers(job, name, round_)

    def decide(self, seconds: float = 1.0) -> Any:
        self.now += seconds
        self.fence()
        return super().decide(0.0)

    def react(self, job: str, name: str) -> None:
        record = self.views[job].agents[name].record
        newest = self.round(job)
        if self.views[job].result is not None and record.state is not AgentState.RUNNING:
            self.stop_workers(job, name, record.clean)  # told by the result: it ends
            self.drop_agent(job, name)
            return
        moves = newest is not None and newest.round > record.clean
        if moves and record.state in (AgentState.STOPPING, AgentState.STARTING):
            self.stop_workers(job, name, record.clean)
        ended = self.views[job].result is not None
        member = newest.member(name) if newest is not None and not ended else None
        if record.state is AgentState.STARTING and member is not None and record.round == newest.round:
            devices = frozenset((member.host, d) for d in member.gpus)
            locked = sorted(d for o, held in self.using.items() if o in self.cut_off for _, d in held & devices)
            if locked:
                self.put_agent(job, replace(record, busy=tuple(locked), busy_holder="somebody"))
            elif self._acknowledged(job, newest):
                self._start(job, name, newest, member)
        else:
            super().react(job, name)

    def _acknowledged(self, job: str, newest: Allocation) -> bool:
        """Whether all members have come to the round, with the locks of their devices, so that it is complete."""
        unseen = frozenset().union(*(self.using[o] for o in self.cut_off if o in self.using))
        if any(unseen & {(m.host, d) for d in m.gpus} for m in newest.members):
            return False
        records = [self.views[job].agents.get(m.agent) for m in newest.members]
        return all(
            v is not None
            and v.record.round == newest.round
            and v.record.state in (AgentState.STARTING, AgentState.RUNNING)
            for v in records
        )

    def _start(self, job: str, name: str, newest: Allocation, member: Member) -> None:
        for other, (its_job, its_round) in self.cut_off.items():
            if its_job == job:
                self.copies.append(f"{name} starts round {newest.round} while {other} still runs round {its_round}")
        self._use(name, frozenset((member.host, d) for d in member.gpus))
        record = self.views[job].agents[name].record
        self.put_agent(job, replace(record, state=AgentState.RUNNING, busy=(), busy_holder=""))


class History:
    """Events by name; every one checks what must hold. `seen` counts what happened, to know that something did."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        sizes = [pick((1, 2, 4)) for _ in range(pick((2, 3, 4)))]
        self.boxes = [host(f"h{i}", TYPES[i % 2], n) for i, n in enumerate(sizes)]
        self.lab = LockedLab(self.boxes, pick(POLICY_NAMES))
        self.agents = self.submitted = 0
        self.phases: dict[str, Phase] = {}
        self.rounds: dict[str, int] = {}
        self.seen: Counter[str] = Counter()
        for _ in range(pick((1, 2, 3))):
            self.arrive()
        self.time_passes()

    def jobs(self) -> list[str]:
        return sorted(j for j, v in self.lab.views.items() if v.result is None)

    def live(self, *states: AgentState) -> list[tuple[str, str]]:
        return [
            (j, a)
            for j in self.jobs()
            for a, v in sorted(self.lab.views[j].agents.items())
            if not states or v.record.state in states
        ]

    # ---- events

    def possible(self) -> list[str]:
        """Events that can happen now; the more usual ones are named more than once."""
        names = ["time_passes"] * 16 + ["decision"] * 2 + ["new_leader"]
        if len(self.jobs()) < 5:
            names += ["arrive"]
        if self.jobs() and self.lab.hosts:
            names += ["agent_comes"] * 4 + ["person_acts"]
        if self.live():
            names += ["agent_acts"] * 2 + ["agent_vanishes", "agent_leaves"]
        if self.live(AgentState.RUNNING):
            names += ["verdict", "worker_fails", "ends_well"]
        if len(self.lab.hosts) > 1:
            names += ["host_vanishes"]
        if len(self.lab.hosts) < len(self.boxes):
            names += ["host_boots"] * 4
        if len(self.jobs()) > 1:
            names += ["job_ends"]
        if any(v.frozen for v in self.lab.views.values() if v.result is None):
            names += ["job_ends"] * 6
        return names

    def happen(self, name: str) -> None:
        """Let it happen, and check."""
        self.seen[name] += 1
        getattr(self, name)()
        assert check_invariants(self.lab.snapshot()) == []
        assert self.lab.overlaps == []
        assert self.lab.copies == []
        for job, view in self.lab.views.items():
            newest = view.allocation.record.round if view.allocation else 0
            assert newest >= self.rounds.get(job, 0), f"round of {job} fell"
            self.rounds[job] = newest

    def arrive(self) -> None:
        self.submitted += 1
        job, low, pick = f"j{self.submitted}", self.pick((1, 1, 2)), self.pick
        asked = spec(
            job,
            (low, low + pick((0, 1, 2, 3))),
            min_workers=pick((1, 1, 2, 3)),
            multiple_of=pick((1, 1, 1, 2)),
            priority=pick((1.0, 1.0, 4.0)),
        )
        self.lab.submit(asked)
        most = pick((1, 2, 4))
        for name in sorted(self.lab.hosts):
            if pick((True, True, False)):
                self._agent(job, name, most)

    def _agent(self, job: str, where: str, most: int) -> None:
        self.agents += 1
        self.lab.put_agent(job, agent(f"{job}-a{self.agents}", where, most=most))

    def agent_comes(self) -> None:
        self._agent(self.pick(self.jobs()), self.pick(sorted(self.lab.hosts)), self.pick((1, 2, 4)))

    def agent_vanishes(self) -> None:
        job, name = self.pick(self.live())
        self.lab.lose(job, name, self.pick((True, False)))

    def agent_leaves(self) -> None:
        job, name = self.pick(self.live())
        record = self.lab.views[job].agents[name].record
        if record.state is AgentState.LEAVING or name not in self.lab.using:
            self.lab.lose(job, name, crashed=True)
        else:
            self.lab.put_agent(job, replace(record, state=AgentState.LEAVING))

    def host_vanishes(self) -> None:
        name = self.pick(sorted(self.lab.hosts))
        del self.lab.hosts[name]
        for job, view in self.lab.views.items():
            for a in [a for a, v in view.agents.items() if v.record.host == name]:
                self.lab.lose(job, a, crashed=False)

    def host_boots(self) -> None:
        box = self.pick([b for b in self.boxes if b.name not in self.lab.hosts])
        self.lab.hosts[box.name] = replace(box, boot_id=f"boot at {self.lab.now}")
        for name in [n for n, held in self.lab.using.items() if any(h == box.name for h, _ in held)]:
            self.lab.using.pop(name)
            self.lab.cut_off.pop(name, None)
        for job in self.jobs():
            if self.pick((True, False)):
                self._agent(job, box.name, 4)

    def agent_acts(self) -> None:
        self.lab.react(*self.pick(self.live()))

    def time_passes(self) -> None:
        for _ in range(self.pick((1, 2, 4))):
            self.decision(self.pick((0.5, 1.0, 3.0)))
            for job, view in list(self.lab.views.items()):
                for name in list(view.agents):
                    self.lab.react(job, name)

    def verdict(self) -> None:
        """Members write a round: a failure, or without those that are gone or leaving; below the minimum: nobody."""
        job, name = self.pick(self.live(AgentState.RUNNING))
        view, old = self.lab.views[job], self.lab.round(job)
        if old is None or old.member(name) is None or view.frozen is not None:
            return
        stay = tuple(
            m
            for m in old.members
            if m.agent in view.agents and view.agents[m.agent].record.state is not AgentState.LEAVING
        )
        cause = Cause.FAILURE if len(stay) == len(old.members) else Cause.MEMBERSHIP
        asked = view.spec.record
        if len(stay) < asked.min_hosts or not asked.allows(sum(len(m.gpus) for m in stay)):
            stay = ()
        new = Allocation(old.round + 1, cause, order_members(old, stay), "by members", incarnation=old.incarnation)
        self.lab._put(job, allocation=self.lab._versioned(new, view.allocation))

    def worker_fails(self) -> None:
        job, name = self.pick(self.live(AgentState.RUNNING))
        view = self.lab.views[job]
        record = view.agents[name].record
        failure = self.lab._versioned(Failure(record.round, name, record.host, 0, 1, "boom"))
        self.lab.put_agent(job, replace(record, state=AgentState.FAILED))
        self.lab._put(job, failures={**view.failures, (record.round, name): failure})
        if self.pick((True, True, False)):
            self.lab.put_agent(job, record)  # the verdict's round follows
            old = self.lab.round(job)
            new = replace(old, round=old.round + 1, cause=Cause.FAILURE, leader="", releasing=())
            self.lab._put(job, allocation=self.lab._versioned(new, view.allocation))

    def person_acts(self) -> None:
        self.lab.control(self.pick(self.jobs()), action=self.pick(("pause", "run", "run", "run", "run", "cancel")))

    def ends_well(self) -> None:
        job, name = self.pick(self.live(AgentState.RUNNING))
        frozen = Frozen(name, self.lab.views[job].agents[name].record.round, "run1")
        self.lab._put(job, frozen=self.lab._versioned(frozen))

    def job_ends(self) -> None:
        frozen = [j for j in self.jobs() if self.lab.views[j].frozen is not None]
        self.lab._put(self.pick(frozen or self.jobs()), result=self.lab._versioned(Result("succeeded", "", "run1")))

    def new_leader(self) -> None:
        self.lab.memory = Memory()
        self.decision()

    def calm_down(self) -> None:
        """Nothing happens any more but that everybody does its part: then nobody may wait for anybody for ever."""
        lab = self.lab
        for box in self.boxes:
            lab.hosts.setdefault(box.name, replace(box, boot_id="last boot"))
        for job in self.jobs():
            view = lab.views[job]
            for name in [a for a, v in view.agents.items() if v.record.state is AgentState.LEAVING]:
                lab.lose(job, name, crashed=True)
            if view.frozen is not None:
                lab._put(job, result=lab._versioned(Result("succeeded", "", "run1")))
            elif view.control is not None and view.control.record.action == "pause":
                lab.control(job, action="run")
        for _ in range(40):
            self.decision(3.0)
            for job, view in list(lab.views.items()):
                for name in list(view.agents):
                    lab.react(job, name)
        self.decision(100.0)
        for job in self.jobs():
            reason = lab.decision.reasons[job]
            for words in ("releasing", "have ended", "proven quiet", "to get first", "waits for a placement"):
                assert words not in reason, f"{job} is stuck: {reason}"

    # ---- the decision

    def decision(self, seconds: float | None = None) -> None:
        memory = self.lab.memory
        made = self.lab.decide(self.pick((0.0, 0.3, 1.0, 7.0, 100.0, 5000.0)) if seconds is None else seconds)
        before = self.lab.shot
        self._same_in_any_order(before, memory)
        for action in made.actions:
            if isinstance(action, Allocate):
                self._check_round(action, before)
        for job in self.jobs():
            assert made.reasons[job], f"{job} has no reason"
            self.seen["waits for a hand-over"] += "releasing" in made.reasons[job]
            self.seen["waits for a quiet host"] += "proven quiet" in made.reasons[job]
            phase = self.lab.views[job].status.record.phase
            last = self.phases.get(job, phase)
            assert phase is last or phase in TRANSITIONS[last]
            self.phases[job] = phase
        assert made.wake_in_s > 0.0

    def _same_in_any_order(self, before: Snapshot, memory: Memory) -> None:
        hosts = {name: before.hosts[name] for name in reversed(list(before.hosts))}
        jobs = {name: before.jobs[name] for name in reversed(list(before.jobs))}
        memory = replace(memory, ghosts={}, shown={})  # what is only remembered to spare work
        again = ask(replace(before, hosts=hosts, jobs=jobs), self.lab.policy, self.lab.now, memory, self.lab.settings)
        assert again.actions == self.lab.decision.actions
        assert again.reasons == self.lab.decision.reasons

    def _check_round(self, action: Allocate, before: Snapshot) -> None:
        view, new = before.jobs[action.job], action.allocation
        assert view.spec is not None
        asked = view.spec.record
        old = view.allocation.record if view.allocation else None
        assert new.round == (old.round if old else 0) + 1
        assert view.frozen is None
        assert view.result is None
        kind = "first round" if old is None or not old.members else "round" if new.members else "round given back"
        self.seen[kind] += 1
        self.seen["round with devices not yet free"] += bool(new.releasing)
        if not new.members:
            return
        assert asked.min_hosts <= len(new.members) <= asked.max_hosts
        assert asked.rigid or asked.allows(new.world_size)
        for member in new.members:
            record = view.agents[member.agent].record
            assert record.host == member.host
            assert len(member.gpus) <= record.most_workers
            assert set(member.gpus) <= {g.uuid for g in before.hosts[member.host].gpus}
            assert not asked.rigid or len(member.gpus) == record.most_workers
        survivors = [m.agent for m in old.members if new.member(m.agent)] if old else []
        assert [m.agent for m in new.members][: len(survivors)] == survivors
