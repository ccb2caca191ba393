"""Failure or membership change? And who makes up the next round. Pure.

A peer's crash makes the survivors' workers fail within milliseconds, long before its lease ends, so an agent whose
workers failed does not judge alone: every live member answers a failure by putting its own record after polling its
workers anew. An answer is a record whose mod_revision is above that of the round's first failure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from heet_elastic.model import (
    AgentState,
    Allocation,
    Cause,
    Configuration,
    Failure,
    JobSpec,
    JobView,
    Member,
    Result,
    Versioned,
    order_members,
)
from heet_elastic.rendezvous.values import Local, ProtocolSettings, Timers, World


class Standing(Enum):
    """What is known of one member of the current round."""

    WELL = "well"
    FAILED = "failed"
    DONE = "done"
    GONE = "gone"
    LEAVING = "leaving"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why the current round ends, who stays, and what to tell people."""

    cause: Cause
    stay: tuple[Member, ...]
    reason: str
    root: Failure | None = None


def round_failures(view: JobView, allocation: Allocation) -> list[Versioned[Failure]]:
    """Failures of the allocation's round by its members, in the order in which the store got them."""
    found = [f for (n, agent), f in view.failures.items() if n == allocation.round and allocation.member(agent)]
    return sorted(found, key=lambda f: f.create_revision)


def must_answer(view: JobView, allocation: Allocation, agent: str) -> bool:
    """Whether this member has not yet put its record since the round's first failure."""
    failures = round_failures(view, allocation)
    own = view.agents.get(agent)
    return bool(failures) and own is not None and own.mod_revision < failures[0].create_revision


def standings(
    world: World, allocation: Allocation, me: Local, settings: ProtocolSettings, timers: Timers
) -> dict[str, tuple[Standing, str]]:
    """Standing and, where it is GONE or LEAVING, a sentence, of every member of the allocation."""
    failures = round_failures(world.job, allocation)
    first = failures[0].create_revision if failures else None
    settled = timers.now - world.connected_since > settings.ttl_s + 1.0
    return {
        m.agent: _standing(world.job, allocation, m, me, first, settled, settings, timers) for m in allocation.members
    }


def _standing(
    view: JobView,
    allocation: Allocation,
    member: Member,
    me: Local,
    first_failure: int | None,
    settled: bool,
    settings: ProtocolSettings,
    timers: Timers,
) -> tuple[Standing, str]:
    n, who = allocation.round, f"agent {member.agent} on {member.host}"
    if member.agent in view.done and view.done[member.agent].incarnation == allocation.incarnation:
        return Standing.DONE, ""
    versioned = view.agents.get(member.agent)
    if versioned is None:
        # Only who has itself been in touch for a full TTL may call another absent: after an outage everybody
        # registers again first.
        return (Standing.GONE, f"{who} is lost") if settled else (Standing.UNKNOWN, "")
    record = versioned.record
    if record.state is AgentState.LEAVING:
        return Standing.LEAVING, f"{who} leaves"
    if record.round > n:
        return Standing.WELL, ""
    if record.round == n and record.state is AgentState.WAITING:
        return Standing.GONE, f"{who} has stopped its workers"
    if record.busy and record.round == n:
        return Standing.GONE, f"{member.host} cannot use {', '.join(record.busy)}: held by {record.busy_holder}"
    late = _late(record.state, record.round, allocation, member, me, settings, timers)
    if late:
        return Standing.GONE, f"{who} {late}"
    if first_failure is None:
        return Standing.WELL, ""
    if versioned.mod_revision >= first_failure:  # equal: the failing member, in the same transaction
        return (Standing.FAILED if record.state is AgentState.FAILED and record.round == n else Standing.WELL), ""
    if timers.age(f"silent:{n}") > settings.ttl_s + 1.0:
        return Standing.GONE, f"{who} did not answer for {settings.ttl_s + 1:g} s"
    return Standing.UNKNOWN, ""


def _late(
    state: AgentState,
    at_round: int,
    allocation: Allocation,
    member: Member,
    me: Local,
    settings: ProtocolSettings,
    timers: Timers,
) -> str:
    """What a member fails to do while the round forms; empty when it is in time.

    The clock for an acknowledgement starts when the member reports its old workers stopped (a slow checkpoint is no
    absence); a worker that cannot be killed is one, after `stop_limit_s`.
    """
    n = allocation.round
    if at_round < n:
        age = timers.age(f"stopping:{n}:{member.agent}")
        return f"has not stopped its old workers after {age:.0f} s" if age > settings.stop_limit_s else ""
    if state is not AgentState.STARTING:
        return ""
    age = timers.age(f"starting:{n}:{member.agent}")
    if age <= settings.acknowledge_s:
        return ""
    if me.unacknowledged_round == n and member.agent in me.unacknowledged:
        return f"did not reach the round's store within {age:.0f} s"
    return ""


def silent_rank_zero(
    view: JobView, allocation: Allocation, settings: ProtocolSettings, timers: Timers
) -> Member | None:
    """The rank-0 member when it reported its workers stopped and does not publish the round's store."""
    if not allocation.members or allocation.round in view.stores:
        return None
    zero = allocation.members[0]
    record = view.agents.get(zero.agent)
    if record is None or record.record.state is not AgentState.STARTING or record.record.round != allocation.round:
        return None
    late = timers.age(f"publish:{allocation.round}") > settings.acknowledge_s
    return zero if late else None


def judge(
    world: World, allocation: Allocation, me: Local, settings: ProtocolSettings, timers: Timers
) -> Verdict | None:
    """The verdict on the current round, or None while it stands or is not yet decided.

    Somebody gone, leaving, or silent: *membership*, free of charge. A failure answered by all: *failure*.
    """
    found = standings(world, allocation, me, settings, timers)
    zero = silent_rank_zero(world.job, allocation, settings, timers)
    if zero is not None and found[zero.agent][0] is Standing.WELL:
        found[zero.agent] = (Standing.GONE, f"agent {zero.agent} on {zero.host} (rank 0) does not publish its store")
    failures = round_failures(world.job, allocation)
    kinds = [s for s, _ in found.values()]
    stays = (Standing.WELL, Standing.FAILED, Standing.UNKNOWN)
    stay = tuple(m for m in allocation.members if found[m.agent][0] in stays)
    missing = [why for s, why in found.values() if s in (Standing.GONE, Standing.LEAVING)]
    finished = [m.agent for m in allocation.members if found[m.agent][0] is Standing.DONE]
    moved_on = [agent for agent in finished if world.job.done[agent].round < allocation.round]
    if Standing.UNKNOWN in kinds and failures:
        return None
    if missing:
        return Verdict(Cause.MEMBERSHIP, stay, "; ".join(missing))
    if moved_on and stay:
        return Verdict(Cause.MEMBERSHIP, stay, "members that are done are left out")
    if not failures or Standing.FAILED not in kinds:
        return None
    foreign = any(world.job.agents[m.agent].record.died_of_sigterm for m in stay if m.agent in world.job.agents)
    if foreign and timers.age(f"sigterm:{allocation.round}") < settings.sigterm_pause_s:
        return None
    root = root_failure(failures)
    return Verdict(Cause.FAILURE, stay, f"rank {root.rank} on {root.host} failed: {root.error}", root)


def root_failure(failures: list[Versioned[Failure]]) -> Failure:
    """The earliest failure that is no collective or connection error; else the earliest.

    Earliest by arrival in the store: no two clocks are compared.
    """
    own = [f for f in failures if not f.record.secondary] or failures
    return min(own, key=lambda f: f.create_revision).record


def same_exception_everywhere(allocation: Allocation, failures: Iterable[Failure]) -> bool:
    """The same exception at the same line in all members, before any optimizer step: restarting cannot help."""
    found = {f.agent: f for f in failures}
    if set(found) != {m.agent for m in allocation.members}:
        return False
    places = {f.place for f in found.values()}
    return len(places) == 1 and "" not in places and all(f.steps == 0 for f in found.values())


def fit(
    spec: JobSpec, members: Iterable[Member], most: dict[str, int], done_hosts: int = 0, done_workers: int = 0
) -> tuple[Member, ...]:
    """The largest set of workers on these members that the spec allows; empty when none is.

    most: what each agent may run (its --nproc-per-node). Done members count towards the minimum. Workers are dropped
    from the end, members with the fewest workers first, never from a rigid job (whole agents or nothing).
    """
    kept = list(members)[: spec.max_hosts - done_hosts] if done_hosts < spec.max_hosts else []
    if not kept or len(kept) + done_hosts < spec.min_hosts:
        return ()
    if spec.rigid:
        # Whole agents; those that are done leave the others whole.
        whole = all(len(m.gpus) == most.get(m.agent, len(m.gpus)) for m in kept)
        return tuple(kept) if whole else ()
    total = sum(len(m.gpus) for m in kept)
    target = next((w for w in range(total, 0, -1) if _allowed(spec, w, done_workers)), 0)
    while kept and total > target:
        last = kept[-1]
        spare = total - target
        if len(last.gpus) <= spare:
            kept.pop()
            total -= len(last.gpus)
        else:
            kept[-1] = replace(last, gpus=last.gpus[: len(last.gpus) - spare])
            total -= spare
    return tuple(kept) if kept and len(kept) + done_hosts >= spec.min_hosts else ()


def _allowed(spec: JobSpec, workers: int, done_workers: int) -> bool:
    if workers % spec.multiple_of or (spec.allowed_workers and workers not in spec.allowed_workers):
        return False
    return workers + done_workers >= spec.min_workers and (spec.max_workers is None or workers <= spec.max_workers)


def next_round(
    world: World, spec: JobSpec, allocation: Allocation, verdict: Verdict, over: bool = True
) -> Allocation | Result:
    """What the verdict leads to: the next round (perhaps without members: all wait), or the end of the job.

    over: whether no round before `allocation` can run any more (`copies`).
    """
    view = world.job
    budget = min((view.agents[m.agent].record.max_restarts for m in verdict.stay if m.agent in view.agents), default=0)
    used = allocation.restarts_used + (verdict.cause is Cause.FAILURE)
    if verdict.cause is Cause.FAILURE:
        failures = [f.record for f in round_failures(view, allocation)]
        if used > budget or same_exception_everywhere(allocation, failures):
            left = "no restart can help" if used <= budget else f"all {budget} restarts are used"
            return Result("failed", f"{verdict.reason} ({left})", allocation.incarnation, allocation.round, exit_code=1)
    done = [m for m in allocation.members if m.agent in view.done]
    finished = {d.agent for d in view.done.values() if d.incarnation == allocation.incarnation}
    most = {a: v.record.most_workers for a, v in view.agents.items()}
    kept = fit(spec, verdict.stay, most, len(finished), sum(len(m.gpus) for m in done))
    members = order_members(allocation, kept)
    staying = {m.agent for m in members}
    reason = verdict.reason
    if verdict.stay and not members:
        reason += f"; {len(verdict.stay)} agents are left, fewer than the job needs"
    return Allocation(
        round=allocation.round + 1,
        cause=verdict.cause,
        members=members,
        reason=reason,
        restarts_used=used,
        incarnation=allocation.incarnation,
        configuration=_reduced(allocation.configuration, members),
        grace=False,
        survivors=tuple(m for m in (allocation.members if over else allocation.survivors) if m.agent in staying),
        takers=() if over else allocation.takers,
    )


def _reduced(before: Configuration | None, members: tuple[Member, ...]) -> Configuration | None:
    if before is None or not members:
        return None
    return Configuration(before.host_type, sum(len(m.gpus) for m in members), len({m.host for m in members}))


def ending(
    world: World, allocation: Allocation, me: Local, settings: ProtocolSettings, timers: Timers
) -> Result | None:
    """The job's success: every member done; or somebody done and the rest lost without a failure of their own."""
    view = world.job
    if not allocation.members or view.frozen is None:
        return None
    found = standings(world, allocation, me, settings, timers)
    kinds = {s for s, _ in found.values()}
    if Standing.DONE not in kinds or not kinds <= {Standing.DONE, Standing.GONE}:
        return None
    lost = [why for s, why in found.values() if s is Standing.GONE]
    failed = {f.record.agent for f in round_failures(view, allocation)}
    if any(m.agent in failed for m in allocation.members if found[m.agent][0] is Standing.GONE):
        return None
    reason = "all workers ended with 0"
    if lost:
        reason = f"the last round's other workers ended with 0; {'; '.join(lost)} without a failure of its own"
    return Result("succeeded", reason, allocation.incarnation, allocation.round)
