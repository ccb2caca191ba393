"""Rounds without a coordinator: where none ever led, agents form rounds by themselves between MIN and MAX. Pure.

No last call: a round forms as soon as MAX is there, else a short window after the last arrival. Device locks are the
truth; claims keep two jobs on one host apart between a proposal and its locks. The write compares the absence of
`epoch`, so that the first coordinator ends all this.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import ceil

from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Claim,
    Claims,
    Host,
    JobSpec,
    Member,
    configuration_of,
    order_members,
)
from heet_elastic.rendezvous.copies import not_quiet, vanished
from heet_elastic.rendezvous.values import Local, Memory, ProtocolSettings, Timers, World, WriteRound
from heet_elastic.rendezvous.verdict import fit
from heet_elastic.words import counted

FRESH_CLAIM_S = 15.0
"""A claim older than this counts only while the device is really locked."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A round to write now, or the sentence that says what is missing."""

    write: WriteRound | None
    reason: str


def propose(
    world: World, spec: JobSpec, me: Local, memory: Memory, settings: ProtocolSettings, timers: Timers
) -> Proposal:
    """What this agent does about the next self-formed round."""
    versioned = world.job.allocation
    allocation = versioned.record if versioned else None
    live = _live_members(world, allocation)
    old = tuple(m for m in allocation.members if m.agent in live) if allocation else ()
    if allocation and allocation.members and not old:
        noisy = not_quiet(world, allocation.members)
        if noisy:
            return Proposal(None, vanished(noisy))
    if old and me.agent not in {m.agent for m in old}:
        mine = [r.record for a, r in world.job.agents.items() if a == me.agent]
        if len(old) < spec.max_hosts:
            # Members alone know which hosts keep joining and dying.
            blocked = _blocked(world, mine)
            return Proposal(
                None, blocked or "waits for the members to take it in (not at once where one was just lost)"
            )
        return Proposal(None, _missing(world, spec, old, mine))
    if old and any(not _running(world, m, allocation) for m in old):
        return Proposal(None, "the current round is still forming")
    shut = left_alone(memory, settings, timers.now)
    fresh = _candidates(world, shut, {m.agent for m in old})
    joining = _devices(world, spec, fresh, old, timers)
    missing = _missing(world, spec, old, fresh) + _said_of(shut, world)
    if not joining:
        return Proposal(None, missing)
    most = {a: v.record.most_workers for a, v in world.job.agents.items()}
    members = order_members(allocation, fit(spec, [*old, *joining], most))
    if not members or (old and sum(len(m.gpus) for m in members) <= sum(len(m.gpus) for m in old)):
        return Proposal(None, missing)
    full = len(old) + len(joining) >= spec.max_hosts
    arrivals = ",".join(sorted(r.agent for r in fresh))
    waited = (
        timers.age("window") >= settings.join_window_most_s
        or timers.age(f"window:{arrivals}") >= settings.join_window_s
    )
    turn = _turn(me, old, fresh)
    late = timers.age(f"turn:{allocation.round if allocation else 0}") >= turn * (settings.join_window_most_s + 1.0)
    if not (full or waited) or not late:
        return Proposal(None, "")
    return Proposal(_write(world, spec, allocation, members, old), "")


def _live_members(world: World, allocation: Allocation | None) -> set[str]:
    if allocation is None:
        return set()
    agents = world.job.agents
    return {
        m.agent
        for m in allocation.members
        if m.agent in agents
        and agents[m.agent].record.state not in (AgentState.LEAVING, AgentState.WAITING)
        and m.agent not in world.job.done
    }


def _running(world: World, member: Member, allocation: Allocation | None) -> bool:
    record = world.job.agents[member.agent].record
    return allocation is not None and record.round == allocation.round and record.state is AgentState.RUNNING


def left_alone(memory: Memory, settings: ProtocolSettings, now: float) -> dict[str, float]:
    """Hosts that keep joining and dying, with the seconds for which they are still left alone (doubling)."""
    ends = {
        host: last + settings.flap_window_s * 2 ** min(losses - 1, 5)
        for host, (losses, last) in memory.flaps.items()
        if losses
    }
    return {host: end - now for host, end in sorted(ends.items()) if end > now}


def _said_of(shut: Mapping[str, float], world: World) -> str:
    """What is told of hosts that are left alone although an agent waits there; coarse, so that it seldom changes."""
    waiting = {v.record.host for v in world.job.agents.values() if v.record.state is AgentState.WAITING}
    parts = [f"{host} is left alone for {10 * ceil(s / 10)} s more" for host, s in shut.items() if host in waiting]
    return f"; {' and '.join(parts)}: an agent there was lost soon after it had joined" if parts else ""


def _candidates(world: World, shut: Container[str], members: set[str]) -> list[AgentRecord]:
    """Waiting agents that may join, by id; not those on hosts that are left alone."""
    found = []
    for versioned in world.job.agents.values():
        record = versioned.record
        if record.agent in members or record.state is not AgentState.WAITING:
            continue
        if record.host not in shut:
            found.append(record)
    return sorted(found, key=lambda r: r.agent)


def _devices(
    world: World, spec: JobSpec, candidates: list[AgentRecord], old: tuple[Member, ...], timers: Timers
) -> list[Member]:
    """Members made of candidates and the devices that nobody holds or claims, up to the job's limits."""
    taken: dict[str, set[str]] = {}
    for member in old:
        taken.setdefault(member.host, set()).update(member.gpus)
    left = spec.max_workers - sum(len(m.gpus) for m in old) if spec.max_workers else None
    joining: list[Member] = []
    for record in candidates:
        host = world.hosts.get(record.host)
        if host is None or len(old) + len(joining) >= spec.max_hosts:
            continue
        busy = taken.setdefault(record.host, set())
        free = [u for u in _free(world, host, spec.job, timers) if u not in busy]
        count = min(record.most_workers, len(free), left if left is not None else len(free))
        if count < 1 or (spec.rigid and count < record.most_workers):
            continue
        busy.update(free[:count])
        left = left - count if left is not None else None
        joining.append(Member(record.agent, record.host, tuple(free[:count])))
    return joining


def _free(world: World, host: Host, job: str, timers: Timers) -> list[str]:
    claimed: set[str] = set()
    claims = world.claims.get(host.name)
    for claim in claims.record.claims if claims else ():
        young = timers.age(f"claim:{host.name}:{claim.job}:{claim.round}") < FRESH_CLAIM_S
        if claim.job != job and claim.agent in host.agents and young:
            claimed.update(claim.gpus)
    return [g.uuid for g in host.gpus if g.unusable is None and g.uuid not in host.locked and g.uuid not in claimed]


def _turn(me: Local, old: tuple[Member, ...], fresh: list[AgentRecord]) -> int:
    """This agent's place in the line of proposers: live members first, then who waits."""
    line = [m.agent for m in old] + [r.agent for r in fresh]
    return line.index(me.agent) if me.agent in line else len(line)


def _missing(world: World, spec: JobSpec, old: tuple[Member, ...], fresh: list[AgentRecord]) -> str:
    here = len(old) + len(fresh)
    if not here:
        return ""
    if here < spec.min_hosts:
        return f"{here} of at least {counted(spec.min_hosts, 'agent')} are here (no coordinator leads)"
    if blocked := _blocked(world, fresh):
        return blocked
    if old:
        return "the job runs with as many workers as it may have; this agent is a spare"
    return f"{here} agents are here, but their free devices do not add up to an allowed number of workers"


def _blocked(world: World, fresh: list[AgentRecord]) -> str:
    hosts = sorted({r.host for r in fresh if r.host not in world.hosts or not world.hosts[r.host].gpus})
    return f"no devices are known on {', '.join(hosts)}" if hosts else ""


def _write(
    world: World, spec: JobSpec, allocation: Allocation | None, members: tuple[Member, ...], old: tuple[Member, ...]
) -> WriteRound:
    versioned = world.job.allocation
    highest = max([r.record.round for r in world.job.agents.values()] + [allocation.round if allocation else 0])
    before = {m.agent for m in old}
    joined = [m.host for m in members if m.agent not in before]
    types = {(h.name, g.uuid): g.host_type for h in world.hosts.values() for g in h.gpus}
    new = Allocation(
        round=highest + 1,
        cause=Cause.MEMBERSHIP,
        members=members,
        reason=f"formed without a coordinator: {', '.join(sorted(joined)) or 'same hosts'} joined",
        restarts_used=allocation.restarts_used if allocation else 0,
        survivors=old,
        incarnation=spec.incarnation,
        configuration=configuration_of(members, types),
    )
    return WriteRound(
        new,
        versioned.mod_revision if versioned else 0,
        unless_led=True,
        claims=tuple(_claims(world, spec.job, new, host) for host in sorted({m.host for m in members})),
    )


def _claims(world: World, job: str, new: Allocation, host: str) -> tuple[Claims, int]:
    known = world.claims.get(host)
    live = world.hosts[host].agents if host in world.hosts else ()
    others = tuple(c for c in (known.record.claims if known else ()) if c.job != job and c.agent in live)
    own = tuple(Claim(job, m.agent, new.round, m.gpus) for m in new.members if m.host == host)
    return Claims(host, others + own), known.mod_revision if known else 0
