"""Rows of observations as arrays: the grid of configurations, and which cells of it each job has measured.

Shape suffixes: J jobs, K configurations, N measured cells of a job (padded to the most of any job).
Values are natural logarithms of throughput: ratios become differences, and relative error is the loss that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor.api import FloatArray, Observations

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

NOISE = 0.03
"""Relative standard deviation of a measured cell at the least: repeats on real clusters spread 1-5 %."""

AGEING_PER_HOUR = 0.01
"""Relative standard deviation that an hour adds to a measured cell (random walk): jobs drift, clusters change."""

MAX_LOG = 300.0
"""Logarithms are kept within +-this, so that every exponential is positive and finite."""


@dataclass(frozen=True)
class Grid:
    """The columns of a table: configurations, and what they consist of as arrays."""

    configurations: tuple[Configuration, ...]

    @cached_property
    def index(self) -> dict[Configuration, int]:
        """Column of each configuration."""
        return {c: k for k, c in enumerate(self.configurations)}

    @cached_property
    def host_types(self) -> tuple[str, ...]:
        """Host types in the order of their first column."""
        return tuple(dict.fromkeys(c.host_type for c in self.configurations))

    @cached_property
    def type_K(self) -> IntArray:
        """Index into `host_types` of each column."""
        position = {h: i for i, h in enumerate(self.host_types)}
        return np.array([position[c.host_type] for c in self.configurations], dtype=np.int64)

    @cached_property
    def workers_K(self) -> FloatArray:
        """Workers of each column."""
        return np.array([c.workers for c in self.configurations], dtype=np.float64)

    @cached_property
    def hosts_K(self) -> FloatArray:
        """Hosts spanned by each column."""
        return np.array([c.hosts for c in self.configurations], dtype=np.float64)

    @cached_property
    def single_K(self) -> IntArray:
        """Column of one worker on the same host type; -1 where the grid lacks it."""
        single = {c.host_type: k for k, c in enumerate(self.configurations) if c.workers == 1}
        return np.array([single.get(c.host_type, -1) for c in self.configurations], dtype=np.int64)


def grid_of(*parts: Iterable[Configuration]) -> Grid:
    """The grid of every configuration in `parts`, in order, with one worker of each of their host types added."""
    seen = dict.fromkeys(c for part in parts for c in part)
    seen.update(dict.fromkeys(Configuration(h, 1) for h in dict.fromkeys(c.host_type for c in seen)))
    return Grid(tuple(seen))


@dataclass(frozen=True)
class Rows:
    """Measured cells of J jobs. `column_JN` is -1 and the rest 0 where a job has fewer than N cells.

    log_JN: ln(throughput); std_JN: its standard deviation (noise and age), > 0 where measured.
    """

    column_JN: IntArray
    log_JN: FloatArray
    std_JN: FloatArray

    @cached_property
    def measured_JN(self) -> BoolArray:
        """Which entries are cells."""
        return self.column_JN >= 0

    def take(self, jobs: IntArray) -> Rows:
        """The rows of these jobs."""
        return Rows(self.column_JN[jobs], self.log_JN[jobs], self.std_JN[jobs])

    def dense(self, columns: int) -> tuple[FloatArray, BoolArray]:
        """(log_JK, measured_JK), 0 where not measured."""
        jobs = self.column_JN.shape[0]
        log_JK, measured_JK = np.zeros((jobs, columns)), np.zeros((jobs, columns), dtype=bool)
        j, n = np.nonzero(self.measured_JN)
        log_JK[j, self.column_JN[j, n]] = self.log_JN[j, n]
        measured_JK[j, self.column_JN[j, n]] = True
        return log_JK, measured_JK


def usable(cell: Cell) -> bool:
    """Whether a cell says anything: a finite throughput above zero."""
    return math.isfinite(cell.throughput) and cell.throughput > 0.0


def cell_std(cell: Cell) -> float:
    """Standard deviation of ln(throughput) of a measured cell: floor, spread over its windows, and age."""
    spread = cell.spread if math.isfinite(cell.spread) and cell.spread > 0 else 0.0
    hours = cell.age_s / 3600.0 if math.isfinite(cell.age_s) and cell.age_s > 0 else 0.0
    return math.sqrt(NOISE**2 + spread**2 / max(cell.count, 1) + AGEING_PER_HOUR**2 * hours)


def gather(jobs: Sequence[Observations], grid: Grid) -> Rows:
    """The rows of `jobs` on `grid`. Cells that are not usable, or whose configuration the grid lacks, are left out.

    Of two cells of one configuration the later in the tuple counts. N >= 1, so that no method has to look for it.
    """
    index = grid.index
    found: list[dict[int, tuple[float, float]]] = []
    for job in jobs:
        row: dict[int, tuple[float, float]] = {}
        for configuration, cell in job.cells:
            column = index.get(configuration)
            if column is not None and usable(cell):
                row[column] = (math.log(cell.throughput), cell_std(cell))
        found.append(row)
    most = max((len(r) for r in found), default=1) or 1
    column_JN = np.full((len(jobs), most), -1, dtype=np.int64)
    log_JN, std_JN = np.zeros((len(jobs), most)), np.zeros((len(jobs), most))
    for j, row in enumerate(found):
        if row:
            column_JN[j, : len(row)] = list(row)
            log_JN[j, : len(row)], std_JN[j, : len(row)] = zip(*row.values(), strict=True)
    return Rows(column_JN, log_JN, std_JN)
