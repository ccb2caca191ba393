"""A log-log line per host type, from the job's own cells alone: the baseline, and what a new cluster starts with.

    ln T(h, w, s) = a + r_h + d_h + (b + b_h) ln w - c [s > 1] + small smooth rest

r_h is the datasheet prior (`gpus`), everything else has a Gaussian prior with the stated means and deviations below,
so the fit is the closed form of `gaussian.condition`: a job measured on one host type has a line there and a wide,
labelled guess elsewhere. The deviations are round numbers of the size found in published tables, fitted to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations
from heet_elastic.predictor.finish import complete, sources
from heet_elastic.predictor.gaussian import Conditioned, condition, conditioned_covariance
from heet_elastic.predictor.gpus import prior_speed
from heet_elastic.predictor.rows import Grid, Rows, observe


@dataclass(frozen=True, slots=True)
class LinePrior:
    """Means and standard deviations of the line's coefficients, in natural logarithms."""

    scale_std: float = 3.0  # of a job whose unit of work nobody has seen
    type_std: float = 0.5  # between a datasheet ratio and the job's own
    slope_mean: float = 0.85  # T grows as w^slope
    slope_std: float = 0.12  # of the job
    slope_type_std: float = 0.10  # of the job on one host type
    across_mean: float = -0.15  # cost of leaving the host
    across_std: float = 0.20
    rest_std: float = 0.05  # smooth deviation from the line
    rest_length: float = 1.0  # over how much of ln w it changes


@lru_cache(maxsize=32)
def line_mean(grid: Grid, prior: LinePrior) -> FloatArray:
    """Mean of ln T over the grid (K), for a job of scale 1."""
    speed_H = np.log([prior_speed(h) for h in grid.host_types]) if grid.host_types else np.zeros(0)
    line_K: FloatArray = (
        speed_H[grid.type_K] + prior.slope_mean * np.log(grid.workers_K) + prior.across_mean * (grid.hosts_K > 1)
    )
    return line_K


@lru_cache(maxsize=32)
def line_covariance(grid: Grid, prior: LinePrior) -> FloatArray:
    """Covariance of ln T over the grid (K x K)."""
    same_KK = grid.type_K[:, None] == grid.type_K[None, :]
    x_K, across_K = np.log(grid.workers_K), (grid.hosts_K > 1).astype(np.float64)
    product_KK = np.outer(x_K, x_K)
    rest_KK = np.exp(-0.5 * ((x_K[:, None] - x_K[None, :]) / prior.rest_length) ** 2)
    cov_KK: FloatArray = (
        prior.scale_std**2
        + prior.type_std**2 * same_KK
        + (prior.slope_std**2 + prior.slope_type_std**2 * same_KK) * product_KK
        + prior.across_std**2 * np.outer(across_K, across_K)
        + prior.rest_std**2 * same_KK * rest_KK
    )
    return cov_KK


@dataclass(frozen=True)
class LogLines:
    """The method; `scale` is the mean of ln T of one reference worker over the history (0 without one)."""

    scale: float = 0.0
    prior: LinePrior = LinePrior()
    name: str = "line"

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        grid, rows = observe(jobs, configurations)
        found = self.posterior(grid, rows)
        return complete(found.mean_JK, found.std_JK, sources(grid, rows), rows, grid, configurations)

    def posterior(self, grid: Grid, rows: Rows) -> Conditioned:
        """ln T over `grid` given `rows`."""
        return condition(self.scale + line_mean(grid, self.prior), line_covariance(grid, self.prior), rows)

    def covariance(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> FloatArray:
        """Posterior covariance of ln T (J x K x K; see `api.Covarying`)."""
        grid, rows = observe(jobs, configurations)
        keep = [grid.index[c] for c in configurations]
        return self.covariance_on(grid, rows)[:, keep][:, :, keep]

    def covariance_on(self, grid: Grid, rows: Rows) -> FloatArray:
        """Posterior covariance of ln T over `grid`."""
        return conditioned_covariance(line_covariance(grid, self.prior), rows)


def fit_loglines(history: Sequence[Profile], rng: np.random.Generator) -> LogLines:  # noqa: ARG001
    """The line takes nothing from the history but its scale, which only a job without any cell feels."""
    grid, rows = observe([Observations(p.name, cells=p.cells) for p in history], ())
    prior = LinePrior()
    residual_JN = rows.log_JN - line_mean(grid, prior)[rows.column_JN] if grid.configurations else rows.log_JN
    scales = [float(np.mean(r[m])) for r, m in zip(residual_JN, rows.measured_JN, strict=True) if m.any()]
    return LogLines(scale=float(np.median(scales)) if scales else 0.0, prior=prior)
