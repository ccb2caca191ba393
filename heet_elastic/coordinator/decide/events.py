"""What happened to a job since the last look: agents that joined, vanished, left, were left out, found devices busy.

Compares the job's former state with its present one; a new leader has no former state and so sees no events. Whatever
must last is put into the account (exclusions, learned costs) or becomes a timer.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

from heet_elastic.coordinator.api import Timer
from heet_elastic.coordinator.decide import accounts, copies
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Account, AgentState, Cause, Member

Timers = MutableMapping[tuple[str, ...], Timer]


@dataclass(frozen=True, slots=True)
class Change:
    """A job's state before (None = first look) and after. boots: boot ids of hosts as they were known."""

    before: JobState | None
    after: JobState
    boots: Mapping[str, str]
    now: float
    settings: CoordinatorSettings


def apply(change: Change, account: Account, timers: Timers) -> Account:
    """The account after the change; `timers` is brought up to date in place."""
    account = accounts.after_round(account, change.before, change.after)
    may_run = copies.may_run(change.after, account.may_run)
    if may_run != account.may_run:
        account = replace(account, may_run=may_run)
    account = _learned(change, account, timers)
    _arrivals(change, timers)
    if change.before is not None and change.before.result is None and change.after.result is None:
        account = _losses(change, change.before, account, timers)
        account = _left_out(change, change.before, account)
        account = _failing_host(change, change.before, account)
    _joined(change, timers)
    _gone(change, account, timers)
    _busy(change, timers)
    return account


def _joined(change: Change, timers: Timers) -> None:
    job, members = change.after.job, {m.agent for m in change.after.members}
    before = {m.agent for m in change.before.members} if change.before is not None else set()
    for agent in members - before:
        timers.setdefault(("joined", job, agent), Timer(change.now))
    for agent in before - members:
        timers.pop(("joined", job, agent), None)


def _losses(change: Change, before: JobState, account: Account, timers: Timers) -> Account:
    """Strikes against hosts whose agent vanished, or left, soon after it had joined.

    Every join and every loss restarts the others, so this protects them: where nobody else is there, it costs nobody
    anything. An agent killed is missed only when its lease ends, up to `ttl_s` later. One that leaves in order is
    forgiven once.
    """
    settings, after = change.settings, change.after
    if not after.here:
        return account
    left = {m.agent for m in after.gone} - {m.agent for m in before.gone}
    offered = {o.agent for o in before.offers}
    known = {m.agent for m in before.members}
    members = before.members + tuple(m for m in after.members if m.agent not in known and m.agent in offered)
    for member in members:
        joined = timers.get(("joined", after.job, member.agent), None if member.agent in known else Timer(change.now))
        if joined is None:
            continue
        life = change.now - joined.since
        if member.agent in left and not _was_leaving(before, member) and life <= settings.flap_life_s + settings.ttl_s:
            why = f"agent {member.agent} was lost within {settings.flap_life_s:g} s of joining"
            account = accounts.strike(account, member.host, why, settings)
        elif _leaves(after, member) and not _was_leaving(before, member) and life <= settings.flap_life_s:
            why = f"agent {member.agent} left within {settings.flap_life_s:g} s of joining"
            account = accounts.strike(account, member.host, why, settings, free=1)
    return account


def _leaves(state: JobState, member: Member) -> bool:
    record = state.view.agents.get(member.agent)
    return record is not None and record.record.state is AgentState.LEAVING


def _was_leaving(before: JobState, member: Member) -> bool:
    return _leaves(before, member) or member.agent in before.view.done


def _left_out(change: Change, before: JobState, account: Account) -> Account:
    """Strikes against hosts whose agent lives but was left out of a round by the other members (no acknowledgement)."""
    old, new = before.allocation, change.after.allocation
    if old is None or new is None or new.round != old.round + 1 or new.cause is not Cause.MEMBERSHIP or not new.members:
        return account
    if new.leader or change.after.frozen:
        return account
    staying = {m.agent for m in new.members}
    for member in old.members:
        record = change.after.view.agents.get(member.agent)
        if member.agent in staying or record is None or record.record.busy:
            continue
        if record.record.state not in (AgentState.LEAVING, AgentState.SUCCEEDED):
            account = accounts.strike(account, member.host, new.reason, change.settings)
    return account


def _failing_host(change: Change, before: JobState, account: Account) -> Account:
    """A strike against a host where the first failure of the last two failed rounds happened, while others worked."""
    old, new = before.allocation, change.after.allocation
    if old is None or new is None or new.round <= old.round or new.cause is not Cause.FAILURE:
        return account
    first: dict[int, tuple[int, str, str]] = {}
    for (round_, _), failure in change.after.view.failures.items():
        record = failure.record
        if not record.secondary and (round_ not in first or failure.create_revision < first[round_][0]):
            first[round_] = (failure.create_revision, record.host, record.error)
    last = [first[n] for n in sorted(first)[-2:]]
    if len(last) < 2 or last[0][1] != last[1][1] or len({m.host for m in old.members}) < 2 or old.round not in first:
        return account
    return accounts.strike(
        account, last[1][1], f"its workers failed twice in a row: {last[1][2]:.200}", change.settings
    )


def _learned(change: Change, account: Account, timers: Timers) -> Account:
    """Start the clock of a planned rescale; stop it at the round's first samples."""
    state, key = change.after, ("rescale", change.after.job)
    allocation, before = state.allocation, change.before
    timer = timers.get(key)
    if timer is not None:
        if allocation is None or allocation.round != timer.strikes:
            del timers[key]
        elif any(s.round == timer.strikes for s in state.view.samples.values()):
            del timers[key]
            return accounts.learn(account, timer.reason == "up", change.now - timer.since)
    if before is None or allocation is None or not allocation.members or allocation.cause is not Cause.PLAN:
        return account
    old = before.allocation
    if old is None or old.round < allocation.round:
        stays = old is not None and {m.agent for m in allocation.members} <= {m.agent for m in old.members}
        shrinks = stays and old is not None and allocation.world_size <= old.world_size
        timers[key] = Timer(change.now, strikes=allocation.round, reason="down" if shrinks else "up")
    return account


def _arrivals(change: Change, timers: Timers) -> None:
    """Wait a moment for more agents of the job after one came: until `settle_s` passed without another."""
    state, settings = change.after, change.settings
    before = set() if change.before is None else {o.agent for o in change.before.offers}
    members = {m.agent for m in state.members}
    new = {o.agent for o in state.offers} - before - members
    key = ("settle", state.job)
    if state.spec is not None and len(state.offers) >= state.spec.max_hosts:
        timers.pop(key, None)
    elif new:
        first = timers[key].since if key in timers else change.now
        until = min(change.now + settings.settle_s, first + settings.settle_most_s)
        if until > change.now:
            timers[key] = Timer(first, until=until)


def _gone(change: Change, account: Account, timers: Timers) -> None:
    """Since when a member of a round that may still run is missing; the reason is its host's boot id of that time."""
    state = change.after
    gone = {m.agent: m.host for p in account.may_run for m in p.members if m.agent not in state.view.agents}
    for key in [k for k in timers if k[0] == "gone" and k[1] == state.job and k[2] not in gone]:
        del timers[key]
    for agent, host in gone.items():
        timers.setdefault(("gone", state.job, agent), Timer(change.now, reason=change.boots.get(host, "")))


def _busy(change: Change, timers: Timers) -> None:
    """Quarantine for devices whose lock an agent could not take."""
    settings = change.settings
    for versioned in change.after.view.agents.values():
        record = versioned.record
        for device in record.busy:
            key = ("busy", record.host, device)
            old = timers.get(key)
            if old is not None and change.now < old.until:
                continue
            strikes = 1 if old is None else old.strikes + 1
            lasts = min(settings.exclusion_s * 2.0 ** min(strikes - 1, 63), settings.exclusion_most_s)
            why = f"in use by {record.busy_holder or 'a program that heet does not know'}"
            timers[key] = Timer(change.now, change.now + lasts, strikes, why)
