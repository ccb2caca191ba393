"""Bayesian principal components of ln T: as few directions in which jobs differ as past jobs call for.

    y_j = m + s 1 + W x_j + noise,      x ~ N(0, I),    column q of W ~ N(0, I / alpha_q)

fitted by expectation-maximisation over rows with missing cells (C. Bishop, "Bayesian PCA", NIPS 1998; Oba et al. 2003
for missing values); alpha switches needless components off. s is the job's unit of work. A new job is conditioned on
its cells (`gaussian`). Columns that no past job knows are the log-log line's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations
from heet_elastic.predictor.finish import complete, sources
from heet_elastic.predictor.gaussian import Conditioned, condition, conditioned_covariance
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.learning import History, past
from heet_elastic.predictor.loglines import LinePrior, LogLines, fit_loglines, line_mean
from heet_elastic.predictor.rows import Grid, Rows, observe

COMPONENTS = 8
ROUNDS = 40
SCALE_STD = LinePrior().scale_std
NOISE_FLOOR = 0.02
"""Noise is at least this: past jobs with few cells can be explained without any."""

MEAN_WEIGHT = 0.5
"""The log-log line counts as half a past job for the mean of a column."""


@dataclass(frozen=True, eq=False)
class BayesianPca:
    """The method fitted to a history: mean and covariance of ln T over its columns."""

    history: History
    mean_K: FloatArray
    covariance_KK: FloatArray
    line: LogLines
    name: str = "bpca"

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        grid, rows = observe(jobs, configurations)
        line = self.line.posterior(grid, rows)
        log_JK, std_JK = line.mean_JK.copy(), line.std_JK.copy()
        if self.history.profiles and jobs:
            at, of = self._shared(grid)
            found = self._posterior(grid, rows)
            log_JK[:, at], std_JK[:, at] = found.mean_JK[:, of], found.std_JK[:, of]
        return complete(log_JK, std_JK, sources(grid, rows), rows, grid, configurations)

    def covariance(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> FloatArray:
        """Posterior covariance of ln T (J x K x K; see `api.Covarying`)."""
        grid, rows = observe(jobs, configurations)
        cov_JKK = self.line.covariance_on(grid, rows)
        if self.history.profiles and jobs:
            at, of = self._shared(grid)
            own_JKK = conditioned_covariance(self.covariance_KK, self._own(grid, rows))
            cov_JKK[:, np.array(at)[:, None], np.array(at)] = own_JKK[:, of][:, :, of]
        keep = [grid.index[c] for c in configurations]
        return cov_JKK[:, keep][:, :, keep]

    def _shared(self, grid: Grid) -> tuple[list[int], list[int]]:
        pairs = [
            (k, self.history.grid.index[c]) for k, c in enumerate(grid.configurations) if c in self.history.grid.index
        ]
        return [k for k, _ in pairs], [i for _, i in pairs]

    def _own(self, grid: Grid, rows: Rows) -> Rows:
        """The rows on the history's grid; cells that it lacks are left out."""
        at_K = np.array([self.history.grid.index.get(c, -1) for c in grid.configurations] + [-1], dtype=np.int64)
        return Rows(at_K[rows.column_JN], rows.log_JN, rows.std_JN)

    def _posterior(self, grid: Grid, rows: Rows) -> Conditioned:
        return condition(self.mean_K, self.covariance_KK, self._own(grid, rows))


def fit_bpca(history: Sequence[Profile], rng: np.random.Generator) -> BayesianPca:
    """Expectation-maximisation over the history."""
    known = past(history, PhysicsPrior())
    line = fit_loglines(history, rng)
    prior_K = line.scale + line_mean(known.grid, LinePrior())
    if not known.profiles:
        return BayesianPca(known, prior_K, np.eye(prior_K.size), line)
    return BayesianPca(known, *_em(known, prior_K, rng), line)


def _em(history: History, prior_K: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """(mean_K, covariance_KK)."""
    columns, jobs = prior_K.size, len(history.profiles)
    log_JK, known_JK = history.rows.dense(columns)
    weight_JK = known_JK.astype(np.float64)
    components = max(1, min(COMPONENTS, jobs - 1, columns - 1))
    # The unit of work is component 0: fixed, of one size in every column.
    load_KQ = np.concatenate([np.full((columns, 1), SCALE_STD), rng.normal(0, 0.2, (columns, components))], axis=1)
    mean_K, noise_var, alpha_Q = prior_K, 0.1, np.full(components, 10.0)
    for _ in range(ROUNDS):
        precision_JQQ = np.einsum("jk,kq,kr->jqr", weight_JK, load_KQ, load_KQ, optimize=True) / noise_var
        cov_JQQ = np.linalg.inv(precision_JQQ + np.eye(components + 1))
        apart_JK = np.where(known_JK, log_JK - mean_K, 0.0)
        x_JQ = (cov_JQQ @ (apart_JK @ load_KQ)[:, :, None])[:, :, 0] / noise_var
        second_JQQ = cov_JQQ + x_JQ[:, :, None] * x_JQ[:, None, :]
        scale_JK = np.where(known_JK, log_JK - x_JQ @ load_KQ.T, 0.0)
        mean_K = (scale_JK.sum(axis=0) + MEAN_WEIGHT * prior_K) / (weight_JK.sum(axis=0) + MEAN_WEIGHT)
        apart_JK = np.where(known_JK, log_JK - mean_K, 0.0)
        gram_KQQ = np.einsum("jk,jqr->kqr", weight_JK, second_JQQ, optimize=True)
        right_KQ = apart_JK.T @ x_JQ - gram_KQQ[:, :, 0] * SCALE_STD
        inner_KQQ = gram_KQQ[:, 1:, 1:] + noise_var * np.diag(alpha_Q)
        load_KQ[:, 1:] = np.linalg.solve(inner_KQQ, right_KQ[:, 1:, None])[:, :, 0]
        fit_JK = x_JQ @ load_KQ.T
        spread_JK = np.einsum("kq,jqr,kr->jk", load_KQ, cov_JQQ, load_KQ, optimize=True)
        square = (weight_JK * ((apart_JK - fit_JK) ** 2 + spread_JK)).sum()
        noise_var = max(NOISE_FLOOR**2, float(square / weight_JK.sum()))
        alpha_Q = columns / ((load_KQ[:, 1:] ** 2).sum(axis=0) + 1e-6)
    return mean_K, load_KQ @ load_KQ.T + noise_var * np.eye(columns)
