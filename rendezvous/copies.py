"""No second copy of a job by a round that members write: what must be known of the rounds before. Pure.

A round that begins ends all earlier ones: it is complete, so its survivors have stopped their old workers, and those of
others failed with them. One that never began proves nothing: if all its survivors vanish while it forms (cut off, or
stopped for a while), their old workers may train on, whole. The newcomers alone must not start then. So a verdict on
such a round needs one of

- a survivor that stays: it stops its old workers before it starts new ones;
- a survivor that was seen to have stopped them (`AgentRecord.clean`), or that ended well;
- the hosts of all survivors proven quiet: by the coordinator's next plan, or where none ever led, by the hosts' locks;

and all of its takers, if the locks of their devices were to be the proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from heet_elastic.model import AgentState, Allocation, Host, JobView, Member
from heet_elastic.rendezvous.values import Local, World

_BEGUN = frozenset({AgentState.RUNNING, AgentState.FAILED, AgentState.SUCCEEDED})


def older_are_over(view: JobView, allocation: Allocation, me: Local) -> bool:
    """Whether the store, as it is now, proves that no round before this one can run in full any more.

    Once true it stays true, so whoever has seen it may remember it.
    """
    if not allocation.survivors and not allocation.takers:
        return True
    n = allocation.round
    if allocation.member(me.agent) is not None and me.formed >= n:
        return True
    records = {m.agent: view.agents[m.agent].record for m in allocation.members if m.agent in view.agents}
    if any(r.round == n and r.state in _BEGUN for r in records.values()):
        return True
    if allocation.takers:
        return False
    survivors = {m.agent for m in allocation.survivors}
    return any(a in view.done or (a in records and records[a].clean >= n) for a in survivors)


def hindrance(world: World, allocation: Allocation, stay: Iterable[Member]) -> str:
    """Why members must not write the next round yet, where older ones are not known to be over; empty = they may."""
    staying = {m.agent for m in stay}
    lost = [m for m in allocation.members if m.agent in allocation.takers and m.agent not in staying]
    if lost:
        return vanished(lost)
    survivors = allocation.survivors
    if not survivors or staying & {m.agent for m in survivors}:
        return ""
    leaving = [m for m in survivors if m.agent in world.job.agents]
    if leaving:
        return f"waits until the workers on {', '.join(sorted({m.host for m in leaving}))} have ended"
    noisy = survivors if world.epoch is not None else not_quiet(world, survivors)
    return vanished(noisy) if noisy else ""


def not_quiet(world: World, members: Collection[Member]) -> tuple[Member, ...]:
    """Those of these vanished members of whose workers nobody on their host says that they are gone."""
    released = world.job.control.record.released if world.job.control else ()
    return tuple(
        m
        for m in members
        if m.agent not in world.job.done and m.host not in released and not _unlocked(world.hosts.get(m.host), m)
    )


def _unlocked(host: Host | None, member: Member) -> bool:
    return host is not None and not set(member.gpus) & host.locked


def vanished(noisy: Iterable[Member]) -> str:
    """What a person is told of members whose workers may go on unseen."""
    host = min(m.host for m in noisy)
    return (
        f"host {host} vanished with workers of this job and nobody on it says that they are gone: start an agent "
        f"there, or run `heet release` once you know that the host is down"
    )
