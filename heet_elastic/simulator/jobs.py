"""The jobs of a run: a trace, matched with the rows of the true tables, with work, limits and submission times.

Where a trace says nothing: the table row is drawn with the run's seed (a family first, then one of its rows);
work = duration x speed at the requested count on the table's median host type; an elastic job takes 1 to the largest
measured count of workers; a rigid one exactly what it requested.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from heet_elastic.errors import UsageError
from heet_elastic.simulator.cluster import HostGroup
from heet_elastic.simulator.traces import Trace, TraceJob
from heet_elastic.simulator.truth import Truth

DUMP_COLUMNS = (
    "job",
    "total_work",
    "requested",
    "submit_time_s",
    "id",
    "priority",
    "rigid",
    "min_workers",
    "max_workers",
)


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job as simulated. `row` names its true speeds; total_work is in the row's unit; submit_s counts from 0."""

    job: str
    row: str
    total_work: float
    requested: int
    submit_s: float
    min_workers: int
    max_workers: int
    rigid: bool = False
    priority: float = 1.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a trace becomes jobs. None = as the trace has it."""

    jobs: int | None = None
    load: float | None = None
    rigid: float | None = None
    max_workers: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Resolved:
    """Jobs by submission, and sentences about what was assumed or left out."""

    jobs: tuple[SimJob, ...]
    load: float
    notes: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def resolve_jobs(
    trace: Trace, truth: Truth, groups: Sequence[HostGroup], options: JobOptions, skip_bad: bool
) -> Resolved:
    """The jobs that the cluster will see. Deterministic in `options.seed`.

    Raises UsageError when a job's row cannot run on this cluster at all (unless `skip_bad`), or no work can be derived.
    """
    rows = _Rows(truth, groups)
    rng = np.random.default_rng([options.seed, 0x6A6F6273])
    jobs, counts, problems = [], dict.fromkeys(("assigned", "clamped", "unrunnable"), 0), []
    for entry in _repeated(trace.jobs, options.jobs):
        try:
            jobs.append(_resolve(entry, rows, options, rng, counts))
        except ValueError as e:
            problems.append(f"line {entry.line}: {e}")
    if problems and not skip_bad:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UsageError(f"{trace.name}, {problems[0]}{more}; leave such jobs out with --skip-bad")
    if not jobs:
        raise UsageError(f"{trace.name}: none of its jobs can run on this cluster: {problems[0]}")
    counts["unrunnable"] = len(problems)
    first = min(j.submit_s for j in jobs)
    jobs = [replace(j, submit_s=j.submit_s - first) for j in jobs]
    load = offered_load(jobs, truth, groups)
    if options.load is not None and load > 0:
        jobs = [replace(j, submit_s=j.submit_s * load / options.load) for j in jobs]
        load = options.load
    jobs.sort(key=lambda j: (j.submit_s, j.job))
    return Resolved(tuple(jobs), load, _notes(counts, options, rows.median), counts)


def offered_load(jobs: Sequence[SimJob], truth: Truth, groups: Sequence[HostGroup]) -> float:
    """GPU-seconds that the jobs ask for, as requested on the median host type, per GPU-second of the arrival span."""
    gpus = sum(g.hosts * g.gpus for g in groups)
    span = max(j.submit_s for j in jobs) - min(j.submit_s for j in jobs)
    median = truth.median_type()
    asked = sum(j.requested * j.total_work / truth.reference_speed(j.row, j.requested, median) for j in jobs)
    return float(asked / (gpus * span)) if span > 0 else 0.0


def dump_jobs(path: Path, jobs: Sequence[SimJob]) -> None:
    """Write the jobs as a trace that `read_trace` takes as it is."""
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(DUMP_COLUMNS)
        writer.writerows(dump_rows(jobs))


def dump_rows(jobs: Sequence[SimJob]) -> list[tuple[str | int, ...]]:
    """The jobs as rows of `DUMP_COLUMNS`; numbers as they are read back."""
    return [
        (
            j.row,
            repr(j.total_work),
            j.requested,
            repr(j.submit_s),
            j.job,
            repr(j.priority),
            str(j.rigid).lower(),
            j.min_workers,
            j.max_workers,
        )
        for j in jobs
    ]


class _Rows:
    """Rows of the truth that run somewhere on the cluster, and how to find the one that a trace means."""

    def __init__(self, truth: Truth, groups: Sequence[HostGroup]) -> None:
        self.truth = truth
        self.median = truth.median_type()
        gpus: dict[str, int] = {}
        for group in groups:
            gpus[group.host_type] = gpus.get(group.host_type, 0) + group.hosts * group.gpus
        self.gpus = gpus
        self.families: dict[str, list[str]] = {}
        for name, row in truth.rows.items():
            if self.most(name):
                self.families.setdefault(row.family, []).append(name)

    def most(self, row: str) -> int:
        """Largest count that was measured on a type of the cluster and fits on it; 0 = nowhere."""
        sizes = ((self.truth.rows[row].cells.get(t, {}), n) for t, n in self.gpus.items())
        return max((w for cells, n in sizes for w in range(1, n + 1) if _covers(cells, w)), default=0)

    def least(self, row: str) -> int:
        """Smallest count that was measured on a type of the cluster."""
        counts = [w for t in self.gpus for w, _ in self.truth.rows[row].cells.get(t, {})]
        return min(counts, default=1)

    def draw(self, rng: np.random.Generator) -> str:
        """A row at random: a family, then one of its rows."""
        names = sorted(self.families)
        if not names:
            raise UsageError("no row of the tables was measured on a host type of this cluster")
        rows = self.families[names[int(rng.integers(len(names)))]]
        return rows[int(rng.integers(len(rows)))]

    def find(self, model: str, batch: float | None) -> str | None:
        """The row of that model (spelling aside) whose batch is nearest; None when the tables have no such model."""
        wanted = _plain(model)
        same = [n for f, names in self.families.items() if _plain(f) == wanted for n in names]
        if not same:
            return next((n for names in self.families.values() for n in names if _plain(n) == wanted), None)
        if batch is None:
            return same[0]
        return min(same, key=lambda n: (abs(np.log((_batch_in(n) or 1.0) / batch)), n))


def _covers(cells: Mapping[tuple[int, int], float], workers: int) -> bool:
    counts = [w for w, _ in cells]
    return bool(counts) and min(counts) <= workers <= max(counts)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _batch_in(name: str) -> float | None:
    """The last number in a row's name, which names its batch in all tables that we know."""
    numbers = re.findall(r"\d+(?:\.\d+)?", name)
    return float(numbers[-1]) if numbers else None


def _repeated(entries: Sequence[TraceJob], count: int | None) -> list[TraceJob]:
    """The first `count` jobs; a trace that has fewer is run again after its end, with new names."""
    if count is None or count <= len(entries):
        return list(entries[:count])
    span = entries[-1].submit_s - entries[0].submit_s
    period = span * len(entries) / max(len(entries) - 1, 1)
    repeated = []
    for number in range(count):
        turn, position = divmod(number, len(entries))
        entry = entries[position]
        name = entry.job_id if turn == 0 else f"{entry.job_id}+{turn}"
        repeated.append(replace(entry, job_id=name, submit_s=entry.submit_s + turn * period))
    return repeated


def _resolve(
    entry: TraceJob, rows: _Rows, options: JobOptions, rng: np.random.Generator, counts: dict[str, int]
) -> SimJob:
    drawn, chance = rows.draw(rng), float(rng.random())  # always drawn, so that one job's fields never shift another's
    row, matched = _row_of(entry, rows)
    if row is None:
        row = drawn
        counts["assigned"] += 1
    most = rows.most(row)
    if not most:
        raise ValueError(f"{row!r} was measured on no host type of this cluster ({', '.join(rows.gpus)})")
    requested = min(entry.requested or 1, most)
    counts["clamped"] += requested != (entry.requested or 1)
    work = _work(entry, row, matched, requested, rows)
    rigid = entry.rigid if entry.rigid is not None else chance < (options.rigid or 0.0)
    low = max(entry.min_workers or 1, rows.least(row))
    high = min(entry.max_workers or most, most, options.max_workers or most)
    return SimJob(
        job=entry.job_id,
        row=row,
        total_work=work,
        requested=requested,
        submit_s=entry.submit_s,
        min_workers=requested if rigid else min(low, high),
        max_workers=requested if rigid else max(low, high),
        rigid=rigid,
        priority=entry.priority,
    )


def _row_of(entry: TraceJob, rows: _Rows) -> tuple[str | None, bool]:
    """(row, whether the trace's work is in that row's unit)."""
    if entry.row is not None:
        if entry.row in rows.truth.rows:
            return entry.row, True
        found = rows.find(entry.row, None)
        if found is None:
            raise ValueError(f"no row {entry.row!r} in the throughput tables")
        return found, True
    if entry.model is None:
        return None, False
    found = rows.find(entry.model, entry.batch)
    return found, found is not None and _same_unit(entry.work_unit, rows.truth.rows[found].unit)


def _same_unit(work: str | None, speed: str) -> bool:
    """Whether work in `work` can be divided by a speed in `speed` ("iterations" by "iterations/s at ...")."""
    if work is None:
        return False
    counted = re.split(r"[/ ]", speed.lower())[0].removeprefix("worker-").rstrip("s")
    return counted == work.lower().rstrip("s")


def _work(entry: TraceJob, row: str, matched: bool, requested: int, rows: _Rows) -> float:
    if entry.total_work is not None and matched:
        return entry.total_work
    if entry.duration_s is None:
        raise ValueError(f"job {entry.job_id!r} has neither a duration nor work in the unit of {row!r}")
    return entry.duration_s * rows.truth.reference_speed(row, requested, rows.median)


def _notes(counts: Mapping[str, int], options: JobOptions, median: str) -> tuple[str, ...]:
    notes = []
    if counts["assigned"]:
        notes.append(f"{counts['assigned']} jobs without a known model got one, drawn with seed {options.seed}")
        notes.append(f"work without a unit of the tables = duration x speed as requested on {median}")
    if counts["clamped"]:
        notes.append(
            f"{counts['clamped']} jobs request more GPUs than were measured or exist: they get the most that is"
        )
    if counts["unrunnable"]:
        notes.append(f"{counts['unrunnable']} jobs left out: they cannot run on this cluster")
    return tuple(notes)
