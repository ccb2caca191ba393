"""Traces as people have them: rows of jobs, read from own files and from published job lists.

A reader yields (line, fields) for each row; `_job` checks it. A bad row is a line number and a reason; a row that is no
training job of ours (no GPU, never ran) is left out and counted by reason. Formats are told apart by their header or by
the shape of the file (`formats.py`), never by its name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heet_elastic.errors import UsageError
from heet_elastic.simulator.formats import LeftOut, open_rows

MAX_SHOWN = 5
"""Bad rows that an error names one by one."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A row of a trace. None = the trace does not say.

    `row` names a table row; `model` and `batch` are what other traces give instead. `requested` is in GPUs.
    """

    line: int
    job_id: str
    submit_s: float
    requested: int | None = None
    duration_s: float | None = None
    row: str | None = None
    model: str | None = None
    batch: float | None = None
    total_work: float | None = None
    work_unit: str | None = None
    priority: float = 1.0
    rigid: bool | None = None
    min_workers: int | None = None
    max_workers: int | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a file by submission, and what was not taken."""

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    bad: tuple[BadRow, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


def read_trace(path: Path, skip_bad: bool = False) -> Trace:
    """The jobs of `path`. UsageError for an unreadable file, an unknown format, or bad rows unless `skip_bad`."""
    format_name, rows = open_rows(path)
    trace = _collect(path.name, format_name, rows)
    if trace.bad and not skip_bad:
        shown = "; ".join(f"line {b.line}: {b.reason}" for b in trace.bad[:MAX_SHOWN])
        more = f"; and {len(trace.bad) - MAX_SHOWN} more" if len(trace.bad) > MAX_SHOWN else ""
        raise UsageError(
            f"{path}: {len(trace.bad)} bad rows ({shown}{more}); mend them, or leave them out with --skip-bad"
        )
    if not trace.jobs:
        raise UsageError(f"{path}: no job to run in this trace ({_why_empty(trace)})")
    return trace


def _why_empty(trace: Trace) -> str:
    reasons = [f"{n} left out: {reason}" for reason, n in trace.left_out.items()]
    if trace.bad:
        reasons.append(f"{len(trace.bad)} bad rows, the first at line {trace.bad[0].line}: {trace.bad[0].reason}")
    return "; ".join(reasons) or "it has no rows"


def _collect(name: str, format_name: str, rows: Iterable[tuple[int, Mapping[str, Any] | LeftOut | str]]) -> Trace:
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    left_out: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for line, fields in rows:
        if isinstance(fields, str):
            bad.append(BadRow(line, fields))
            continue
        if isinstance(fields, LeftOut):
            left_out[fields.reason] += 1
            continue
        try:
            job = _job(line, fields)
        except ValueError as e:
            bad.append(BadRow(line, str(e)))
            continue
        seen[job.job_id] += 1
        if seen[job.job_id] > 1:
            bad.append(BadRow(line, f"job id {job.job_id!r} occurs twice"))
            continue
        jobs.append(job)
    jobs.sort(key=lambda j: (j.submit_s, j.line))
    return Trace(name, format_name, tuple(jobs), tuple(bad), dict(left_out))


def _job(line: int, fields: Mapping[str, Any]) -> TraceJob:
    """A TraceJob from the canonical names that readers use. ValueError names the column."""
    return TraceJob(
        line=line,
        job_id=str(fields.get("job_id") or f"job-{line:06d}"),
        submit_s=_number(fields, "submit_time_s", least=-math.inf),
        requested=_count(fields, "requested"),
        duration_s=_optional(fields, "duration_s", above=0.0),
        row=_text(fields, "row"),
        model=_text(fields, "model"),
        batch=_optional(fields, "batch", above=0.0),
        total_work=_optional(fields, "total_work", above=0.0),
        work_unit=_text(fields, "work_unit"),
        priority=_optional(fields, "priority", above=0.0) or 1.0,
        rigid=_flag(fields, "rigid"),
        min_workers=_count(fields, "min_workers"),
        max_workers=_count(fields, "max_workers"),
    )


def _present(fields: Mapping[str, Any], name: str) -> Any | None:
    value = fields.get(name)
    return None if value is None or (isinstance(value, str) and not value.strip()) else value


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = _present(fields, name)
    return None if value is None else str(value).strip()


def _number(fields: Mapping[str, Any], name: str, least: float = 0.0) -> float:
    value = _present(fields, name)
    if value is None:
        raise ValueError(f"{name} is missing")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}: expected a number") from None
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{name} is {value}: expected a finite number{'' if least == -math.inf else f' >= {least:g}'}")
    return number


def _optional(fields: Mapping[str, Any], name: str, above: float) -> float | None:
    if _present(fields, name) is None:
        return None
    number = _number(fields, name)
    if number <= above:
        raise ValueError(f"{name} is {fields[name]}: expected a number > {above:g}")
    return number


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    number = _optional(fields, name, above=0.0)
    if number is None:
        return None
    if number != int(number):
        raise ValueError(f"{name} is {fields[name]}: expected a whole number")
    return int(number)


def _flag(fields: Mapping[str, Any], name: str) -> bool | None:
    value = _text(fields, name)
    if value is None:
        return None
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if value.lower() not in known:
        raise ValueError(f"{name} is {value!r}: expected true or false")
    return known[value.lower()]


def iter_formats() -> Iterator[str]:
    """Names of the formats that `read_trace` knows, for help texts."""
    from heet_elastic.simulator.formats import FORMATS

    return iter(FORMATS)
