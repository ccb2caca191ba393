"""The last step of every method: from a posterior in logarithms to a Completion that keeps the contract's promises."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heet_elastic.model import Configuration
from heet_elastic.predictor.api import Completion, FloatArray, Source
from heet_elastic.predictor.rows import MAX_LOG, Grid, Rows

SUPERLINEAR_CAP = 1.25
"""Predictions are at most this times w x T(1). Tables hold up to 1.57 measured, by faults of the measurement."""

INTERVAL_80 = 1.2815515655446004
"""exp(+- this x log_std) around a prediction holds 80 % of a log-normal."""


def sources(grid: Grid, rows: Rows, elsewhere: Source = Source.PRIOR) -> NDArray[np.int8]:
    """Where each cell comes from: measured; modelled where the job has a cell of that host type; else `elsewhere`."""
    _, measured_JK = rows.dense(len(grid.configurations))
    type_KH = grid.type_K[:, None] == np.arange(len(grid.host_types))[None, :]
    seen_JK = (measured_JK.astype(np.float64) @ type_KH > 0)[:, grid.type_K]
    out: NDArray[np.int8] = np.where(
        measured_JK, int(Source.MEASURED), np.where(seen_JK, int(Source.MODEL), int(elsewhere))
    ).astype(np.int8)
    return out


def cap(log_JK: FloatArray, grid: Grid) -> FloatArray:
    """`log_JK` with no cell above `SUPERLINEAR_CAP` x w x T(1) on its host type, and within +-MAX_LOG."""
    most_JK = (
        log_JK[:, grid.single_K] + np.log(grid.workers_K) + np.where(grid.workers_K > 1, np.log(SUPERLINEAR_CAP), 0.0)
    )
    return np.clip(np.minimum(log_JK, most_JK), -MAX_LOG, MAX_LOG)


def complete(
    log_JK: FloatArray,
    std_JK: FloatArray,
    source_JK: NDArray[np.int8],
    rows: Rows,
    grid: Grid,
    configurations: Sequence[Configuration],
) -> Completion:
    """The contract's table over `configurations`: capped, measured cells as measured, with their own noise."""
    measured_log_JK, measured_JK = rows.dense(len(grid.configurations))
    noise_JK = np.zeros_like(std_JK)
    j, n = np.nonzero(rows.measured_JN)
    noise_JK[j, rows.column_JN[j, n]] = rows.std_JN[j, n]
    log_JK = cap(np.where(measured_JK, measured_log_JK, log_JK), grid)
    log_JK = np.where(measured_JK, np.clip(measured_log_JK, -MAX_LOG, MAX_LOG), log_JK)
    std_JK = np.where(measured_JK, noise_JK, std_JK)
    source_JK = np.where(measured_JK, np.int8(Source.MEASURED), source_JK).astype(np.int8)
    keep = [grid.index[c] for c in configurations]
    return Completion(tuple(configurations), np.exp(log_JK[:, keep]), std_JK[:, keep], source_JK[:, keep])


def empty(jobs: int, configurations: Sequence[Configuration]) -> Completion:
    """The completion of no job, or of no configuration."""
    shape = (jobs, len(configurations))
    return Completion(
        tuple(configurations), np.ones(shape), np.zeros(shape), np.full(shape, Source.PRIOR, dtype=np.int8)
    )
