"""Rows of observations as arrays: the grid of configurations, and which cells of it each job has measured.

Shape suffixes: J jobs, K configurations, N measured cells of a job (padded to the most of any).
Values are natural logarithms of throughput: ratios become differences, and relative error is the loss that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

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


@dataclass(frozen=True, eq=False)
class Grid:
    """The columns of a table: configurations, and what they consist of as arrays. Made by `grid_of`."""

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
        """Column of one worker on the same host type."""
        single = {c.host_type: k for k, c in enumerate(self.configurations) if c.workers == 1}
        return np.array([single[c.host_type] for c in self.configurations], dtype=np.int64)


def grid_of(*parts: Iterable[Configuration]) -> Grid:
    """The grid of every configuration in `parts`, in order, with one worker of each of their host types added.

    The same parts give the same object (of the last few), so that what is computed for a grid is found again.
    """
    return _grid(tuple(dict.fromkeys(c for part in parts for c in part)))


@lru_cache(maxsize=64)
def _grid(configurations: tuple[Configuration, ...]) -> Grid:
    host_types = dict.fromkeys(c.host_type for c in configurations)
    return Grid(tuple(dict.fromkeys((*configurations, *(Configuration(h, 1) for h in host_types)))))


@dataclass(frozen=True)
class Rows:
    """Measured cells of J jobs. `column_JN` is -1 and the rest 0 where a job has fewer than N cells; N >= 1.

    log_JN: ln(throughput); std_JN: its standard deviation (noise and age), > 0 where measured.
    """

    column_JN: IntArray
    log_JN: FloatArray
    std_JN: FloatArray

    @cached_property
    def measured_JN(self) -> BoolArray:
        """Which entries are cells."""
        return self.column_JN >= 0

    @cached_property
    def at_JN(self) -> IntArray:
        """Columns, 0 where there is no cell."""
        return np.maximum(self.column_JN, 0)

    @cached_property
    def pair_JNN(self) -> BoolArray:
        """Which pairs of entries are cells."""
        pair: BoolArray = self.measured_JN[:, :, None] & self.measured_JN[:, None, :]
        return pair

    def take(self, jobs: IntArray) -> Rows:
        """The rows of these jobs."""
        return Rows(self.column_JN[jobs], self.log_JN[jobs], self.std_JN[jobs])

    def shifted(self, factor_J: FloatArray, shift_K: FloatArray) -> Rows:
        """The rows with `factor_J[j] * shift_K[k]` added to ln T where measured."""
        if not factor_J.any():
            return self
        shift_JN = np.where(self.measured_JN, shift_K[self.at_JN] * factor_J[:, None], 0.0)
        return Rows(self.column_JN, self.log_JN + shift_JN, self.std_JN)

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


def observe(jobs: Sequence[Observations], configurations: Iterable[Configuration]) -> tuple[Grid, Rows]:
    """The grid of `configurations` and everything that `jobs` measured, and the jobs' rows on it.

    Cells that are not usable are left out; of two cells of one configuration the later counts.
    """
    grid = grid_of(configurations)
    cells = [pair for job in jobs for pair in job.cells]
    columns = [grid.index.get(configuration, -1) for configuration, _ in cells]
    if -1 in columns:
        grid = grid_of(grid.configurations, (c for (c, _), k in zip(cells, columns, strict=True) if k < 0))
        columns = [grid.index[configuration] for configuration, _ in cells]
    return grid, _padded(jobs, columns, [cell for _, cell in cells])


def _padded(jobs: Sequence[Observations], columns: Sequence[int], cells: Sequence[Cell]) -> Rows:
    """Rows from the cells of all jobs, one after another."""
    job = np.repeat(np.arange(len(jobs)), [len(j.cells) for j in jobs])
    column = np.array(columns, dtype=np.int64)
    throughput = np.array([c.throughput for c in cells], dtype=np.float64)
    keep = np.flatnonzero(np.isfinite(throughput) & (throughput > 0))
    width = int(column.max(initial=0)) + 1
    _, last = np.unique((job[keep] * width + column[keep])[::-1], return_index=True)
    keep = np.sort(keep[keep.size - 1 - last])
    job, column = job[keep], column[keep]
    count_J = np.bincount(job, minlength=len(jobs))
    place = np.arange(job.size) - np.repeat(np.cumsum(count_J) - count_J, count_J)
    shape = (len(jobs), max(1, int(count_J.max(initial=0))))
    column_JN, log_JN, std_JN = np.full(shape, -1, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    column_JN[job, place] = column
    log_JN[job, place] = np.log(throughput[keep])
    std_JN[job, place] = _stds([cells[k] for k in keep.tolist()])
    return Rows(column_JN, log_JN, std_JN)


def cell_std(cell: Cell) -> float:
    """Standard deviation of ln(throughput) of one measured cell."""
    return float(_stds([cell])[0])


def _stds(cells: Sequence[Cell]) -> FloatArray:
    """Standard deviation of ln(throughput) of measured cells: floor, spread over their windows, and age."""
    spread, age_s, count = (
        np.array([getattr(c, name) for c in cells], dtype=np.float64) for name in ("spread", "age_s", "count")
    )
    spread = np.where(np.isfinite(spread) & (spread > 0), spread, 0.0)
    hours = np.where(np.isfinite(age_s) & (age_s > 0), age_s, 0.0) / 3600.0
    std: FloatArray = np.sqrt(NOISE**2 + spread**2 / np.maximum(count, 1.0) + AGEING_PER_HOUR**2 * hours)
    return std
