"""The first half of a decision: what there is, and what happened since the last look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.coordinator.api import Entry, Memory, Timer, World
from heet_elastic.coordinator.decide import accounts, events
from heet_elastic.coordinator.decide.copies import Ghost, ghosts_of
from heet_elastic.coordinator.decide.devices import Device, Inventory, Layout, holders, lay_out, take_stock
from heet_elastic.coordinator.decide.state import JobState, quiet_since, state_of
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Account, Exclusion, Snapshot

JOB_TIMERS = frozenset({"joined", "settle", "rescale", "gone", "wanted", "over", "idle"})
"""Kinds of timers whose second part is a job; they go with it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The store at one moment, condensed. `timers` is this decision's own copy, still to be changed.

    live: jobs that can be given something, by name. entries: of jobs that are live or were at the last look; changed:
    those whose state or entry differs from the last one. avoid: hosts that a job must not use now. ghosts: rounds
    whose workers may still run.
    """

    now: float
    states: tuple[JobState, ...]
    live: tuple[JobState, ...]
    inventory: Inventory
    entries: Mapping[str, Entry]
    changed: frozenset[str]
    timers: dict[tuple[str, ...], Timer]
    avoid: Mapping[str, Mapping[str, Exclusion]]
    ghosts: Mapping[str, tuple[Ghost, ...]]


def take_look(now: float, world: World, settings: CoordinatorSettings) -> Look:
    """Condense the world; every change since the last look is in accounts and timers then."""
    snapshot, memory = world.snapshot, world.memory
    states = _states(snapshot, memory)
    timers = dict(memory.timers)
    _expire(timers, snapshot, now, settings)
    held, releasing, unsure = holders(states)
    for device in _given_back(memory, held, releasing):
        timers["freed", *device] = Timer(now)
    layout = lay_out(snapshot.hosts, memory.layout)
    entries: dict[str, Entry] = {}
    changed: set[str] = set()
    for state in states:
        before, known = memory.states.get(state.job), memory.entries.get(state.job)
        if before is state and known is not None and state.live and not _is_due(state, known, now, settings):
            entries[state.job] = known
            continue
        changed.add(state.job)
        if state.spec is None or not (state.live or (before is not None and before.live)):
            continue
        entries[state.job] = _entry(state, before, memory, timers, now, layout, settings)
    stock = take_stock(layout, held, releasing, unsure, timers, now)
    live = tuple(s for s in states if s.live)
    same_hosts = layout is memory.layout
    ghosts = {}
    for state in live:
        account = entries[state.job].account
        if account.may_run:
            old = memory.ghosts.get(state.job) if same_hosts and state.job not in changed else None
            # Of rounds without a silent member nothing changes merely because time passes.
            still = old is not None and not any(g.loud for g in old)
            found = old if still else ghosts_of(state, account, snapshot.hosts, timers, now, settings)
            if found:
                ghosts[state.job] = found
    avoid = {
        s.job: shut for s in live if (e := entries[s.job]).account.exclusions and (shut := accounts.excluded(e, now))
    }
    return Look(now, states, live, stock, entries, frozenset(changed), timers, avoid, ghosts)


def _is_due(state: JobState, entry: Entry, now: float, settings: CoordinatorSettings) -> bool:
    """Whether a job to which nothing happened must be looked at because time has passed."""
    return bool(state.view.wanted) or now - entry.saved >= settings.account_interval_s


def _states(snapshot: Snapshot, memory: Memory) -> tuple[JobState, ...]:
    known = memory.states
    return tuple(
        s if (s := known.get(job)) is not None and s.view is view else state_of(view, s)
        for job, view in sorted(snapshot.jobs.items())
    )


def _given_back(memory: Memory, held: Mapping[Device, str], releasing: Mapping[Device, str]) -> list[Device]:
    """Devices that a job had at the last look and nobody has now."""
    return [d for d in memory.holder if d not in held and d not in releasing]


def _expire(
    timers: dict[tuple[str, ...], Timer], snapshot: Snapshot, now: float, settings: CoordinatorSettings
) -> None:
    """Drop what is over: timers of jobs that are gone, old reports of freed devices, strikes long forgotten."""
    for key, timer in list(timers.items()):
        kind = key[0]
        if kind in JOB_TIMERS:
            over = key[1] not in snapshot.jobs or (kind == "settle" and now >= timer.until)
        elif kind == "freed":
            over = now - timer.since > settings.lock_report_s + 1.0
        else:
            over = now - timer.until > settings.exclusion_most_s
        if over:
            del timers[key]


def _entry(
    state: JobState,
    before: JobState | None,
    memory: Memory,
    timers: dict[tuple[str, ...], Timer],
    now: float,
    layout: Layout,
    settings: CoordinatorSettings,
) -> Entry:
    """The job's entry, brought up to `now` if anything happened; the time until now passed under the former state."""
    assert state.spec is not None
    entry = memory.entries.get(state.job)
    quiet = entry is not None and before is not None and quiet_since(before, state)
    if quiet and entry is not None and not _is_due(state, entry, now, settings):
        return entry
    if entry is None or entry.account.incarnation != state.spec.incarnation:
        entry, before = accounts.opened(state, now), None
    entry = accounts.advance(entry, before or state, now, layout.type_of)
    account = entry.account
    if before is None or not quiet_since(before, state):
        account = events.apply(events.Change(before, state, memory.boots, now, settings), account, timers)
    if state.view.wanted and state.live:
        account = _late_starts(state, account, timers, now, settings)
    account = accounts.forget_strikes(account, settings)
    return entry if account is entry.account else Entry(account, entry.at, entry.saved)


def _late_starts(
    state: JobState,
    account: Account,
    timers: dict[tuple[str, ...], Timer],
    now: float,
    settings: CoordinatorSettings,
) -> Account:
    """Strikes against hosts whose heet-agent was asked for an agent of this job and did not start one in time."""
    offering = {o.host for o in state.offers}
    for host in state.view.wanted:
        key = ("wanted", state.job, host)
        if host in offering:
            timers.pop(key, None)
        elif host not in accounts.excluded(Entry(account, now, now), now):
            timer = timers.setdefault(key, Timer(now))
            if now - timer.since >= settings.start_timeout_s:
                del timers[key]
                why = f"its heet-agent started no torchrun within {settings.start_timeout_s:g} s"
                account = accounts.strike(account, host, why, settings)
    return account


def names(jobs: Sequence[str] | frozenset[str]) -> str:
    """Jobs for a sentence: at most three by name."""
    ordered = sorted(jobs)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return f"{'job' if len(ordered) == 1 else 'jobs'} {', '.join(ordered[:3])}{more}"
