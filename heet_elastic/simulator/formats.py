"""File formats of traces, each turned into rows of one set of column names.

Own (`job,total_work,requested,submit_time_s`); the tables of measured traces (`submit_time_s,gpus,duration_s,...`);
Gavel's tab-separated `.trace`; Philly's `cluster_job_log`; Helios' `cluster_log.csv`; Alibaba's `pai_task_table.csv`
(2020, published without a header) and `openb_pod_list_*.csv` (2023). Plain, gzip and tar.gz files alike.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heet_elastic.errors import UsageError


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is well-formed but no job for this simulator."""

    reason: str


Fields = Mapping[str, Any] | LeftOut | str
"""Columns of a row, a reason to leave it out, or what is wrong with it."""
Rows = Iterator[tuple[int, Fields]]

NO_GPU = LeftOut("asks for no GPU")
NEVER_RAN = LeftOut("never ran")
UNFINISHED = LeftOut("had not ended when the trace was taken")
PART_OF_A_GPU = LeftOut("asks for less than one GPU")

PAI_TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time",
    "plan_cpu", "plan_mem", "plan_gpu", "gpu_type",
)  # fmt: skip
"""Columns of pai_task_table.csv, whose header is published as a file of its own."""

TRACE_MEMBERS = ("cluster_job_log", "cluster_log.csv", "pai_task_table.csv")
"""Files that are looked for in an archive; a single file in it is taken whatever its name."""


def open_rows(path: Path) -> tuple[str, Rows]:
    """The format's name and the rows of the file, with line numbers. UsageError when it is unreadable or unknown."""
    try:
        text = _read_text(path)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text file: expected a trace as CSV, JSON or Gavel's .trace") from None
    except (OSError, tarfile.TarError, EOFError, gzip.BadGzipFile) as e:
        raise UsageError(f"cannot read the trace {path}: {getattr(e, 'strerror', None) or e}") from e
    head = text.lstrip()[:1]
    if not head:
        raise UsageError(f"{path} is empty: expected a trace")
    if head in "[{":
        return "philly", _philly(path, text)
    first_line = text.lstrip("\ufeff").split("\n", 1)[0]
    if first_line.count("\t") >= 8:
        return "gavel", _gavel(text)
    for name, (needed, reader) in FORMATS.items():
        if needed <= {c.strip() for c in first_line.split(",")}:
            return name, reader(text)
    if len(first_line.split(",")) == len(PAI_TASK_COLUMNS):
        return "alibaba-2020", _pai(",".join(PAI_TASK_COLUMNS) + "\n" + text, first_line=0)
    raise UsageError(
        f"{path}: no known trace (its first line is {first_line[:80]!r}); known are "
        f"{', '.join(FORMATS)}, philly and gavel. A trace of your own needs the columns {','.join(sorted(OWN))}"
    )


def _read_text(path: Path) -> str:
    with path.open("rb") as f:
        magic = f.read(2)
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            files = [m for m in archive if m.isfile()]
            chosen = next(
                (m for m in files if Path(m.name).name in TRACE_MEMBERS), files[0] if len(files) == 1 else None
            )
            member = archive.extractfile(chosen) if chosen else None
            if member is None:
                raise UsageError(f"{path}: none of {', '.join(TRACE_MEMBERS)} is in this archive")
            return member.read().decode("utf-8-sig")
    if magic == b"\x1f\x8b":
        with gzip.open(path, "rt", encoding="utf-8-sig") as g:
            return g.read()
    return path.read_text(encoding="utf-8-sig")


def _csv(text: str, first_line: int = 1) -> Iterator[tuple[int, dict[str, str] | str]]:
    """Rows as dicts with their line number (the header is line `first_line`)."""
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, restkey="")
    width = len(reader.fieldnames or ())
    for row in reader:
        line = reader.line_num - 1 + first_line
        if "" in row or None in row.values():
            yield line, f"expected {width} columns"
        else:
            yield line, {k.strip(): v for k, v in row.items()}


def _renamed(names: Mapping[str, str]) -> Callable[[str], Rows]:
    def read(text: str) -> Rows:
        for line, row in _csv(text):
            if isinstance(row, str):
                yield line, row
            else:
                yield line, {new: row[old] for old, new in names.items() if row.get(old)}

    return read


OWN = frozenset({"job", "total_work", "requested", "submit_time_s"})
_own = _renamed(
    {
        "id": "job_id", "job": "row", "total_work": "total_work", "requested": "requested",
        "submit_time_s": "submit_time_s", "priority": "priority", "rigid": "rigid", "min_workers": "min_workers",
        "max_workers": "max_workers",
    }
)  # fmt: skip
_measured = _renamed(
    {
        "job_id": "job_id", "submit_time_s": "submit_time_s", "gpus": "requested", "duration_s": "duration_s",
        "model": "model", "batch_size": "batch", "total_work": "total_work", "work_unit": "work_unit",
    }
)  # fmt: skip


def _seconds(text: str) -> float | None:
    """Seconds of a number or of "YYYY-MM-DD HH:MM:SS" (zone aside, it is the same for all); None = not given."""
    text = text.strip()
    if text in {"", "None", "nan", "NaN"}:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    match = re.match(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return datetime.fromisoformat(match[0]).replace(tzinfo=UTC).timestamp()


def _helios(text: str) -> Rows:
    for line, row in _csv(text):
        if isinstance(row, str):
            yield line, row
            continue
        try:
            submit, gpus = _seconds(row["submit_time"]), int(float(row["gpu_num"]))
            duration = float(row["duration"])
        except ValueError as e:
            yield line, str(e)
            continue
        if gpus == 0:
            yield line, NO_GPU
        elif duration == 0:
            yield line, NEVER_RAN
        else:
            job = {"job_id": row["job_id"], "submit_time_s": submit, "requested": gpus, "duration_s": duration}
            yield line, job


def _openb(text: str) -> Rows:
    for line, row in _csv(text):
        if isinstance(row, str):
            yield line, row
            continue
        try:
            submit, start, end = (_seconds(row[c]) for c in ("creation_time", "scheduled_time", "deletion_time"))
            gpus = int(float(row["num_gpu"]))
        except ValueError as e:
            yield line, str(e)
            continue
        if gpus == 0:
            yield line, NO_GPU
        elif start is None:
            yield line, NEVER_RAN
        elif end is None:
            yield line, UNFINISHED
        elif gpus == 1 and float(row["gpu_milli"] or 1000) < 1000:
            yield line, PART_OF_A_GPU
        else:
            job = {
                "job_id": row["name"],
                "submit_time_s": submit,
                "requested": gpus,
                "duration_s": max(end - start, 1.0),
            }
            yield line, job


def _pai(text: str, first_line: int = 1) -> Rows:
    """Tasks of Alibaba's 2020 list, one job each: GPUs = instances x plan_gpu / 100, rounded up to whole GPUs a worker.

    A job's several GPU tasks (roles) stay jobs of their own, named job/task.
    """
    seen: dict[str, int] = {}
    for line, row in _csv(text, first_line):
        if isinstance(row, str):
            yield line, row
            continue
        try:
            start, end = _seconds(row["start_time"]), _seconds(row["end_time"])
            share, instances = float(row["plan_gpu"] or 0), int(float(row["inst_num"] or 1))
        except ValueError as e:
            yield line, str(e)
            continue
        if share == 0:
            yield line, NO_GPU
        elif start is None or start == 0:
            yield line, NEVER_RAN
        elif end is None or end == 0 or row["status"] in {"Running", "Waiting"}:
            yield line, UNFINISHED
        elif share < 100 and instances == 1:
            yield line, PART_OF_A_GPU
        else:
            name = f"{row['job_name']}/{row['task_name']}"
            seen[name] = seen.get(name, 0) + 1
            gpus = max(1, instances * -(-int(share) // 100))
            job_id = name if seen[name] == 1 else f"{name}/{seen[name]}"
            yield (
                line,
                {"job_id": job_id, "submit_time_s": start, "requested": gpus, "duration_s": max(end - start, 1.0)},
            )


def _philly(path: Path, text: str) -> Rows:
    """Jobs of Philly's list; the "line" is the entry's position. GPUs of the first attempt, time of all of them."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UsageError(f"{path} is not JSON: {e}") from e
    if not isinstance(entries, list):
        raise UsageError(f"{path}: expected a list of jobs as in Philly's cluster_job_log")
    for number, entry in enumerate(entries, start=1):
        try:
            yield number, _philly_job(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            yield number, f"entry {number} is no job: {type(e).__name__} {e}"


def _philly_job(entry: Mapping[str, Any]) -> Fields:
    attempts = [a for a in entry["attempts"] if _seconds(str(a.get("start_time"))) is not None]
    if not attempts:
        return NEVER_RAN
    spans = [(_seconds(str(a["start_time"])), _seconds(str(a.get("end_time")))) for a in attempts]
    if spans[-1][1] is None:
        return UNFINISHED
    gpus = sum(len(d["gpus"]) for d in attempts[0]["detail"])
    if gpus == 0:
        return NO_GPU
    duration = sum(end - start for start, end in spans if start is not None and end is not None)
    if duration <= 0:
        return NEVER_RAN
    submit = _seconds(str(entry["submitted_time"]))
    return {"job_id": entry["jobid"], "submit_time_s": submit, "requested": gpus, "duration_s": duration}


def _gavel(text: str) -> Rows:
    """Gavel's lines: job type, command, ..., total steps, scale factor, priority weight, SLO, arrival time."""
    for line, cells in enumerate((t.split("\t") for t in text.splitlines()), start=1):
        if len(cells) < 9:
            yield line, f"expected at least 9 tab-separated fields, found {len(cells)}"
            continue
        steps, scale, priority, _slo, arrival = cells[-5:]
        yield line, {
            "row": re.sub(r" \(scale factor \d+\)$", "", cells[0]),
            "total_work": steps, "requested": scale, "priority": priority, "submit_time_s": arrival,
            "work_unit": "steps",
        }  # fmt: skip


FORMATS: Mapping[str, tuple[frozenset[str], Callable[[str], Rows]]] = {
    "own": (OWN, _own),
    "measured": (frozenset({"submit_time_s", "gpus"}), _measured),
    "helios": (frozenset({"gpu_num", "submit_time", "duration"}), _helios),
    "alibaba-2023": (frozenset({"num_gpu", "creation_time", "deletion_time"}), _openb),
    "alibaba-2020": (frozenset({"plan_gpu", "inst_num"}), _pai),
}
"""Comma-separated formats by the columns that tell them apart, in the order in which they are tried."""
