"""Funk SVD: a low-rank table with biases, the paper's completion (reconstruction: rank 4, regularisation 0.02).

    y_jk = b_j + c_k + p_j . q_k,     minimise  sum over measured (y - that)^2 + 0.02 (b^2 + c^2 + |p|^2 + |q|^2)

(S. Funk's objective: one regularisation term for every measured cell, so a row is penalised as often as it was
measured.) It is minimised by alternating least squares, which needs neither a learning rate nor luck. A new job joins
the table with its measured cells (`fold_in=False`) or is folded in: its b and p are the closed-form ridge solution
against the columns of past jobs. Rows are centred on their measured cells before: in logs by their mean, else divided
by their geometric mean. Columns that no past job knows are the log-log line's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations
from heet_elastic.predictor.finish import complete, sources
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.learning import History, past
from heet_elastic.predictor.loglines import LogLines, fit_loglines
from heet_elastic.predictor.rows import BoolArray, Grid, Rows, observe

RANK = 4
REGULARISATION = 0.02
SWEEPS = 30
PROBED = 6
"""Errors are estimated by folding past jobs in from so many of their cells."""

SMALLEST = 0.02
"""Predictions in raw values are at least this share of the job's mean: a raw factorisation can go below zero."""


@dataclass(frozen=True)
class Factors:
    """Biases and factors: rows b, p; columns c, q. The bias is the last element of each."""

    row_JF: FloatArray  # p, b
    column_KF: FloatArray  # q, c

    def table(self) -> FloatArray:
        """The completed table (J x K)."""
        rows, columns = self.row_JF, self.column_KF
        out: FloatArray = rows[:, :-1] @ columns[:, :-1].T + rows[:, -1:] + columns[:, -1]
        return out


def fold(value_JK: FloatArray, known_JK: BoolArray, column_KF: FloatArray) -> FloatArray:
    """Rows (p, b) for the known cells, given columns: one small ridge system a job."""
    design_KF = np.concatenate([column_KF[:, :-1], np.ones((column_KF.shape[0], 1))], axis=1)
    return _ridge(value_JK - column_KF[:, -1], known_JK, design_KF)


def _ridge(target_JK: FloatArray, known_JK: BoolArray, design_KF: FloatArray) -> FloatArray:
    weight_JK = known_JK.astype(np.float64)
    gram_JFF = np.einsum("jk,kf,kg->jfg", weight_JK, design_KF, design_KF, optimize=True)
    count_J = np.maximum(weight_JK.sum(axis=1), 1.0)
    gram_JFF += REGULARISATION * count_J[:, None, None] * np.eye(design_KF.shape[1])
    right_JF = np.where(known_JK, target_JK, 0.0) @ design_KF
    return np.asarray(np.linalg.solve(gram_JFF, right_JF[:, :, None])[:, :, 0], dtype=np.float64)


def factorise(value_JK: FloatArray, known_JK: BoolArray, start_KF: FloatArray, sweeps: int = SWEEPS) -> Factors:
    """Alternating least squares from these columns."""
    column_KF = start_KF
    row_JF = fold(value_JK, known_JK, column_KF)
    for _ in range(sweeps):
        column_KF = fold(value_JK.T, known_JK.T, row_JF)
        row_JF = fold(value_JK, known_JK, column_KF)
    return Factors(row_JF, column_KF)


def centred(log_JK: FloatArray, known_JK: BoolArray, *, logs: bool) -> tuple[FloatArray, FloatArray]:
    """(values to factorise, 0 where not known; mean ln T of each row over its known cells)."""
    mean_J = np.where(known_JK, log_JK, 0.0).sum(axis=1) / np.maximum(known_JK.sum(axis=1), 1)
    apart_JK = log_JK - mean_J[:, None]
    value_JK = apart_JK if logs else np.exp(np.clip(apart_JK, -50, 50))
    return np.where(known_JK, value_JK, 0.0), mean_J


@dataclass(frozen=True, eq=False)
class FunkSvd:
    """The method fitted to a history: its columns, and how far they miss (std of ln T) from `PROBED` cells."""

    history: History
    value_IK: FloatArray
    known_IK: BoolArray
    column_KF: FloatArray
    miss_K: FloatArray
    line: LogLines
    logs: bool
    fold_in: bool
    name: str

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        grid, rows = observe(jobs, configurations)
        line = self.line.posterior(grid, rows)
        log_JK, std_JK = line.mean_JK.copy(), line.std_JK.copy()
        if self.history.profiles and jobs and rows.measured_JN.any():
            shared, past_column = self._shared(grid)
            found_JK, ready_J = self._complete(grid, rows)
            log_JK[:, shared] = np.where(ready_J[:, None], found_JK[:, past_column], log_JK[:, shared])
            std_JK[:, shared] = np.where(ready_J[:, None], self.miss_K[past_column], std_JK[:, shared])
        return complete(log_JK, std_JK, sources(grid, rows), rows, grid, configurations)

    def _shared(self, grid: Grid) -> tuple[list[int], list[int]]:
        """Columns of `grid` that past jobs know, and the same columns in the history."""
        pairs = [
            (k, self.history.grid.index[c]) for k, c in enumerate(grid.configurations) if c in self.history.grid.index
        ]
        pairs = [(k, i) for k, i in pairs if self.known_IK[:, i].any()]
        return [k for k, _ in pairs], [i for _, i in pairs]

    def _complete(self, grid: Grid, rows: Rows) -> tuple[FloatArray, BoolArray]:
        """(ln T on the history's grid, which jobs have a cell there)."""
        log_GK, known_GK = rows.dense(len(grid.configurations))
        shared, past_column = self._shared(grid)
        log_JK = np.zeros((log_GK.shape[0], self.value_IK.shape[1]))
        known_JK = np.zeros(log_JK.shape, dtype=bool)
        log_JK[:, past_column], known_JK[:, past_column] = log_GK[:, shared], known_GK[:, shared]
        value_JK, mean_J = centred(log_JK, known_JK, logs=self.logs)
        if self.fold_in:
            table_JK = Factors(fold(value_JK, known_JK, self.column_KF), self.column_KF).table()
        else:
            table_JK = np.array([self._joined(v, k) for v, k in zip(value_JK, known_JK, strict=True)])
        return _as_logs(table_JK, logs=self.logs) + mean_J[:, None], np.asarray(known_JK.any(axis=1))

    def _joined(self, value_K: FloatArray, known_K: BoolArray) -> FloatArray:
        value_JK, known_JK = np.vstack([self.value_IK, value_K]), np.vstack([self.known_IK, known_K])
        table_JK = factorise(value_JK, known_JK, self.column_KF, sweeps=SWEEPS // 3).table()
        return np.asarray(table_JK[-1])


def _as_logs(table_JK: FloatArray, *, logs: bool) -> FloatArray:
    return table_JK if logs else np.log(np.maximum(table_JK, SMALLEST))


def _fit(history: Sequence[Profile], rng: np.random.Generator, *, logs: bool, fold_in: bool, name: str) -> FunkSvd:
    known = past(history, PhysicsPrior())
    columns = len(known.grid.configurations)
    log_IK, known_IK = known.rows.dense(columns)
    value_IK, _ = centred(log_IK, known_IK, logs=logs)
    start_KF = rng.normal(0.0, 0.1, (columns, RANK + 1))
    column_KF = factorise(value_IK, known_IK, start_KF).column_KF if known.profiles else start_KF
    miss_K = _misses(log_IK, known_IK, column_KF, rng, logs=logs)
    line = fit_loglines(history, rng)
    return FunkSvd(known, value_IK, known_IK, column_KF, miss_K, line, logs, fold_in, name)


def _misses(
    log_IK: FloatArray, known_IK: BoolArray, column_KF: FloatArray, rng: np.random.Generator, *, logs: bool
) -> FloatArray:
    """Root mean square error of ln T in each column when past jobs are folded in from `PROBED` random cells."""
    seen_IK = np.argsort(np.argsort(np.where(known_IK, rng.random(known_IK.shape), 2.0), axis=1), axis=1) < PROBED
    seen_IK &= known_IK
    value_IK, mean_I = centred(log_IK, seen_IK, logs=logs)
    table_IK = _as_logs(Factors(fold(value_IK, seen_IK, column_KF), column_KF).table(), logs=logs) + mean_I[:, None]
    hidden_IK = known_IK & ~seen_IK
    square_K = np.where(hidden_IK, (table_IK - log_IK) ** 2, 0.0).sum(axis=0)
    overall = square_K.sum() / max(1, hidden_IK.sum()) if hidden_IK.any() else 0.25
    out: FloatArray = np.sqrt((square_K + 2.0 * overall) / (hidden_IK.sum(axis=0) + 2.0))
    return out


def fit_svd_raw(history: Sequence[Profile], rng: np.random.Generator) -> FunkSvd:
    """Funk SVD on throughputs relative to the job's mean."""
    return _fit(history, rng, logs=False, fold_in=False, name="svd-raw")


def fit_svd_log(history: Sequence[Profile], rng: np.random.Generator) -> FunkSvd:
    """Funk SVD on ln T."""
    return _fit(history, rng, logs=True, fold_in=False, name="svd-log")


def fit_svd_fold_in(history: Sequence[Profile], rng: np.random.Generator) -> FunkSvd:
    """Funk SVD on ln T, new jobs folded in."""
    return _fit(history, rng, logs=True, fold_in=True, name="svd-fold-in")
