"""A job's account: durations that outlive a coordinator, learned rescale costs, and hosts that it must avoid.

Durations grow by what passed since the last look, on the leader's own clock; no two clocks are compared. An exclusion
lasts `exclusion_s`, doubled with every strike up to `exclusion_most_s`; its strikes are forgotten `exclusion_most_s`
after it ended (until then it stays in the account with a remaining time <= 0).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from heet_elastic.coordinator.api import Entry
from heet_elastic.coordinator.decide.devices import Device
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Account, Cause, Exclusion

_LEARN = 0.3
"""Weight of a newly seen rescale cost against what was learned before."""


def opened(state: JobState, now: float) -> Entry:
    """The entry of a job that this leader sees for the first time: its stored account, else an empty one."""
    if state.account is not None:
        return Entry(state.account, now, now)
    run = "" if state.spec is None else state.spec.incarnation
    return Entry(Account(incarnation=run), now, -math.inf)


def advance(entry: Entry, state: JobState, now: float, type_of: Mapping[Device, str]) -> Entry:
    """The entry at `now`, the job having been in `state` since `entry.at`."""
    passed = now - entry.at
    if passed <= 0:
        return entry
    account = entry.account
    running = bool(state.members) and state.result is None
    received = account.received_s
    if running:
        sums = dict(received)
        for kind, gpus in gpus_by_type(state, type_of).items():
            sums[kind] = sums.get(kind, 0.0) + gpus * passed
        received = tuple(sorted(sums.items()))
    since = account.since_rescale_s
    account = replace(
        account,
        age_s=account.age_s + passed,
        waited_s=0.0 if running else account.waited_s + passed,
        ran_s=account.ran_s + (passed if running else 0.0),
        since_rescale_s=None if since is None else since + passed,
        received_s=received,
        exclusions=tuple(replace(x, remaining_s=x.remaining_s - passed) for x in account.exclusions),
        paused=state.paused,
    )
    return replace(entry, account=account, at=now)


def gpus_by_type(state: JobState, type_of: Mapping[Device, str]) -> dict[str, int]:
    """GPUs that the job's newest round has, by host type."""
    allocation = state.allocation
    if allocation is None:
        return {}
    if allocation.configuration is not None:
        return {allocation.configuration.host_type: allocation.world_size}
    counts: dict[str, int] = {}
    for member in allocation.members:
        for gpu in member.gpus:
            kind = type_of.get((member.host, gpu))
            if kind is not None:
                counts[kind] = counts.get(kind, 0) + 1
    return counts


def after_round(account: Account, before: JobState | None, state: JobState) -> Account:
    """The account once a newer round was seen: a planned one is a rescale (unless it is the first).

    A probe round and the one after it are one trip, which `probe_s` is charged with: no rescale, and no cool-down
    keeps the job from going back.
    """
    allocation = state.allocation
    if allocation is None or allocation.round <= account.rounds_seen:
        return account
    planned = allocation.cause is Cause.PLAN and bool(allocation.members) and before is not None
    old = None if before is None else before.allocation
    trip = allocation.probe or (old is not None and old.probe)
    went_on = planned and account.ran_s > 0 and not trip
    return replace(
        account,
        rounds_seen=allocation.round,
        rescales=account.rescales + (1 if went_on else 0),
        since_rescale_s=0.0 if planned and not allocation.probe else account.since_rescale_s,
    )


def learn(account: Account, grew: bool, cost_s: float) -> Account:
    """The account with a rescale's cost seen: from the round's writing to its first samples."""
    known = account.rescale_up_s if grew else account.rescale_down_s
    cost = cost_s if known is None else (1 - _LEARN) * known + _LEARN * cost_s
    return replace(account, rescale_up_s=cost) if grew else replace(account, rescale_down_s=cost)


def strike(account: Account, host: str, reason: str, settings: CoordinatorSettings, free: int = 0) -> Account:
    """The account with one more strike against `host`; the first `free` strikes are only remembered."""
    old = next((x for x in account.exclusions if x.host == host), None)
    strikes = 1 if old is None else old.strikes + 1
    doublings = strikes - 1 - free
    # 2**63 seconds is for ever; a larger exponent would only overflow the float.
    lasts = min(settings.exclusion_s * 2.0 ** min(doublings, 63), settings.exclusion_most_s) if doublings >= 0 else 0.0
    kept = tuple(x for x in account.exclusions if x.host != host)
    return replace(account, exclusions=(*kept, Exclusion(host, lasts, strikes, reason)))


def forget_strikes(account: Account, settings: CoordinatorSettings) -> Account:
    """The account without exclusions that ended long ago."""
    kept = tuple(x for x in account.exclusions if x.remaining_s > -settings.exclusion_most_s)
    return account if len(kept) == len(account.exclusions) else replace(account, exclusions=kept)


def excluded(entry: Entry, now: float) -> dict[str, Exclusion]:
    """Hosts that the job must not use at `now`."""
    passed = now - entry.at
    return {
        x.host: replace(x, remaining_s=x.remaining_s - passed)
        for x in entry.account.exclusions
        if x.remaining_s - passed > 1e-9
    }


def since_rescale_s(entry: Entry, now: float) -> float:
    """Seconds since the job was last rescaled, at `now`; infinite = never."""
    since = entry.account.since_rescale_s
    return math.inf if since is None else since + now - entry.at


def waited_s(entry: Entry, state: JobState, now: float) -> float:
    """Seconds for which the job has had no worker, at `now`."""
    return 0.0 if state.members else entry.account.waited_s + now - entry.at


def worth_saving(entry: Entry, stored: Account | None, now: float, settings: CoordinatorSettings) -> bool:
    """Whether the account must be written: something besides passing time changed, or it is old."""
    account = entry.account
    if stored is None or now - entry.saved >= settings.account_interval_s:
        return True
    return _facts(account) != _facts(stored)


def _facts(account: Account) -> tuple[object, ...]:
    return (
        account.incarnation,
        account.rescales,
        account.rescale_up_s,
        account.rescale_down_s,
        account.rounds_seen,
        account.paused,
        account.may_run,
        account.probes,
        tuple((x.host, x.strikes) for x in account.exclusions),
    )
