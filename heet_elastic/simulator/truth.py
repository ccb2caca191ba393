"""True speeds: what a simulated job really does on a placement, from measured tables.

A table row ("kind" of job) has cells (host type, workers, hosts spanned). Counts between two measured ones are
interpolated in logs: ln T is linear in ln w. Nothing is extrapolated: beyond the measured counts, and on a host type on
which the row was never measured, the speed is 0 = cannot run there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heet_elastic.predictor.gpus import prior_speed

Cells = dict[tuple[int, int], float]
"""(workers, hosts spanned) -> speed, of one row on one host type."""


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of job: its name in the table, model family, unit of `speed`, and cells by host type."""

    name: str
    family: str
    unit: str
    cells: Mapping[str, Cells]


class Truth:
    """The rows of one or several tables, with look-up between measured counts. Immutable but for its cache."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: dict[str, Row] = {row.name: row for row in sorted(rows, key=lambda r: r.name)}
        names = {t for row in self.rows.values() for t in row.cells}
        self.types: tuple[str, ...] = tuple(sorted(names))
        self._cache: dict[tuple[str, str, int, int], float] = {}

    def speed(self, row: str, host_type: str, workers: int, hosts: int) -> float:
        """Work units per second of `row` with `workers` on `hosts` hosts of one type; 0 = cannot run there."""
        key = (row, host_type, workers, hosts)
        known = self._cache.get(key)
        if known is None:
            cells = self.rows[row].cells.get(host_type)
            known = self._cache[key] = 0.0 if cells is None else _speed(cells, workers, hosts)
        return known

    def mixed_speed(self, row: str, workers_by_type: Mapping[str, int], hosts: int) -> float:
        """Speed over several host types at once: every worker at the pace of the slowest type (synchronous steps)."""
        total = sum(workers_by_type.values())
        return min((self.speed(row, t, total, hosts) for t in workers_by_type), default=0.0)

    def unit_speed(self, row: str, host_type: str) -> float:
        """Speed per worker at the smallest measured count (one worker, where that was measured); 0 = never measured."""
        smallest = min((w for w, _ in self.rows[row].cells.get(host_type, {})), default=0)
        return self.speed(row, host_type, smallest, 1) / smallest if smallest else 0.0

    def largest(self, row: str, host_type: str) -> int:
        """Largest measured worker count; 0 = never measured there."""
        return max((w for w, _ in self.rows[row].cells.get(host_type, {})), default=0)

    def dense_curve(self, row: str, host_type: str, gpus_per_host: int, most: int) -> NDArray[np.float64]:
        """Speeds of 1..most workers in the fewest hosts of `gpus_per_host`; entry w-1 belongs to w workers."""
        spans = (-(-w // gpus_per_host) for w in range(1, most + 1))
        return np.array([self.speed(row, host_type, w, n) for w, n in enumerate(spans, start=1)])

    def median_type(self) -> str:
        """The host type in the middle of the table's types by speed of one worker; of two in the middle the slower one.

        It is where a trace without work is taken to have run. Speeds are compared by least squares over
        ln T = row + type, so that a type measured with few rows is not judged by which rows those are; every family has
        the same weight, however many batch sizes of it were measured. Equal types are ordered by datasheet.
        """
        sizes = Counter(row.family for row in self.rows.values())
        weights = [1.0 / math.sqrt(sizes[row.family]) for row in self.rows.values()]
        logs = [
            (r, h, weights[r], weights[r] * math.log(speed))
            for r, row in enumerate(self.rows)
            for h, t in enumerate(self.types)
            if (speed := self.speed(row, t, 1, 1)) > 0
        ]
        design = np.zeros((len(logs) + 1, len(self.rows) + len(self.types)))
        for i, (r, h, weight, _) in enumerate(logs):
            design[i, r] = design[i, len(self.rows) + h] = weight
        design[-1, len(self.rows) :] = 1.0  # fixes the free constant
        effects = np.linalg.lstsq(design, np.array([v for *_, v in logs] + [0.0]), rcond=None)[0][len(self.rows) :]
        order = sorted(range(len(self.types)), key=lambda h: (round(effects[h], 9), prior_speed(self.types[h])))
        return self.types[order[(len(order) - 1) // 2]]

    def reference_speed(self, row: str, workers: int, median_type: str) -> float:
        """Speed at `workers` on the median type, or on the row's own middle type where it was not measured there.

        A count outside the measured range is moved to the nearest measured one.
        """
        cells = self.rows[row].cells
        if median_type not in cells:
            order = sorted(cells, key=lambda t: (self._clamped(row, t, workers), t))
            median_type = order[(len(order) - 1) // 2]
        return self._clamped(row, median_type, workers)

    def _clamped(self, row: str, host_type: str, workers: int) -> float:
        cells = self.rows[row].cells[host_type]
        counts = [w for w, _ in cells]
        count = min(max(workers, min(counts)), max(counts))
        return self.speed(row, host_type, count, min(n for w, n in cells if w == _next_measured(counts, count)))


def _next_measured(counts: Sequence[int], workers: int) -> int:
    return min(c for c in counts if c >= workers)


def _speed(cells: Cells, workers: int, hosts: int) -> float:
    exact = cells.get((workers, hosts))
    if exact is not None:
        return exact
    on_these = {w: s for (w, n), s in cells.items() if n == hosts}
    between = _interpolate(on_these, workers)
    if between is not None:
        return between
    fewest: dict[int, int] = {}
    for w, n in cells:
        fewest[w] = min(n, fewest.get(w, n))
    dense = _interpolate({w: cells[w, n] for w, n in fewest.items()}, workers)
    if dense is None:
        return 0.0
    if hosts <= fewest[_next_measured(tuple(fewest), workers)]:
        return dense
    spread = _nearest_spread(cells, fewest, workers, hosts)
    return dense if spread is None else spread


def _nearest_spread(cells: Cells, fewest: Mapping[int, int], workers: int, hosts: int) -> float | None:
    """Speed over the measured number of hosts nearest to `hosts` among the spread placements that cover `workers`."""
    by_hosts: dict[int, dict[int, float]] = {}
    for (w, n), s in cells.items():
        if n > fewest[w]:
            by_hosts.setdefault(n, {})[w] = s
    for n in sorted(by_hosts, key=lambda n: (abs(n - hosts), n)):
        value = _interpolate(by_hosts[n], workers)
        if value is not None:
            return value
    return None


def _interpolate(curve: Mapping[int, float], workers: int) -> float | None:
    """ln-ln interpolation between the measured neighbours of `workers`; None outside the measured range."""
    if workers in curve:
        return curve[workers]
    below = max((w for w in curve if w < workers), default=None)
    above = min((w for w in curve if w > workers), default=None)
    if below is None or above is None:
        return None
    share = (math.log(workers) - math.log(below)) / (math.log(above) - math.log(below))
    return math.exp((1 - share) * math.log(curve[below]) + share * math.log(curve[above]))
