"""True tables from files: csv in the shared format, or Gavel's throughput JSON as it is published."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from heet_elastic.errors import UsageError
from heet_elastic.predictor.tables import load_table
from heet_elastic.simulator.truth import Cells, Row, Truth

_GAVEL_KEY = re.compile(r"^\('(?P<job>.*)', (?P<workers>\d+)\)$")
DID_NOT_RUN = "did not run"
"""How the table reader ends its reason for a row of throughput 0, which is a finding and no fault."""


def load_truth(paths: Sequence[Path], skip_bad: bool = False) -> tuple[Truth, tuple[str, ...]]:
    """The rows of all files together, and sentences about skipped rows. Speeds stay in the file's own unit.

    Rows of one name in two files are one row, measured on the host types of both; units must then agree.
    Raises UsageError for unreadable files, bad rows unless `skip_bad`, and units that differ.
    """
    rows: dict[str, Row] = {}
    notes: list[str] = []
    for path in paths:
        found = _gavel_rows(path) if path.suffix == ".json" else _csv_rows(path, skip_bad, notes)
        for row in found:
            rows[row.name] = _merged(rows[row.name], row, path) if row.name in rows else row
    return Truth(rows.values()), tuple(notes)


def _csv_rows(path: Path, skip_bad: bool, notes: list[str]) -> list[Row]:
    table = load_table(path, file_units=True)
    bad = [s for s in table.skipped if not s.reason.endswith(DID_NOT_RUN)]
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise UsageError(f"{path}, line {bad[0].line}: {bad[0].reason}{more}; mend the table, or use --skip-bad")
    if bad:
        notes.append(f"{path.name}: {len(bad)} bad rows left out, the first at line {bad[0].line}: {bad[0].reason}")
    rows = []
    for j, name in enumerate(table.jobs):
        cells: dict[str, Cells] = {}
        for k in np.flatnonzero(np.isfinite(table.throughput_JK[j])):
            c = table.configurations[k]
            cells.setdefault(c.host_type, {})[c.workers, c.hosts] = float(table.throughput_JK[j, k])
        rows.append(Row(name, table.families[j], table.units[j], cells))
    return rows


def _merged(one: Row, two: Row, path: Path) -> Row:
    if one.unit != two.unit:
        raise UsageError(
            f"{path}: {two.name!r} is in {two.unit} here and in {one.unit} in another table; name them apart"
        )
    cells = {t: dict(c) for t, c in one.cells.items()}
    for host_type, more in two.cells.items():
        cells.setdefault(host_type, {}).update(more)
    return Row(one.name, one.family, one.unit, cells)


def _gavel_rows(path: Path) -> list[Row]:
    """{type: {"('job', workers)": {"null": steps/s, other: [..]}}}; types ending in _unconsolidated span two hosts."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells: dict[str, dict[str, Cells]] = {}
        for worker_type, jobs in data.items():
            name, spread, _ = worker_type.partition("_unconsolidated")
            for key, speeds in jobs.items():
                match = _GAVEL_KEY.match(key)
                if match is None:
                    raise ValueError(f"{key!r} is no (job, workers)")
                workers, speed = int(match["workers"]), float(speeds["null"])
                if speed > 0 and not (spread and workers == 1):
                    hosts = 2 if spread else 1
                    cells.setdefault(match["job"], {}).setdefault(name.upper(), {})[workers, hosts] = speed
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}; give a file of throughputs") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UsageError(f"{path} is no throughput JSON of Gavel's: {type(e).__name__} {e}") from e
    family = re.compile(r" \(batch size \d+\)$")
    return [Row(job, family.sub("", job), "steps/s", by_type) for job, by_type in cells.items()]
