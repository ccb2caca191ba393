"""Measured throughput tables: a csv in the shared format -> a frozen table of jobs x configurations.

Columns: `job, gpu_type, workers, throughput` must be there; `model` (the family; the job itself without it), `nodes`,
`placement`, `unit`, `batch_per_gpu`, `global_batch` and `interconnect` are used where present, all others are ignored.

- A cell is (host type, workers, hosts spanned). Several rows of one cell: the median. So the densest placement of a
  count is the cell with the fewest hosts, and placements over more hosts are cells of their own.
- `nodes` empty: from the placement. Digits count GPUs per host ("44" = two hosts); "unconsolidated" or "spread" says
  only that the workers do not share a host, and counts as two.
- The host type is `gpu_type`, with the interconnect added where one GPU type is measured on several kinds of host.
- Every job is brought to work per second that grows with the workers: samples/s where batch sizes allow it (steps/s
  times the global batch, worker-steps/s times the batch of a worker), else the file's unit. Within a job that is one
  factor, so efficiencies and relative errors do not depend on it, except for steps/s of a batch that grows with w.
- A row that cannot be read is skipped and listed with its line number and the reason; a job that did not run there
  (throughput 0) likewise. The rest of the file counts.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from heet_elastic.errors import UsageError
from heet_elastic.model import Cell, Configuration, JobFeatures, Profile
from heet_elastic.predictor.api import FloatArray, Observations

REQUIRED = ("job", "gpu_type", "workers", "throughput")
SPREAD_WORDS = ("unconsolidated", "spread", "scattered")
MAX_WORKERS = 1_000_000

Placements = Mapping[tuple[int, int], tuple[tuple[str, float], ...]]


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """A line of the file (1 = the header) that does not count, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ThroughputTable:
    """Measured throughput of J jobs in K configurations.

    throughput_JK: `units[j]` per second, NaN = not measured. rows_JK: rows of the file behind each cell (0 = none).
    placements: (j, k) -> ((label, throughput), ...) of every row behind a cell, as labelled in the file ("" = none).
    batch_J: samples per worker and step, NaN where it is not one number over the job's rows.
    Configurations are sorted by host type, workers, hosts; jobs are in the order of the file.
    """

    path: str
    jobs: tuple[str, ...]
    families: tuple[str, ...]
    units: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    throughput_JK: FloatArray
    rows_JK: FloatArray
    batch_J: FloatArray
    placements: Placements = field(default_factory=dict)
    skipped: tuple[SkippedRow, ...] = ()

    @property
    def host_types(self) -> tuple[str, ...]:
        """Host types, sorted."""
        return tuple(sorted({c.host_type for c in self.configurations}))

    def features(self, job: int) -> JobFeatures | None:
        """What the file says about the job itself: the batch of a worker."""
        batch = float(self.batch_J[job])
        return JobFeatures(batch_per_worker=batch) if math.isfinite(batch) else None

    def cells(self, job: int, columns: Iterable[int] | None = None) -> tuple[tuple[Configuration, Cell], ...]:
        """The job's measured cells (of these columns), as a predictor takes them."""
        row_K = self.throughput_JK[job]
        wanted = range(len(self.configurations)) if columns is None else columns
        return tuple(
            (self.configurations[k], Cell(float(row_K[k]), seconds=60.0, count=1)) for k in wanted if row_K[k] > 0
        )

    def profile(self, job: int) -> Profile:
        """The job as a past job of a history."""
        return Profile(
            name=self.jobs[job],
            cells=self.cells(job),
            features=self.features(job),
            work_unit="samples",
            family=self.families[job],
        )

    def observations(self, job: int, columns: Iterable[int], *, named: bool = True) -> Observations:
        """The job as a new one with only these columns measured; `named=False` hides its name and family."""
        return Observations(
            job=self.jobs[job],
            name=self.jobs[job] if named else "",
            family=self.families[job] if named else "",
            cells=self.cells(job, columns),
            features=self.features(job),
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What `covered` removed: (name, share of the others that it was measured with)."""

    jobs: tuple[tuple[str, float], ...] = ()
    configurations: tuple[tuple[Configuration, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    job: str
    family: str
    gpu_type: str
    interconnect: str
    workers: int
    hosts: int
    placement: str
    throughput: float
    unit: str
    batch: float


def load_table(path: str | Path, *, file_units: bool = False) -> ThroughputTable:
    """Read a table. UsageError when the file cannot be read, lacks a column, or holds no usable row.

    `file_units`: throughput as it is in the file, so that work given in the file's unit can be divided by it.
    """
    lines, skipped = _read(Path(path))
    rows: list[_Row] = []
    for line, record in lines:
        try:
            rows.append(_parse(record, file_units))
        except ValueError as e:
            skipped.append(SkippedRow(line, str(e)))
    if not rows:
        why = f"; the first: line {skipped[0].line}: {skipped[0].reason}" if skipped else ""
        raise UsageError(f"{path} holds no usable row ({len(skipped)} skipped{why})")
    return _tabulate(str(path), rows, skipped)


def covered(table: ThroughputTable, min_coverage: float) -> tuple[ThroughputTable, LeftOut]:
    """The table without configurations, then jobs, measured with less than this share of the others; until stable.

    UsageError when nothing remains: no method can be judged on such a table.
    """
    known_JK = np.isfinite(table.throughput_JK)
    jobs, columns = np.ones(known_JK.shape[0], dtype=bool), np.ones(known_JK.shape[1], dtype=bool)
    out_jobs: list[tuple[str, float]] = []
    out_columns: list[tuple[Configuration, float]] = []
    while True:
        share_K = known_JK[jobs].mean(axis=0) if jobs.any() else np.zeros(columns.size)
        drop_K = columns & (share_K < min_coverage)
        out_columns += [(table.configurations[k], float(share_K[k])) for k in np.flatnonzero(drop_K)]
        columns &= ~drop_K
        share_J = known_JK[:, columns].mean(axis=1) if columns.any() else np.zeros(jobs.size)
        drop_J = jobs & (share_J < min_coverage)
        out_jobs += [(table.jobs[j], float(share_J[j])) for j in np.flatnonzero(drop_J)]
        jobs &= ~drop_J
        if not (jobs.any() and columns.any()):
            raise UsageError(
                f"{table.path}: no configuration is measured for {min_coverage:.0%} of the jobs; "
                "give a smaller --min-coverage"
            )
        if not (drop_K.any() or drop_J.any()):
            break
    return select(table, np.flatnonzero(jobs).tolist(), np.flatnonzero(columns).tolist()), LeftOut(
        tuple(out_jobs), tuple(out_columns)
    )


def select(table: ThroughputTable, jobs: Iterable[int], columns: Iterable[int]) -> ThroughputTable:
    """The table of these jobs and columns, in this order."""
    at_j, at_k = list(jobs), list(columns)
    new_j, new_k = {j: i for i, j in enumerate(at_j)}, {k: i for i, k in enumerate(at_k)}
    return replace(
        table,
        jobs=tuple(table.jobs[j] for j in at_j),
        families=tuple(table.families[j] for j in at_j),
        units=tuple(table.units[j] for j in at_j),
        configurations=tuple(table.configurations[k] for k in at_k),
        throughput_JK=table.throughput_JK[np.ix_(at_j, at_k)],
        rows_JK=table.rows_JK[np.ix_(at_j, at_k)],
        batch_J=table.batch_J[at_j],
        placements={(new_j[j], new_k[k]): v for (j, k), v in table.placements.items() if j in new_j and k in new_k},
    )


def _read(path: Path) -> tuple[list[tuple[int, dict[str, str]]], list[SkippedRow]]:
    """(numbered records, rows already known to be bad)."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}; give a csv file of throughputs") from e
    reader = csv.reader(text.splitlines())
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in REQUIRED if name not in header]
        if missing:
            raise UsageError(
                f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}: "
                f"expected at least {', '.join(REQUIRED)} in its first line"
            )
        records, skipped = [], []
        for values in reader:
            if not any(v.strip() for v in values):
                continue
            if len(values) != len(header):
                skipped.append(SkippedRow(reader.line_num, f"{len(values)} fields, the header has {len(header)}"))
                continue
            records.append((reader.line_num, dict(zip(header, (v.strip() for v in values), strict=True))))
    except csv.Error as e:
        raise UsageError(f"{path}, line {reader.line_num}: {e}") from e
    return records, skipped


def _number(record: dict[str, str], column: str) -> float:
    text = record.get(column, "")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column} is {text!r}: expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {text!r}: expected a finite number")
    return value


def _whole(record: dict[str, str], column: str) -> int:
    value = _number(record, column)
    if value != int(value) or not 1 <= value <= MAX_WORKERS:
        raise ValueError(f"{column} is {record[column]!r}: expected a whole number from 1 to {MAX_WORKERS}")
    return int(value)


def _hosts(record: dict[str, str], workers: int) -> int:
    """Hosts spanned: `nodes`, else what the placement says, else one."""
    placement = record.get("placement", "").lower()
    if record.get("nodes"):
        hosts = _whole(record, "nodes")
    elif re.fullmatch(r"[1-9]+(\.0*)?", placement):
        hosts = len(placement.split(".")[0])
    else:
        hosts = 2 if any(word in placement for word in SPREAD_WORDS) and workers > 1 else 1
    if hosts > workers:
        raise ValueError(f"{workers} workers cannot span {hosts} nodes")
    return hosts


def _parse(record: dict[str, str], file_units: bool) -> _Row:
    """One row; ValueError with the reason when it does not count."""
    if not record["job"] or not record["gpu_type"]:
        raise ValueError(f"{'job' if not record['job'] else 'gpu_type'} is empty")
    workers = _whole(record, "workers")
    throughput = _number(record, "throughput")
    if throughput <= 0:
        raise ValueError(f"throughput is {record['throughput']!r}: did not run")
    work, unit = (throughput, record.get("unit") or "work/s") if file_units else _per_second(record, throughput)
    return _Row(
        job=record["job"],
        family=record.get("model") or record["job"],
        gpu_type=record["gpu_type"],
        interconnect=record.get("interconnect", ""),
        workers=workers,
        hosts=_hosts(record, workers),
        placement=record.get("placement", ""),
        throughput=work,
        unit=unit,
        batch=_batch(record, "batch_per_gpu"),
    )


def _batch(record: dict[str, str], column: str) -> float:
    """A batch size, NaN where the file does not give one positive number."""
    try:
        value = _number(record, column)
    except ValueError:
        return math.nan
    return value if value > 0 else math.nan


def _per_second(record: dict[str, str], throughput: float) -> tuple[float, str]:
    """(throughput, unit) with steps turned into samples where the batch is known."""
    unit = record.get("unit", "") or "work/s"
    if not re.search(r"\b(steps?|iterations?|iters?|batches)\b", unit.lower()):
        return throughput, unit
    batch = _batch(record, "batch_per_gpu" if "worker-step" in unit.lower() else "global_batch")
    return (throughput * batch, "samples/s") if math.isfinite(batch) else (throughput, unit)


def _host_type_names(rows: Sequence[_Row]) -> dict[tuple[str, str], str]:
    """(GPU type, interconnect) -> host type. The interconnect tells kinds of host apart only where it varies on one."""
    inside: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.hosts == 1:
            inside[row.gpu_type].add(row.interconnect)
    return {
        (r.gpu_type, r.interconnect): (
            f"{r.gpu_type} {r.interconnect}".strip() if len(inside[r.gpu_type]) > 1 else r.gpu_type
        )
        for r in rows
    }


def _tabulate(path: str, rows: Sequence[_Row], skipped: list[SkippedRow]) -> ThroughputTable:
    host_types = _host_type_names(rows)
    units = _common_units(rows)
    by_cell: dict[tuple[str, Configuration], list[_Row]] = defaultdict(list)
    odd = Counter[str]()
    for row in rows:
        if row.unit != units[row.job]:
            odd[row.job] += 1
            continue
        by_cell[row.job, Configuration(host_types[row.gpu_type, row.interconnect], row.workers, row.hosts)].append(row)
    skipped += [SkippedRow(0, f"{n} rows of {job!r} are not in its usual {units[job]}") for job, n in odd.items()]
    jobs = tuple(dict.fromkeys(row.job for row in rows))
    configurations = tuple(sorted({c for _, c in by_cell}))
    job_index, column = {n: j for j, n in enumerate(jobs)}, {c: k for k, c in enumerate(configurations)}
    throughput_JK, rows_JK = (
        np.full((len(jobs), len(configurations)), np.nan),
        np.zeros((len(jobs), len(configurations))),
    )
    placements = {}
    for (job, configuration), group in by_cell.items():
        at = job_index[job], column[configuration]
        throughput_JK[at] = statistics.median(r.throughput for r in group)
        rows_JK[at] = len(group)
        placements[at] = tuple((r.placement, r.throughput) for r in group)
    family = {r.job: r.family for r in reversed(rows)}
    return ThroughputTable(
        path=path,
        jobs=jobs,
        families=tuple(family[j] for j in jobs),
        units=tuple(units[j] for j in jobs),
        configurations=configurations,
        throughput_JK=throughput_JK,
        rows_JK=rows_JK,
        batch_J=_common_batches(rows, jobs),
        placements=placements,
        skipped=tuple(sorted(skipped, key=lambda s: s.line)),
    )


def _common_units(rows: Sequence[_Row]) -> dict[str, str]:
    """The unit of each job: that of most of its rows."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        counts[row.job][row.unit] += 1
    return {job: max(sorted(c), key=lambda unit: c[unit]) for job, c in counts.items()}


def _common_batches(rows: Sequence[_Row], jobs: Sequence[str]) -> FloatArray:
    found: dict[str, set[float]] = defaultdict(set)
    for row in rows:
        found[row.job].add(row.batch)
    return np.array([next(iter(found[j])) if len(found[j]) == 1 else math.nan for j in jobs])
