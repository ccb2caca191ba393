"""Two live copies of a job must be impossible: which old workers may still run, and when a new round may start.

Workers run only in rounds that were complete, but whether one was may go unseen. So every round with members is kept in
the job's account (`may_run`) until one of its members has stopped (or never started) its workers of it: then the others
fail in their next collective, or it never began. Once a round is seen to run, no older one can. A new round may start
if, of each round that may still run,

- a live member takes part in the new one (it stops its old workers before it starts new ones), one and the same for
  all of these rounds, or
- no member lives, and every host that vanished is proven quiet: a new boot, a live process there that finds the devices
  unlocked, the fence time (after which a cut-off agent stops its own workers), a person's word (`heet release`), or the
  new round takes those very devices, whose locks are the proof.

Where live members would all be left out (the job moves away as a whole), a round without members is written first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.coordinator.api import Timer
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Account, AgentState, Host, Member, PastRound


@dataclass(frozen=True, slots=True)
class Ghost:
    """A round whose workers may still run. loud: its vanished members whose hosts are not proven quiet."""

    members: tuple[Member, ...]
    loud: tuple[Member, ...] = ()

    def alive(self, state: JobState) -> tuple[Member, ...]:
        """Its members that have a live record."""
        return tuple(m for m in self.members if m.agent in state.view.agents)


def may_run(state: JobState, before: Sequence[PastRound]) -> tuple[PastRound, ...]:
    """The rounds whose workers may still run, given those of the last look."""
    newest = state.allocation
    rounds = {p.round: p for p in before}
    if newest is not None and newest.members:
        if state.begun:
            rounds = {}
        rounds[newest.round] = PastRound(newest.round, newest.members)
    return tuple(p for _, p in sorted(rounds.items()) if not _over(state, p))


def _over(state: JobState, past: PastRound) -> bool:
    """Whether a live member has no workers of that round (any more), so that none of the round can go on."""
    if state.allocation is not None and past.round == state.allocation.round:
        return False  # its members are still to start it
    for member in past.members:
        versioned = state.view.agents.get(member.agent)
        if versioned is None:
            continue
        if versioned.record.state is AgentState.WAITING or versioned.record.clean > past.round:
            return True
    return False


def ghosts_of(
    state: JobState,
    account: Account,
    hosts: Mapping[str, Host],
    timers: Mapping[tuple[str, ...], Timer],
    now: float,
    settings: CoordinatorSettings,
) -> tuple[Ghost, ...]:
    """The rounds that a new one must reckon with. Members that have succeeded are of no account."""
    found = []
    for past in account.may_run:
        left = tuple(m for m in past.members if m.agent not in state.view.done)
        loud = _loud(state, left, hosts, timers, now, settings)
        if loud or any(m.agent in state.view.agents for m in left):
            found.append(Ghost(left, loud))
    return tuple(found)


def _loud(
    state: JobState,
    members: Sequence[Member],
    hosts: Mapping[str, Host],
    timers: Mapping[tuple[str, ...], Timer],
    now: float,
    settings: CoordinatorSettings,
) -> tuple[Member, ...]:
    gone = [m for m in members if m.agent not in state.view.agents and m.host not in state.released]
    return tuple(m for m in gone if not _quiet(m, timers.get(("gone", state.job, m.agent)), hosts, now, settings))


def _quiet(
    member: Member, timer: Timer | None, hosts: Mapping[str, Host], now: float, settings: CoordinatorSettings
) -> bool:
    """Whether a vanished member's workers are proven gone; `timer`: since when it is missing, and the boot id then."""
    if timer is None:
        return False
    missing_s = now - timer.since
    if settings.fence_time_s > 0 and missing_s >= settings.fence_time_s + settings.ttl_s:
        return True
    live = hosts.get(member.host)
    if live is None:
        return False
    if timer.reason and live.boot_id and live.boot_id != timer.reason:
        return True
    # Idle agents report the locks that they find at least this often, so an older report has been replaced by now.
    return missing_s >= settings.lock_report_s and live.locked.isdisjoint(member.gpus)


def unproven(ghosts: Sequence[Ghost], state: JobState) -> tuple[Member, ...]:
    """Vanished members whose workers may go on while nobody of their round is left to end them."""
    return tuple(m for g in ghosts if g.loud and not g.alive(state) for m in g.loud)


def provable_by_locks(state: JobState, loud: Sequence[Member]) -> bool:
    """Whether an agent of the job offers itself on every loud host: there the devices' locks can prove it."""
    return not loud or {m.host for m in loud} <= {o.host for o in state.offers}


def survivors(ghosts: Sequence[Ghost], members: Sequence[Member]) -> tuple[Member, ...]:
    """Members of a new round that were in every round that may still run (as they were in the last of those): one of
    them must stay until it begins, see `rendezvous.copies`. Those that only the locks prove gone have none."""
    agents = {m.agent for m in members}
    parts = [p for g in ghosts if (p := {m.agent: m for m in g.members if m.agent in agents})]
    if not parts:
        return ()
    common = frozenset.intersection(*(frozenset(p) for p in parts))
    return tuple(parts[-1][a] for a in sorted(common))


def takers(ghosts: Sequence[Ghost], members: Sequence[Member]) -> tuple[str, ...]:
    """Members of a new round that take devices whose locks are the proof that vanished members' workers are gone."""
    agents = {m.agent for m in members}
    proven = {(m.host, d) for g in ghosts if not agents & {m.agent for m in g.members} for m in g.loud for d in m.gpus}
    return tuple(sorted(m.agent for m in members if any((m.host, d) in proven for d in m.gpus)))


def hindrance(ghosts: Sequence[Ghost], state: JobState, members: Sequence[Member]) -> tuple[str, bool]:
    """Why a round of `members` must not start yet (empty = it may), and whether giving back everything first helps."""
    agents = {m.agent for m in members}
    new = {(m.host, d) for m in members for d in m.gpus}
    for ghost in ghosts:
        alive = ghost.alive(state)
        if any(m.agent in agents for m in alive):
            continue
        if alive:
            hosts = ", ".join(sorted({m.host for m in alive}))
            return f"waits until its workers on {hosts} have ended", True
        loud = [m for m in ghost.loud if not all((m.host, d) in new for d in m.gpus)]
        if loud:
            return waits_for_quiet(state.job, loud), False
    several = [g for g in ghosts if agents & {m.agent for m in g.members}]
    if len(several) > 1 and not survivors(several, members):
        return "waits until its workers of earlier rounds have ended", True
    return "", False


def waits_for_quiet(job: str, loud: Sequence[Member]) -> str:
    """The reason of a job that must not start again before its old workers are known to be gone."""
    hosts = sorted({m.host for m in loud})
    return (
        f"waits until {', '.join(hosts)} is proven quiet: its last workers there may still run "
        f"(heet release {job} {hosts[0]}: says that they do not)"
    )
