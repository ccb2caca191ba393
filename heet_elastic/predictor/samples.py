"""From the samples of a job's agents to its measured cells and its position. Pure; agents may come and go.

Rate: a job is synchronous, so every worker sees the same time per step, and

    steps/s = 1 / step_s            samples/s = workers x samples per worker and step / step_s

where samples per worker and step = sum of samples / sum of (steps x local workers) over whoever took part: right
whatever agents shared a configuration, in whichever rounds, with a fixed batch per worker or a fixed global batch.

Position: rounds are folded in order. A round begins where the checkpoint that it loaded says, or at the last mark,
or (nothing noticed at all) where the round before it stopped; its steps are added to that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from heet_elastic.model import Cell, CellCounters, Configuration, Progress, RoundProgress, SampleRecord, WorkUnit


@dataclass(frozen=True, slots=True)
class Work:
    """Position and end of a job in its own unit. `total` None = nobody said; `certain` as in Progress."""

    done: float
    total: float | None
    certain: bool


def merge(
    records: Sequence[SampleRecord], work_unit: WorkUnit, total_work: float | None = None
) -> dict[Configuration, Cell]:
    """The measured cells of a job, in `work_unit` per second, from the records of all its agents.

    A configuration without one finished window, or without samples where samples are asked for, has no cell. Epochs:
    steps/s until the script has told how far it is (`heet_elastic.progress`); `total_work` as for `work`. `spread` is
    the relative median absolute deviation of windows; `count` the windows seen; ages are unknown here.
    """
    groups: dict[Configuration, list[CellCounters]] = {}
    for counters in (c for record in records for c in record.cells):
        groups.setdefault(counters.configuration, []).append(counters)
    factor = _epochs_per_step(records, total_work) if work_unit == "epochs" else 1.0
    cells = {}
    for configuration in sorted(groups):
        cell = _cell(configuration, groups[configuration], work_unit == "samples", factor)
        if cell is not None:
            cells[configuration] = cell
    return cells


def _cell(configuration: Configuration, group: Sequence[CellCounters], in_samples: bool, factor: float) -> Cell | None:
    timed = [c for c in group if c.windows > 0 and c.step_s > 0]
    if not timed:
        return None
    step_s = weighted_median([(c.step_s, c.windows * c.local_workers) for c in timed])
    if in_samples:
        worker_steps = math.fsum(c.steps * c.local_workers for c in group if c.local_samples > 0)
        if worker_steps == 0:
            return None
        factor = configuration.workers * math.fsum(c.local_samples for c in group) / worker_steps
    throughput = factor / step_s
    if not 0 < throughput < math.inf:
        return None
    share = [c.local_workers / configuration.workers for c in timed]
    count = math.fsum(c.windows * s for c, s in zip(timed, share, strict=True))
    return Cell(
        throughput=throughput,
        seconds=math.fsum(c.seconds * s for c, s in zip(timed, share, strict=True)),
        count=max(1, round(count)),
        spread=weighted_median([(c.step_spread_s / c.step_s, c.windows * c.local_workers) for c in timed]),
    )


def weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Smallest value at which half of the weight is reached, of (value, weight) pairs; 0.0 of none."""
    ordered = sorted(values)
    half = math.fsum(weight for _, weight in ordered) / 2
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return 0.0


def merge_rounds(records: Sequence[SampleRecord]) -> tuple[RoundProgress, ...]:
    """The rounds of a job in order: every step is seen by all agents, samples add up over them."""
    rounds: dict[int, RoundProgress] = {}
    for new in (r for record in records for r in record.rounds):
        old = rounds.get(new.round)
        rounds[new.round] = new if old is None else _both(old, new)
    return tuple(rounds[number] for number in sorted(rounds))


def _both(a: RoundProgress, b: RoundProgress) -> RoundProgress:
    return RoundProgress(
        round=a.round,
        steps=max(a.steps, b.steps),
        samples=a.samples + b.samples,
        marks=max(a.marks, b.marks),
        marked_steps=max(a.marked_steps, b.marked_steps),
        marked_samples=a.marked_samples + b.marked_samples,
        loads=max(a.loads, b.loads),
        weight_loads=max(a.weight_loads, b.weight_loads),
        loaded_steps=_most(a.loaded_steps, b.loaded_steps),
        done=_most(a.done, b.done),
        total=_most(a.total, b.total),
        start_steps=_most(a.start_steps, b.start_steps),
        start_samples=_most(a.start_samples, b.start_samples),
    )


def _most(a: float | None, b: float | None) -> float | None:
    return max((v for v in (a, b) if v is not None), default=None)


def fold(rounds: Iterable[RoundProgress]) -> Progress:
    """Position after these rounds (in order), and how it was reached.

    `lost_steps`: steps that were made and, after a restart from an older mark, had to be made again: counted once.
    """
    progress, known, any_steps = Progress(), True, False
    for entry in rounds:
        if entry.steps > 0:
            progress, sure = _advance(progress, entry, any_steps)
            known, any_steps = known and sure, True
        if entry.done is not None:
            progress = replace(progress, done=entry.done, total=entry.total)
    return replace(progress, certain=known and any_steps)


def start_of(before: Progress, entry: RoundProgress, resumed: bool) -> tuple[float, float, bool]:
    """(steps, samples, seen) at which a round began. `resumed`: earlier rounds made steps.

    What is assumed when nothing was seen: the last mark where there is one, else that no step was lost.
    """
    per_step = entry.samples / entry.steps if entry.steps else 0.0
    if entry.start_steps is not None and not resumed:
        return entry.start_steps, entry.start_samples or 0.0, True
    if entry.loaded_steps is not None:
        return entry.loaded_steps, _samples_at(before, entry.loaded_steps, per_step), True
    if not resumed:
        return 0.0, 0.0, entry.loads == 0
    if before.marked_steps > 0:
        return before.marked_steps, before.marked_samples, entry.loads + entry.weight_loads > 0
    return before.steps, before.samples, False


def _samples_at(before: Progress, steps: float, per_step: float) -> float:
    """Samples at a step count: exact at the mark, else by the job's own samples per step so far."""
    if before.marked_steps > 0 and before.marked_steps == steps:
        return before.marked_samples
    return steps * (before.samples / before.steps if before.steps > 0 else per_step)


def _advance(before: Progress, entry: RoundProgress, resumed: bool) -> tuple[Progress, bool]:
    start, start_samples, sure = start_of(before, entry, resumed)
    steps = start + entry.steps
    if entry.marks:
        marked, marked_samples = start + entry.marked_steps, start_samples + entry.marked_samples
    elif entry.loads or entry.loaded_steps is not None:
        marked, marked_samples = start, start_samples  # the checkpoint that it began from is still there
    else:
        marked, marked_samples = before.marked_steps, before.marked_samples
    after = replace(
        before,
        steps=steps,
        samples=start_samples + entry.samples,
        marked_steps=marked,
        marked_samples=marked_samples,
        highest_steps=max(before.highest_steps, steps),
        lost_steps=before.lost_steps + (max(0.0, before.steps - start) if resumed else 0.0),
    )
    return after, sure


def job_progress(records: Sequence[SampleRecord]) -> Progress:
    """Position of a job from the records of all its agents, past and present."""
    return fold(merge_rounds(records))


def work(records: Sequence[SampleRecord], unit: WorkUnit, total_work: float | None = None) -> Work:
    """Position and end of a job in `unit`; `total_work` is what its spec says (None: only the script can tell).

    What the script told outranks what was counted: with a total of its own, `done / total` is the share of the work
    that is done, in whatever the script counts; without one, `done` is in the job's unit.
    """
    progress = job_progress(records)
    counted = {"steps": progress.steps, "samples": progress.samples, "epochs": 0.0}[unit]
    if progress.done is None:
        return Work(counted, total_work, progress.certain and unit != "epochs")
    if not progress.total:
        return Work(progress.done, total_work, True)
    share = min(1.0, progress.done / progress.total)
    if total_work is not None:
        return Work(share * total_work, total_work, True)
    if unit == "epochs" or counted <= 0 or share <= 0:
        return Work(progress.done, progress.total, True)
    return Work(counted, counted / share, True)


def work_done(records: Sequence[SampleRecord], unit: WorkUnit, total_work: float | None = None) -> tuple[float, bool]:
    """(done, certain) of `work`."""
    position = work(records, unit, total_work)
    return position.done, position.certain


def _epochs_per_step(records: Sequence[SampleRecord], total_work: float | None) -> float:
    steps = job_progress(records).steps
    done = work(records, "epochs", total_work).done
    return done / steps if done > 0 and steps > 0 else 1.0
