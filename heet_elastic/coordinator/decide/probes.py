"""Probe rounds: when a running job is moved for a moment, only to be measured where it was never seen.

What a job shows where it runs is free and comes first. A round that only measures costs the job its way there and back,
the work since its last checkpoint, and what it is slower meanwhile (`predictor.probing`). So it is made only

- on idle devices and the job's own, while no job waits: nobody else gives anything up for it;
- where better decisions are expected to save more than it costs;
- by one job at a time, that runs undisturbed, is not rigid, was measured where it runs, and of which a checkpoint was
  noticed;
- within the job's budget: `probes_per_job`, and `probe_share` of the time that it ran.

The policy does not see it: for the policy the job is at home, and its home stays its own. When the cell is measured, or
the time is over, the policy is asked; the job then counts as running where it is faster, at home or here. A choice that
takes job or devices elsewhere ends a probe at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from heet_elastic.coordinator.api import Axes, Entry, Row, Spot, Trial, World
from heet_elastic.coordinator.decide.demand import Demand, demand_of
from heet_elastic.coordinator.decide.look import Look
from heet_elastic.coordinator.decide.problem import remaining_J
from heet_elastic.coordinator.decide.room import Room, within_reach
from heet_elastic.coordinator.decide.rounds import settled
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor.api import Covarying, Observations
from heet_elastic.predictor.probing import Probe, ProbeJob, ProbeSettings, next_probe
from heet_elastic.predictor.samples import job_progress
from heet_elastic.scheduler.api import DENSE, SPREAD

Targets = Mapping[str, tuple[Spot, ...]]

LOOK_EVERY_S = 10.0
"""Whether a probe pays is looked at no more often than this ..."""

ASKED = 2
"""... for at most so many jobs, those asked longest ago first ..."""

AGAIN_S = 300.0
"""... and for a job of which nothing new was measured not again within this time."""

START_S = 5.0
"""Starting a probe round may take this long, whatever starting has cost before."""


@dataclass(frozen=True, slots=True)
class Probing:
    """Probe rounds before the choice. running: those that go on; over: jobs whose probe has just ended.

    homes: where jobs count as running though they are, or were, away to be measured.
    """

    running: Mapping[str, Trial] = field(default_factory=dict)
    over: frozenset[str] = frozenset()
    homes: Targets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probed:
    """Probe rounds after the choice: those that go on, with the one that is begun now.

    entries: of all jobs, the account of one that begins charged. asked, asked_at: for the memory.
    """

    running: Mapping[str, Trial]
    over: frozenset[str]
    entries: Mapping[str, Entry]
    asked: Mapping[str, tuple[int, float]]
    asked_at: float


def follow(now: float, world: World, look: Look, settings: CoordinatorSettings) -> Probing:
    """Which of the probe rounds under way go on, before the policy may be asked."""
    trials = world.memory.trials
    if not trials:
        return Probing()
    states = {s.job: s for s in look.live}
    running: dict[str, Trial] = {}
    homes: dict[str, tuple[Spot, ...]] = {}
    for job, trial in trials.items():
        state, row = states.get(job), world.table.rows.get(job)
        if state is None or row is None:
            continue
        if _goes_on(now, state, row, trial, look, settings):
            running[job] = trial
        if job in running or not _faster_there(state, row, trial):
            homes[job] = trial.home
    return Probing(running, frozenset(trials.keys() - running.keys()), homes)


def _goes_on(now: float, state: JobState, row: Row, trial: Trial, look: Look, settings: CoordinatorSettings) -> bool:
    """Whether a probe round is neither done, nor late, nor overtaken by anything."""
    allocation = state.allocation
    if allocation is None or now >= trial.until or state.fixed or state.paused:
        return False
    if len(state.here) < len(state.members) or any(g.loud for g in look.ghosts.get(state.job, ())):
        return False
    if allocation.round >= trial.round and not allocation.probe:
        return False
    shut = look.avoid.get(state.job, {})
    if any(s.host in shut or (s.host, s.host_type) not in look.inventory.index for s in trial.spots):
        return False
    cell = _cell(row, trial.configuration)
    return cell is None or cell.seconds < settings.probe_s


def _cell(row: Row, configuration: Configuration) -> Cell | None:
    return next((cell for c, cell in row.cells if c == configuration), None)


def _faster_there(state: JobState, row: Row, trial: Trial) -> bool:
    """Whether the job is still where it was measured, and turned out to be faster than at home."""
    there, home = _cell(row, trial.configuration), _cell(row, trial.home_configuration)
    here = state.allocation is not None and state.allocation.configuration == trial.configuration
    return here and there is not None and home is not None and there.throughput > home.throughput


def go_on(
    now: float,
    world: World,
    look: Look,
    probing: Probing,
    targets: Targets,
    left_alone: frozenset[str],
    settings: CoordinatorSettings,
) -> Probed:
    """The probe rounds that go on under these targets, and the one that is begun, if any pays."""
    memory = world.memory
    running = {j: t for j, t in probing.running.items() if targets.get(j) == t.home}
    if running:
        room = Room(look.inventory, targets)
        running = {j: t for j, t in running.items() if room.fits(j, t.spots)}
    over = probing.over | (probing.running.keys() - running.keys())
    as_before = Probed(running, frozenset(over), look.entries, memory.probe_asked, memory.probe_asked_at)
    if running or over or not settings.probes_per_job or now - memory.probe_asked_at < LOOK_EVERY_S:
        return as_before
    if any(not s.members and s.offers and not s.paused and not s.fixed for s in look.live):
        return as_before  # somebody waits
    if not isinstance(world.table.predictor, Covarying):
        return as_before
    room = Room(look.inventory, targets)
    return _begin(now, world, look, room, targets, left_alone, settings, as_before) if room.idle else as_before


def _begin(
    now: float,
    world: World,
    look: Look,
    room: Room,
    targets: Targets,
    left_alone: frozenset[str],
    settings: CoordinatorSettings,
    as_before: Probed,
) -> Probed:
    """The probe that gains most, of the jobs whose turn it is to be asked."""
    asked = {j: a for j, a in as_before.asked.items() if j in look.entries}
    best: tuple[float, str, Probe, Trial] | None = None
    for state in _turns(now, world, look, targets, left_alone, settings, asked):
        found = _probe_of(now, world, look, state, room, targets[state.job], settings)
        if found is None:
            asked[state.job] = (world.table.rows[state.job].picture, now)
            continue
        probe, trial = found
        net_s = probe.gain_s - probe.cost_s
        best = (net_s, state.job, probe, trial) if best is None or net_s > best[0] else best
    if best is None:
        return replace(as_before, asked=asked, asked_at=now)
    _, job, probe, trial = best
    entry = look.entries[job]
    account = replace(entry.account, probes=entry.account.probes + 1, probe_s=entry.account.probe_s + probe.cost_s)
    entries = {**look.entries, job: replace(entry, account=account)}
    return Probed({job: trial}, as_before.over, entries, asked, now)


def _turns(
    now: float,
    world: World,
    look: Look,
    targets: Targets,
    left_alone: frozenset[str],
    settings: CoordinatorSettings,
    asked: Mapping[str, tuple[int, float]],
) -> list[JobState]:
    """Jobs that may be asked now, at most `ASKED`."""
    found = []
    for state in look.live:
        row = world.table.rows.get(state.job)
        if row is None or not row.cells or not state.complete or state.job in left_alone:
            continue
        picture, at = asked.get(state.job, (-1, 0.0))
        if picture == row.picture and now - at < AGAIN_S:
            continue
        if _may_be_probed(state, row, look, targets, settings):
            found.append(state)
    found.sort(key=lambda s: (asked.get(s.job, (-1, -1.0))[1], s.job))
    return found[:ASKED]


def _may_be_probed(state: JobState, row: Row, look: Look, targets: Targets, settings: CoordinatorSettings) -> bool:
    """Whether the job runs undisturbed where it is to run, was measured there, and may spend anything at all."""
    spec, allocation, account = state.spec, state.allocation, look.entries[state.job].account
    if spec is None or spec.rigid or allocation is None or allocation.configuration is None or allocation.probe:
        return False
    if state.fixed or state.paused or allocation.restarts_used or account.rescale_up_s is None:
        return False
    if account.probes >= settings.probes_per_job or not settled(state, targets.get(state.job, ()), look.inventory):
        return False
    cell = _cell(row, allocation.configuration)
    return cell is not None and cell.seconds >= settings.probe_s


def _probe_of(
    now: float,
    world: World,
    look: Look,
    state: JobState,
    room: Room,
    home: tuple[Spot, ...],
    settings: CoordinatorSettings,
) -> tuple[Probe, Trial] | None:
    """The job's best probe, where it pays."""
    predictor, axes, row, allocation = (
        world.table.predictor,
        world.table.axes,
        world.table.rows[state.job],
        state.allocation,
    )
    assert isinstance(predictor, Covarying)
    assert allocation is not None
    assert allocation.configuration is not None
    demand = demand_of(state, look.inventory, look.avoid.get(state.job, {}), frozen=False)
    reach = within_reach(demand, room, axes, look)
    places = {c: spots for c, spots in reach.items() if _speed(row, axes, c) > 0}
    here, redo_s = allocation.configuration, _redo_s(state, allocation.configuration)
    if redo_s is None or not places.keys() - {here}:
        return None
    configurations = list(dict.fromkeys((*places, here, *(c for c, _ in row.cells))))
    spec = state.spec
    assert spec is not None
    observed = [Observations(state.job, spec.name, spec.script, row.cells, row.features, spec.work_unit)]
    job = _as_probe_job(now, world, look, demand, redo_s, settings)
    probe = next_probe(
        predictor.predict(observed, configurations),
        predictor.covariance(observed, configurations)[0],
        np.array([c in places for c in configurations]),
        job,
        ProbeSettings(settings.probe_s, settings.probes_per_job, settings.probe_share, exponent=0.0),
    )
    if probe.column is None:
        return None
    there = configurations[probe.column]
    starting = settings.start_timeout_s if {s.host for s in places[there]} - {o.host for o in state.offers} else 0.0
    until = now + 2.0 * max(job.rescale_up_s, START_S) + settings.probe_s + starting
    return probe, Trial(there, places[there], here, home, state.next_round, until, row.picture, probe.reason)


def _speed(row: Row, axes: Axes, c: Configuration) -> float:
    """What the table says of a configuration on its axes; 0 = closed to the job."""
    h = axes.host_types.index(c.host_type)
    spread = c.hosts > -(-c.workers // axes.per_host_H[h])
    return float(row.throughput_HWS[h, c.workers - 1, SPREAD if spread else DENSE])


def _redo_s(state: JobState, here: Configuration) -> float | None:
    """Seconds of work since the last checkpoint, which a restart makes again; None = no checkpoint was noticed."""
    records = list(state.view.samples.values())
    progress = job_progress(records)
    steps_s = [c.step_s for r in records for c in r.cells if c.configuration == here and c.step_s > 0]
    if progress.marked_steps <= 0 or not steps_s:
        return None
    return max(progress.steps - progress.marked_steps, 0.0) * min(steps_s)


def _as_probe_job(
    now: float, world: World, look: Look, demand: Demand, redo_s: float, settings: CoordinatorSettings
) -> ProbeJob:
    """What a probe would cost the job, with its own rescale costs, and how long it goes on."""
    state = demand.state
    row, entry = world.table.rows[state.job], look.entries[state.job]
    account, allocation = entry.account, state.allocation
    assert allocation is not None
    assert allocation.configuration is not None
    left = float(remaining_J([demand], [row], row.throughput_HWS[None], world.snapshot.profiles)[0])
    cell = _cell(row, allocation.configuration)
    down_s = settings.rescale_down_s if account.rescale_down_s is None else account.rescale_down_s
    return ProbeJob(
        current=allocation.configuration,
        rescale_up_s=settings.rescale_up_s if account.rescale_up_s is None else account.rescale_up_s,
        rescale_down_s=down_s,
        remaining_s=None if cell is None else left / cell.throughput,
        ran_s=account.ran_s + now - entry.at,
        probes=account.probes,
        spent_s=account.probe_s,
        redo_s=redo_s,
    )
