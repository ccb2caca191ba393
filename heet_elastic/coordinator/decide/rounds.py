"""From targets to rounds: who must write what, in which order, and who still waits for whom.

A round is written only when all of its devices are free: jobs that only give go first, their devices are free once
their agents have reported so, and the receiver's round follows then. Jobs that wait for one another in a circle (two
that swap hosts, or one whose agents on a host pass devices on to each other) would wait for ever: one of them gives up
what it is to lose at once.

No two copies of a job: see `copies`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heet_elastic.coordinator.api import Allocate, Spot, Trial
from heet_elastic.coordinator.decide.assign import Assignment, assign
from heet_elastic.coordinator.decide.copies import Ghost, hindrance, survivors, takers, unproven
from heet_elastic.coordinator.decide.devices import Device, Inventory
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.model import (
    AgentState,
    Allocation,
    Cause,
    Exclusion,
    Host,
    Member,
    configuration_of,
    order_members,
)
from heet_elastic.words import counted


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done about one job now: a round to write, hosts to ask for an agent, or what it waits for."""

    state: JobState
    target: tuple[Spot, ...]
    assignment: Assignment | None = None
    allocation: Allocation | None = None
    waits: str = ""
    blockers: frozenset[str] = field(default_factory=frozenset)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Hosts where a heet-agent must start an agent."""
        return () if self.assignment is None else self.assignment.wanted


@dataclass(frozen=True, slots=True)
class Ground:
    """What plans are made on. avoid: hosts that a job must not use. ghosts: rounds whose workers may still run, by
    job (`copies`). why: what made the coordinator decide, for the rounds' reasons. trials: probe rounds under way.
    """

    inventory: Inventory
    hosts: Mapping[str, Host]
    avoid: Mapping[str, Mapping[str, Exclusion]]
    ghosts: Mapping[str, tuple[Ghost, ...]]
    leader: str
    why: str
    trials: Mapping[str, Trial] = field(default_factory=dict)


def spots_of(state: JobState, inventory: Inventory) -> tuple[Spot, ...]:
    """Where the job's newest round has workers, as a target would say it (in the order of groups)."""
    if state.spots is not None:
        return state.spots
    counts: dict[tuple[str, str], int] = {}
    for member in state.members:
        for gpu in member.gpus:
            key = (inventory.type_of.get((member.host, gpu), ""), member.host)
            counts[key] = counts.get(key, 0) + 1
    return tuple(Spot(host, kind, n) for (kind, host), n in sorted(counts.items()))


def settled(state: JobState, target: tuple[Spot, ...], inventory: Inventory) -> bool:
    """Whether the newest round already is what the target says."""
    if len(state.here) < len(state.members) or not state.members:
        return not state.members and not target
    if inventory.blocked and any((m.host, d) in inventory.blocked for m in state.members for d in m.gpus):
        return False
    return spots_of(state, inventory) == target


def make_plans(
    states: Sequence[JobState],
    targets: Mapping[str, tuple[Spot, ...]],
    prices: Mapping[str, float],
    keep: Iterable[str],
    ground: Ground,
) -> dict[str, Plan]:
    """A plan for every job of `states` whose round is not yet its target; those in `keep` are left alone."""
    left_alone = set(keep)
    moving = []
    for state in states:
        target = targets.get(state.job, ())
        if state.job in left_alone or state.fixed or settled(state, target, ground.inventory):
            continue
        loud = unproven(ground.ghosts.get(state.job, ()), state)
        if not target and (loud or not _held_devices_wanted(state, ground.hosts)):
            continue
        moving.append((state, target))
    moving.sort(key=lambda st: _turn(st[0], st[1], prices, ground.inventory))
    taken: dict[Device, str] = {}
    givers = _givers(moving, ground.inventory)
    plans: dict[str, Plan] = {}
    for state, target in moving:
        known = tuple(s for s in target if (s.host, s.host_type) in ground.inventory.index)
        got = assign(state, known, ground.inventory, ground.hosts, ground.avoid.get(state.job, {}), taken)
        plan = plans[state.job] = _plan(state, target, known, got, taken, givers, ground)
        if plan.allocation is not None or plan.blockers or plan.wanted:
            taken.update(dict.fromkeys(got.reserved, state.job))
    _break_circles(plans, ground)
    return plans


def _givers(
    moving: Iterable[tuple[JobState, tuple[Spot, ...]]], inventory: Inventory
) -> dict[tuple[str, str], set[str]]:
    """The jobs that are to have fewer workers than now, by (host, host type)."""
    givers: dict[tuple[str, str], set[str]] = {}
    for state, target in moving:
        then = {(s.host, s.host_type): s.workers for s in target}
        for spot in spots_of(state, inventory):
            if then.get((spot.host, spot.host_type), 0) < spot.workers:
                givers.setdefault((spot.host, spot.host_type), set()).add(state.job)
    return givers


def _held_devices_wanted(state: JobState, hosts: Mapping[str, Host]) -> bool:
    """Whether taking a job's round away serves anybody: a job wholly out of sight may come back unharmed."""
    return any(m.agent in state.view.agents or m.host in hosts for m in state.members)


def _turn(
    state: JobState, target: Sequence[Spot], prices: Mapping[str, float], inventory: Inventory
) -> tuple[bool, float, str]:
    """Jobs that only give come first, then by price; ties by name."""
    now = {(s.host, s.host_type): s.workers for s in spots_of(state, inventory)}
    gives = all(s.workers <= now.get((s.host, s.host_type), 0) for s in target)
    price = prices.get(state.job, float("inf"))
    return (not gives, price if price == price else float("inf"), state.job)


def _plan(
    state: JobState,
    target: tuple[Spot, ...],
    known: tuple[Spot, ...],
    got: Assignment,
    taken: Mapping[Device, str],
    givers: Mapping[tuple[str, str], set[str]],
    ground: Ground,
) -> Plan:
    if len(known) < len(target):
        return Plan(state, target, got, waits="waits for a host that is just gone")
    if not got.complete:
        waits, blockers = _waits(state, got, taken, givers, ground.inventory)
        return Plan(state, target, got, waits=waits, blockers=blockers)
    if got.members:
        short = _breaks_limits(state, got.members)
        if short:
            return Plan(state, target, got, waits=short)
        waits, give_back = hindrance(ground.ghosts.get(state.job, ()), state, got.members)
        if waits and give_back and state.members:
            return Plan(state, target, got, new_round(state, (), ground), waits)
        if waits:
            return Plan(state, target, got, waits=waits)
    elif state.allocation is None or not state.allocation.members:
        return Plan(state, target, got)
    return Plan(state, target, got, new_round(state, got.members, ground))


def _breaks_limits(state: JobState, members: Sequence[Member]) -> str:
    """What of the job's limits a round would break; a policy never should, agents that came or went since may."""
    spec = state.spec
    assert spec is not None
    workers = sum(len(m.gpus) for m in members)
    if not spec.min_hosts <= len(members) <= spec.max_hosts:
        return f"waits for a placement on {spec.min_hosts} to {spec.max_hosts} agents, {len(members)} would take part"
    whole = {o.agent: o.most_workers for o in state.offers}
    if spec.rigid and any(len(m.gpus) != whole.get(m.agent) for m in members):
        return f"waits for a placement on {counted(spec.min_hosts, 'whole agent')}"
    if not spec.rigid and not spec.allows(workers):
        return f"waits for a placement with an allowed number of workers, {workers} is none"
    return ""


def _waits(
    state: JobState,
    got: Assignment,
    taken: Mapping[Device, str],
    givers: Mapping[tuple[str, str], set[str]],
    inventory: Inventory,
) -> tuple[str, frozenset[str]]:
    """What an incomplete assignment waits for, and the jobs that have it."""
    if got.lacking:
        blockers: set[str] = set()
        parts = []
        for group, lack in got.lacking:
            devices = [(group.host, d) for d in group.devices]
            releasing = {inventory.releasing[d] for d in devices if d in inventory.releasing}
            holding = givers.get((group.host, group.host_type), set()) - {state.job}
            before = {taken[d] for d in devices if d in taken} - {state.job}
            own = _passed_on(state, got, devices)
            blockers |= releasing | holding | before | own
            gives = sorted(releasing | holding | own)
            by = f" that {_job_list(gives)} releasing" if gives else ""
            if not gives and before:
                by = f" that job {', '.join(sorted(before))} is to get first"
            parts.append(f"{lack} GPU{'s' if lack > 1 else ''} of {group.host}{by}")
        return f"waits for {' and '.join(parts[:3])}", frozenset(blockers)
    return f"waits for the heet-agent of {', '.join(got.wanted[:3])} to start torchrun", frozenset()


def _passed_on(state: JobState, got: Assignment, devices: Sequence[Device]) -> set[str]:
    """The job itself where one of its agents has some of these devices that another of its agents is to get."""
    stay = {(m.agent, m.host, d) for m in got.members for d in m.gpus}
    held = {(m.agent, m.host, d) for m in state.here for d in m.gpus if (m.host, d) in devices}
    return {state.job} if held - stay else set()


def _job_list(jobs: Sequence[str]) -> str:
    return f"job {jobs[0]} is" if len(jobs) == 1 else f"jobs {', '.join(jobs)} are"


def new_round(state: JobState, members: Sequence[Member], ground: Ground) -> Allocation:
    """The next round of a job with these members."""
    old, spec = state.allocation, state.spec
    assert spec is not None
    return Allocation(
        round=state.next_round,
        cause=Cause.PLAN,
        members=order_members(old, members),
        reason=_change(state, members, ground),
        restarts_used=0 if old is None else old.restarts_used,
        incarnation=spec.incarnation,
        configuration=configuration_of(members, ground.inventory.type_of),
        leader=ground.leader,
        grace=not state.gone,
        survivors=survivors(ground.ghosts.get(state.job, ()), members),
        takers=takers(ground.ghosts.get(state.job, ()), members),
        releasing=still_held(state, members, ground.inventory),
        probe=state.job in ground.trials or (not members and old is not None and old.probe),
    )


def _change(state: JobState, members: Sequence[Member], ground: Ground) -> str:
    """What a new round changes, and why, as a sentence."""
    now, then = _extent(state.members, ground.inventory), _extent(members, ground.inventory)
    if state.paused:
        return f"paused by a person: {now} given back"
    if (trial := ground.trials.get(state.job)) is not None:
        return f"{trial.reason}; its own place is {trial.home_configuration}"
    if not members:
        return f"{now} given back: {ground.why}"
    if not state.members:
        return f"granted {then}: {ground.why}"
    return f"{now} -> {then}: {ground.why}" if now != then else f"{then}, on other hosts: {ground.why}"


def _extent(members: Sequence[Member], inventory: Inventory) -> str:
    """How much a round has, in words."""
    counts: dict[str, int] = {}
    for member in members:
        for gpu in member.gpus:
            kind = inventory.type_of.get((member.host, gpu), "lost GPUs")
            counts[kind] = counts.get(kind, 0) + 1
    hosts = len({m.host for m in members})
    text = " + ".join(f"{n} x {kind}" for kind, n in sorted(counts.items()))
    return f"{text} on {hosts} host{'s' if hosts > 1 else ''}" if text else "nothing"


def still_held(state: JobState, members: Iterable[Member], inventory: Inventory) -> tuple[Member, ...]:
    """Devices of the job's earlier rounds that `members` do not have and that their live agents have not reported free.

    Those of vanished agents are left to the locks of their hosts. Where it is not known what an agent still holds, all
    devices of its host that nobody else has are listed.
    """
    if state.allocation is None:
        return ()
    stays = {(m.agent, d) for m in members for d in m.gpus}
    found: dict[str, Member] = {}
    round_ = state.allocation.round
    held = [(m, round_) for m in state.allocation.releasing] + [(m, round_ + 1) for m in state.allocation.members]
    for record in state.unsure:
        rest = (d for h, d in inventory.type_of if h == record.host and (h, d) not in inventory.holder)
        held += [(Member(record.agent, record.host, gpus), round_)] if (gpus := tuple(sorted(rest))) else []
    for member, clean_from in held:
        versioned = state.view.agents.get(member.agent)
        if versioned is None or versioned.record.state is AgentState.WAITING or versioned.record.clean >= clean_from:
            continue
        known = found.get(member.agent)
        mine = tuple(d for d in member.gpus if (member.agent, d) not in stays)
        if known is not None:
            mine = tuple(dict.fromkeys((*known.gpus, *mine)))
        if mine:
            found[member.agent] = Member(member.agent, member.host, mine)
    return tuple(found[a] for a in sorted(found))


def _break_circles(plans: dict[str, Plan], ground: Ground) -> None:
    """If some jobs only wait for one another, one of them writes what it keeps, so that the others can go on."""
    waiting = {j for j, p in plans.items() if p.blockers and p.allocation is None}
    going = set(ground.inventory.releasing.values()) | {j for j, p in plans.items() if p.allocation is not None}
    while True:
        freed = {j for j in waiting if plans[j].blockers & going or not plans[j].blockers <= waiting}
        if not freed:
            break
        waiting -= freed
        going |= freed
    givers = [j for j in waiting if plans[j].state.members]
    if not givers:
        return
    job = min(givers, key=lambda j: (sum(len(m.gpus) for m in plans[j].state.members), j))
    plan = plans[job]
    kept = _keep_part(plan)
    unfit = _breaks_limits(plan.state, kept) or hindrance(ground.ghosts.get(job, ()), plan.state, kept)[0]
    kept = () if unfit else kept
    if kept != plan.state.members:
        alone = plan.blockers == {job}
        why = "another agent of it gets these GPUs" if alone else "makes room for a job with which it swaps GPUs"
        round_ = new_round(plan.state, kept, replace(ground, why=why))
        plans[job] = replace(plan, allocation=round_)


def _keep_part(plan: Plan) -> tuple[Member, ...]:
    """The present members cut down to what they also have in the round that is wanted."""
    assert plan.assignment is not None
    wanted = {(m.agent, d) for m in plan.assignment.members for d in m.gpus}
    parts = [(m, tuple(d for d in m.gpus if (m.agent, d) in wanted)) for m in plan.state.here]
    return tuple(replace(m, gpus=gpus) for m, gpus in parts if gpus)


def as_action(plan: Plan) -> Allocate:
    """The write of a plan that has a round."""
    assert plan.allocation is not None
    return Allocate(plan.state.job, plan.allocation, plan.state.revision)
