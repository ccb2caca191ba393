"""decide(now, world, policy, settings, rng) -> Decision: one look at the store, everything that follows from it.

1. Condense every job's view (reused while it is the same), take stock of the devices, note what happened (`look`).
2. Ask the policy for new targets if something calls for it; else the targets stand (`choose`).
3. See whether a job is to be measured for a moment where it was never seen (`probes`).
4. Turn targets into rounds where all devices are free (`rounds`).
5. Say for every job where it stands and why (`waiting`), end and forget jobs (`lifecycle`).

Levels, not edges: every write follows from the present store, so a write that was lost is simply decided again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from heet_elastic.coordinator.api import (
    Action,
    Decision,
    DropClaims,
    Entry,
    Memory,
    SetAccount,
    SetStatus,
    Unwant,
    Want,
    World,
)
from heet_elastic.coordinator.decide import accounts, lifecycle, probes
from heet_elastic.coordinator.decide.choose import Targets, make_choice
from heet_elastic.coordinator.decide.copies import unproven
from heet_elastic.coordinator.decide.demand import has_heet_agent
from heet_elastic.coordinator.decide.look import Look, take_look
from heet_elastic.coordinator.decide.phases import phase_of, step
from heet_elastic.coordinator.decide.probes import Probed
from heet_elastic.coordinator.decide.rounds import Ground, Plan, as_action, make_plans
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.decide.waiting import Facts, details_of, queue_of, reason_of
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import JobStatus, Phase, Wanted
from heet_elastic.scheduler.api import Policy

_SOON_S = 0.05
"""When a phase has more than one step to go, the next one is shown after this."""


def decide(
    now: float, world: World, policy: Policy, settings: CoordinatorSettings, rng: np.random.Generator
) -> Decision:
    """What to write now, and what to remember for the next call.

    `now`: seconds on the caller's clock, never going back between calls that share a memory. Deterministic: equal
    arguments give equal decisions, whatever the order of jobs and hosts in the snapshot. Raises nothing for what the
    store may contain.
    """
    look = take_look(now, world, settings)
    results = lifecycle.endings(look.live, look.timers, now, settings)
    probing = probes.follow(now, world, look, settings)
    planned = make_choice(now, world, look, probing, policy, settings, rng)
    probed = probes.go_on(now, world, look, probing, planned.targets, planned.left_alone, settings)
    look = replace(look, entries=probed.entries, changed=look.changed | probed.over | probed.running.keys())
    chosen = replace(planned, targets={**planned.targets, **{j: t.spots for j, t in probed.running.items()}})
    ground = Ground(
        look.inventory, world.snapshot.hosts, look.avoid, look.ghosts, world.leader, chosen.reason, probed.running
    )
    over = {r.job for r in results}
    plans = make_plans(
        [s for s in look.live if s.job not in over], chosen.targets, chosen.prices, chosen.left_alone, ground
    )
    queue = queue_of(look, chosen.targets, chosen.prices)
    facts = Facts(look, world.snapshot.hosts, plans, chosen.settling, queue, frozenset(probed.running))
    still = _nothing_new(look, chosen, plans, world)
    reasons = {s.job: still.get(s.job) or reason_of(s, facts) for s in look.states if s.live or s.agents}
    reasons.update((r.job, f"{r.result.outcome}: {r.result.reason}") for r in results)
    statuses, said, look_again = _statuses(look, reasons, still, facts, over, world.memory.said, settings)
    passing = {a.job for a in statuses} | plans.keys() | look.avoid.keys() | chosen.settling | _loud(look)
    shown = {s.job: reasons[s.job] for s in look.live if s.members and s.job not in passing}
    entries, saves = _saves(look, now, settings)
    ended = [s for s in look.states if s.result is not None]
    actions: list[Action] = [*results]
    actions += [DropClaims(host) for host in sorted(world.snapshot.claims)]
    actions += [as_action(p) for p in plans.values() if p.allocation is not None]
    actions += _wants(look, world, chosen, plans, over)
    actions += statuses
    actions += saves
    actions += lifecycle.profiles_due(ended, world, settings)
    actions += lifecycle.forgettable(look.states, look.timers, now, settings)
    memory = _remember(now, world, look, planned, probed, entries, said, shown)
    wake = _wake(now, memory, look, chosen, settings, min(settings.interval_s, policy.interval_s))
    return Decision(tuple(actions), chosen.reason, reasons, min(wake, look_again), memory)


def _nothing_new(look: Look, chosen: Targets, plans: Mapping[str, Plan], world: World) -> Mapping[str, str]:
    """Reasons of running jobs to which nothing happened since their stored status was found to be right."""
    new = look.changed | plans.keys() | look.avoid.keys() | chosen.settling | _loud(look)
    return {job: r for job, r in world.memory.shown.items() if job not in new and job in look.entries}


def _loud(look: Look) -> set[str]:
    """Jobs that wait for a silent host: what is said of them changes merely because time passes."""
    return {job for job, ghosts in look.ghosts.items() if any(g.loud for g in ghosts)}


def _wants(
    look: Look, world: World, chosen: Targets, plans: Mapping[str, Plan], over: Iterable[str]
) -> list[Want | Unwant]:
    """Requests to heet-agents: made where a target needs an agent, kept while the host is used, else taken back."""
    actions: list[Want | Unwant] = []
    hosts = world.snapshot.hosts
    for state in look.states:
        plan, view = plans.get(state.job), state.view
        if not view.wanted and plan is None:
            continue
        wanting = state.live and state.job not in over
        used = {s.host for s in chosen.targets.get(state.job, ())} | {m.host for m in state.members}
        if not wanting:
            used.clear()
        keep = used - look.avoid.get(state.job, {}).keys()
        actions += [Unwant(state.job, host) for host in sorted(view.wanted) if host not in keep]
        for host in plan.wanted if plan is not None and wanting else ():
            known = view.wanted.get(host)
            assert state.spec is not None
            stale = known is None or known.record.incarnation != state.spec.incarnation
            if stale and state.spec.submitted and host in hosts and has_heet_agent(hosts[host]):
                reason = f"job {state.job} is to run here: {chosen.reason}"
                actions.append(Want(state.job, Wanted(host, state.spec.incarnation, reason)))
    return actions


def _statuses(
    look: Look,
    reasons: Mapping[str, str],
    still: Mapping[str, str],
    facts: Facts,
    over: Iterable[str],
    said: Mapping[str, float],
    settings: CoordinatorSettings,
) -> tuple[list[SetStatus], dict[str, float], float]:
    """Statuses that must be written, when those of waiting jobs were, and in how many seconds others will have to be.

    Whenever one job starts, the place of all that wait behind it changes: a job that goes on waiting is told so at most
    every `status_interval_s`. A phase that has further steps to go is looked at again soon.
    """
    actions: list[SetStatus] = []
    told: dict[str, float] = {}
    soon = math.inf
    for state in look.states:
        if state.job in still or state.spec is None or (state.result is not None and _shows_end(state)):
            continue
        last = None if state.view.status is None else state.view.status.record.phase
        if state.result is None and last in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED):
            last = None  # an earlier run's
        wanted = phase_of(state, last)
        phase = step(last, wanted)
        if phase is not wanted:
            soon = min(soon, _SOON_S)
        position = facts.place(state.job)
        reason = reasons.get(state.job) or reason_of(state, facts)
        details = details_of(state, facts) if state.live and state.job not in over else ()
        status = JobStatus(phase, reason, position, details)
        shown = None if state.view.status is None else state.view.status.record
        at = said.get(state.job)
        if position is not None:
            told[state.job] = look.now if at is None else at
        if shown == status:
            continue
        if shown is not None and shown.queue_position is not None and position is not None and at is not None:
            left = at + settings.status_interval_s - look.now
            if shown.phase is phase and left > 0:
                soon = min(soon, left)
                continue
            told[state.job] = look.now
        actions.append(SetStatus(state.job, status))
    return actions, told, soon


def _shows_end(state: JobState) -> bool:
    """Whether the stored status of an ended job already is its end."""
    shown = None if state.view.status is None else state.view.status.record.phase
    return shown is phase_of(state, shown)


def _saves(look: Look, now: float, settings: CoordinatorSettings) -> tuple[dict[str, Entry], list[SetAccount]]:
    """Entries of live jobs, and the accounts that must be written: changed, old, or of a job that has just ended."""
    entries: dict[str, Entry] = {}
    saves = []
    for state in look.states:
        entry = look.entries.get(state.job)
        if entry is None:
            continue
        known = state.account
        if not state.live or (state.job in look.changed and accounts.worth_saving(entry, known, now, settings)):
            saves.append(SetAccount(state.job, entry.account))
            entry = replace(entry, saved=now)
        if state.live:
            entries[state.job] = entry
    return entries, saves


def _remember(
    now: float,
    world: World,
    look: Look,
    chosen: Targets,
    probed: Probed,
    entries: Mapping[str, Entry],
    said: Mapping[str, float],
    shown: Mapping[str, str],
) -> Memory:
    boots = dict(world.memory.boots)
    boots.update((name, host.boot_id) for name, host in world.snapshot.hosts.items())
    return Memory(
        now=now,
        chosen_at=chosen.chosen_at,
        thawed_at=chosen.thawed_at,
        situation=chosen.situation,
        targets=chosen.targets,
        prices=chosen.prices,
        offered=chosen.offered,
        held=chosen.held,
        reason=chosen.reason,
        entries=entries,
        timers=look.timers,
        states={s.job: s for s in look.states},
        holder={**look.inventory.releasing, **look.inventory.holder},
        boots=boots,
        layout=look.inventory.layout,
        demands=chosen.demands,
        ghosts=look.ghosts,
        shown=shown,
        said=said,
        trials=probed.running,
        probe_asked=probed.asked,
        probe_asked_at=probed.asked_at,
    )


def _wake(
    now: float, memory: Memory, look: Look, chosen: Targets, settings: CoordinatorSettings, interval_s: float
) -> float:
    """Seconds until something becomes due by time alone."""
    assert memory.chosen_at is not None
    moments = [memory.chosen_at + interval_s]
    unsettled = {s.job for s in look.live if s.job in look.ghosts and unproven(look.ghosts[s.job], s)}
    for (kind, about, *_), timer in look.timers.items():
        if kind in ("settle", "busy", "over"):
            moments.append(timer.until)
        elif kind == "wanted":
            moments.append(timer.since + settings.start_timeout_s)
        elif kind == "idle":
            moments.append(timer.since + settings.retention_s)
        elif kind == "freed" and look.inventory.layout.locked:
            moments.append(timer.since + settings.lock_report_s + 1.0)
        elif kind == "gone" and about in unsettled:
            moments.append(timer.since + settings.lock_report_s)
            if settings.fence_time_s > 0:
                moments.append(timer.since + settings.fence_time_s + settings.ttl_s)
    cooling = [look.entries[job] for job in chosen.held if job in look.entries]
    asked = memory.thawed_at + settings.cooldown_s
    moments += [max(now + settings.cooldown_s - accounts.since_rescale_s(entry, now), asked) for entry in cooling]
    moments += [t.until for t in memory.trials.values()]
    for shut in look.avoid.values():
        moments += [now + x.remaining_s for x in shut.values()]
    return max(min((m for m in moments if m > now), default=now + interval_s) - now, 0.0)


__all__ = ["decide"]
