"""Reuse of the nearest past job: copy its row, scaled, where the measured cells agree up to a constant factor.

    distance(i) = mean |exp(d_n - mean d) - 1|,    d_n = ln measured_n - ln past_in        (n: cells that both have)

Below `THRESHOLD` the row is taken with the factor exp(mean d); else the nearest row still is, with the uncertainty
that the distance calls for. The test is a reconstruction: the paper's text gives a threshold and its accuracy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations, Source
from heet_elastic.predictor.finish import complete, sources
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.learning import History, past
from heet_elastic.predictor.loglines import LogLines, fit_loglines
from heet_elastic.predictor.rows import BoolArray, Grid, Rows, observe

THRESHOLD = 0.10
MIN_SHARED = 2
"""Cells that a past job must share with the new one: with a single one, any factor fits."""

CELLS_AT_ONCE = 2_000_000
"""Distances are computed for as many (job, past job, cell) at once: bounds the memory."""


def distances(rows: Rows, row_IK: FloatArray, known_IK: BoolArray) -> tuple[FloatArray, FloatArray]:
    """(distance_JI, log_factor_JI); inf where fewer than `MIN_SHARED` cells are shared."""
    jobs, past_jobs = rows.column_JN.shape[0], row_IK.shape[0]
    distance_JI, factor_JI = np.full((jobs, past_jobs), np.inf), np.zeros((jobs, past_jobs))
    step = max(1, CELLS_AT_ONCE // max(1, past_jobs * rows.column_JN.shape[1]))
    for start in range(0, jobs, step):
        piece = slice(start, start + step)
        at_JN = rows.at_JN[piece]
        shared_JIN = rows.measured_JN[piece][:, None, :] & known_IK.T[at_JN].transpose(0, 2, 1)
        count_JI = shared_JIN.sum(axis=2)
        gap_JIN = np.where(shared_JIN, rows.log_JN[piece][:, None, :] - row_IK.T[at_JN].transpose(0, 2, 1), 0.0)
        factor_JI[piece] = gap_JIN.sum(axis=2) / np.maximum(count_JI, 1)
        off_JIN = np.where(shared_JIN, np.abs(np.expm1(np.clip(gap_JIN - factor_JI[piece][:, :, None], -50, 50))), 0.0)
        mean_JI = off_JIN.sum(axis=2) / np.maximum(count_JI, 1)
        distance_JI[piece] = np.where(count_JI >= MIN_SHARED, mean_JI, np.inf)
    return distance_JI, factor_JI


@dataclass(frozen=True, eq=False)
class NearestJob:
    """The method. Cells that the past job lacks, and jobs without any near one, are the log-log line's."""

    history: History
    line: LogLines
    name: str = "nearest"

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        grid, rows = observe(jobs, configurations)
        line = self.line.posterior(grid, rows)
        log_JK, std_JK = line.mean_JK, line.std_JK
        source_JK = sources(grid, rows)
        if self.history.profiles and jobs:
            row_IK, known_IK = self.on(grid)
            distance_JI, factor_JI = distances(rows, row_IK, known_IK)
            nearest_J = np.argmin(distance_JI, axis=1)
            at = np.arange(len(jobs))
            near_J, factor_J = distance_JI[at, nearest_J], factor_JI[at, nearest_J]
            use_JK = known_IK[nearest_J] & np.isfinite(near_J)[:, None]
            log_JK = np.where(use_JK, row_IK[nearest_J] + factor_J[:, None], log_JK)
            std_JK = np.where(use_JK, np.maximum(near_J, 0.05)[:, None], std_JK)
            reused_JK = use_JK & (near_J < THRESHOLD)[:, None]
            source_JK = np.where(reused_JK, Source.REUSED, np.where(use_JK, Source.MODEL, source_JK)).astype(np.int8)
        return complete(log_JK, std_JK, source_JK, rows, grid, configurations)

    def on(self, grid: Grid) -> tuple[FloatArray, BoolArray]:
        """(ln T, known) of the past jobs on `grid`."""
        log_IK, known_IK = self.history.rows.dense(len(self.history.grid.configurations))
        at_K = np.array([self.history.grid.index.get(c, -1) for c in grid.configurations], dtype=np.int64)
        return log_IK[:, at_K], known_IK[:, at_K] & (at_K >= 0)


def fit_nearest(history: Sequence[Profile], rng: np.random.Generator) -> NearestJob:
    """Keep the rows of the history."""
    return NearestJob(past(history, PhysicsPrior()), fit_loglines(history, rng))
