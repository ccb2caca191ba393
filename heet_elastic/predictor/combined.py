"""The default method: similar past jobs, the compute + communication model, and the line, weighted by evidence.

Three kinds of explanation compete for what was measured of a job:

- it resembles past job i: the model centred on what i turned out to be, with half of the population's variation
  (`SIMILAR`); tried for the `NEAREST` past jobs by the reuse test's distance;
- it is a job like others: the model centred on the population;
- neither computation nor communication explains it (overheads, faults): the log-log line.

Each gives a Gaussian over ln T and the density of the measured cells under it; the prediction is their mixture,
weighted by prior x density, with the mixture's mean and variance (Bayesian model averaging; Hoeting et al. 1999). So a
past job is reused where it fits, and nothing switches abruptly where it half fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations, Source
from heet_elastic.predictor.finish import complete, empty, sources
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.learning import History, learn, past
from heet_elastic.predictor.loglines import LogLines, fit_loglines
from heet_elastic.predictor.physics import (
    Centre,
    Field,
    Latents,
    Population,
    covariances,
    latents,
    on_grid,
    population_centre,
    solve,
    variances,
)
from heet_elastic.predictor.rows import Grid, IntArray, Rows, gather, grid_of

SIMILAR = 0.5
"""A job that resembles a past one deviates from it this much as widely as jobs do from the population."""

NEAREST = 3
POPULATION_WEIGHT = 0.5
LINE_WEIGHT = 0.1
"""Prior weight of the population and the line; the rest is shared by all past jobs."""

NEGLIGIBLE = 1e-3
"""Explanations with less weight than this are left out."""


@dataclass(frozen=True)
class Explanation:
    """One way to see some of the jobs: where it is centred, its prior weight, and which of its centres are reuse."""

    jobs_P: IntArray  # job of each entry; a job has one entry at the most
    centre: Centre
    log_prior_P: FloatArray
    reuse: bool


@dataclass(frozen=True)
class Mixed:
    """Moments of the mixture: mean and variance of ln T, and the weight of past jobs. Covariance only if asked for."""

    mean_JK: FloatArray
    var_JK: FloatArray
    reuse_J: FloatArray
    cov_JKK: FloatArray | None


@dataclass(frozen=True, eq=False)
class PastLatents:
    """What past jobs turned out to be, on a grid; `row_IK` as measured where it was."""

    found: Latents
    row_IK: FloatArray


@dataclass(frozen=True, eq=False)
class Combined:
    """The method, fitted to a history."""

    population: Population
    history: History
    line: LogLines
    reuse: bool = True
    use_line: bool = True
    name: str = "combined"

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        grid = grid_of(configurations, (c for job in jobs for c, _ in job.cells))
        rows = gather(jobs, grid)
        if not (jobs and configurations):
            return empty(len(jobs), configurations)
        mixed = self.mixture(jobs, grid, rows)
        past_types = set(self.population.host_types)
        known_K = np.array([c.host_type in past_types for c in grid.configurations], dtype=bool)
        any_J = rows.measured_JN.any(axis=1)
        source_JK = np.where(known_K & any_J[:, None], Source.MODEL, sources(grid, rows))
        source_JK = np.where((mixed.reuse_J[:, None] > 0.5) & known_K, Source.REUSED, source_JK).astype(np.int8)
        return complete(mixed.mean_JK, np.sqrt(mixed.var_JK), source_JK, rows, grid, configurations)

    def covariance(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> FloatArray:
        """Posterior covariance of ln T (J x K x K; see `api.Covarying`)."""
        grid = grid_of(configurations, (c for job in jobs for c, _ in job.cells))
        mixed = self.mixture(jobs, grid, gather(jobs, grid), covariance=True)
        assert mixed.cov_JKK is not None
        keep = [grid.index[c] for c in configurations]
        return mixed.cov_JKK[:, keep][:, :, keep]

    def mixture(self, jobs: Sequence[Observations], grid: Grid, rows: Rows, *, covariance: bool = False) -> Mixed:
        """All explanations of `rows`, weighted."""
        place = on_grid(self.population, grid)
        explanations = self._explanations(jobs, grid, rows, place)
        solved = [(e, rows.take(e.jobs_P), solve(place, rows.take(e.jobs_P), e.centre)) for e in explanations]
        line = self.line.posterior(grid, rows) if self.use_line else None
        score_EJ = np.full((len(solved) + 1, len(jobs)), -np.inf)
        for row, (e, _, solution) in zip(score_EJ, solved, strict=False):
            row[e.jobs_P] = e.log_prior_P + solution.log_evidence_J
        if line is not None:
            score_EJ[-1] = np.log(LINE_WEIGHT) + line.log_evidence_J
        weight_EJ = np.exp(score_EJ - score_EJ.max(axis=0, initial=-np.inf))
        weight_EJ /= weight_EJ.sum(axis=0)
        weight_EJ = np.where(weight_EJ < NEGLIGIBLE, 0.0, weight_EJ)
        weight_EJ /= weight_EJ.sum(axis=0)
        pile = _Pile(len(jobs), len(grid.configurations), covariance=covariance)
        for weight_J, (e, part, solution) in zip(weight_EJ, solved, strict=False):
            at = np.flatnonzero(weight_J[e.jobs_P] > 0)
            if at.size:
                few, centre, s = part.take(at), e.centre.take(at), solution.take(at)
                found = latents(place, few, centre, s)
                cov = covariances(place, few, centre, s, found.ratio_JK) if covariance else None
                var = (
                    variances(place, few, centre, s, found.ratio_JK)
                    if cov is None
                    else np.diagonal(cov, axis1=1, axis2=2)
                )
                pile.add(e.jobs_P[at], weight_J[e.jobs_P[at]], found.row_JK, var, cov)
        if line is not None and (weight_EJ[-1] > 0).any():
            at = np.flatnonzero(weight_EJ[-1] > 0)
            cov = self.line.covariance_on(grid, rows.take(at)) if covariance else None
            pile.add(at, weight_EJ[-1][at], line.mean_JK[at], line.std_JK[at] ** 2, cov)
        reuse_J = sum(w for w, e in zip(weight_EJ, explanations, strict=False) if e.reuse) + np.zeros(len(jobs))
        return pile.mixed(reuse_J)

    def _explanations(self, jobs: Sequence[Observations], grid: Grid, rows: Rows, place: Field) -> list[Explanation]:
        everyone = np.arange(len(jobs))
        population = Explanation(
            everyone,
            population_centre(self.population, place, len(jobs)),
            np.full(len(jobs), np.log(POPULATION_WEIGHT)),
            reuse=False,
        )
        if not self.history.profiles or not self.reuse:
            return [population]
        past_jobs = past_latents(self, grid)
        near_JM = _nearest(rows, past_jobs.row_IK)
        ready = np.flatnonzero(rows.measured_JN.sum(axis=1) >= 2)
        log_prior = np.log((1 - POPULATION_WEIGHT - LINE_WEIGHT) / len(self.history.profiles))
        return [population] + [
            Explanation(
                ready,
                self._past_centre(past_jobs, near_JM[ready, m]),
                np.full(ready.size, log_prior),
                reuse=True,
            )
            for m in range(near_JM.shape[1])
        ]

    def _past_centre(self, past_jobs: PastLatents, of_P: IntArray) -> Centre:
        model_IK = past_jobs.found.row_JK - past_jobs.found.rest_JK
        return Centre(
            speed_CK=past_jobs.found.speed_JK,
            ratio_CK=past_jobs.found.ratio_JK,
            rest_CK=past_jobs.row_IK - model_IK,
            of_J=of_P,
            variance=SIMILAR**2,
            scale_var_J=np.full(of_P.size, self.population.prior.scale_std**2),
            ratio_var_J=np.full(of_P.size, self.population.ratio_std**2),
            coupling_J=np.zeros(of_P.size),
        )


@lru_cache(maxsize=8)
def past_latents(fitted: Combined, grid: Grid) -> PastLatents:
    """The past jobs on `grid`."""
    joint = grid_of(grid.configurations, fitted.history.grid.configurations)
    at_K = np.array([joint.index[c] for c in fitted.history.grid.configurations] + [-1], dtype=np.int64)
    rows = replace(fitted.history.rows, column_JN=at_K[fitted.history.rows.column_JN])
    place = on_grid(fitted.population, joint)
    centre = population_centre(fitted.population, place, len(fitted.history.profiles))
    found = latents(place, rows, centre, solve(place, rows, centre))
    log_IK, measured_IK = rows.dense(len(joint.configurations))
    row_IK = np.where(measured_IK, log_IK, found.row_JK)
    keep = slice(0, len(grid.configurations))
    parts = (found.speed_JK, found.ratio_JK, found.rest_JK, found.row_JK)
    return PastLatents(Latents(*(p[:, keep] for p in parts)), row_IK[:, keep])


def _nearest(rows: Rows, row_IK: FloatArray) -> IntArray:
    """The `NEAREST` past jobs of each job by squared distance up to a factor, nearest first (J x M)."""
    used = np.unique(np.where(rows.measured_JN, rows.column_JN, 0))
    log_JK, measured_JK = rows.dense(row_IK.shape[1])
    y_JU, m_JU, r_IU = log_JK[:, used], measured_JK[:, used].astype(np.float64), row_IK[:, used]
    y_JU = y_JU * m_JU
    count_J1 = np.maximum(m_JU.sum(axis=1, keepdims=True), 1)
    gap_JI = y_JU.sum(axis=1, keepdims=True) - m_JU @ r_IU.T
    square_JI = m_JU @ (r_IU**2).T - 2 * y_JU @ r_IU.T - gap_JI**2 / count_J1
    most = min(NEAREST, row_IK.shape[0])
    near_JM = np.argpartition(square_JI, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(square_JI, near_JM, axis=1), axis=1, kind="stable")
    return np.take_along_axis(near_JM, order, axis=1)


class _Pile:
    """Sums the moments of a mixture, one explanation after another."""

    def __init__(self, jobs: int, columns: int, *, covariance: bool) -> None:
        self.mean_JK, self.square_JK = np.zeros((jobs, columns)), np.zeros((jobs, columns))
        self.parts: list[tuple[IntArray, FloatArray, FloatArray]] = []
        self.cov_JKK = np.zeros((jobs, columns, columns)) if covariance else None

    def add(
        self,
        at: IntArray,
        weight: FloatArray,
        mean_PK: FloatArray,
        var_PK: FloatArray,
        cov_PKK: FloatArray | None,
    ) -> None:
        """Add an explanation of the jobs `at` with these weights."""
        self.mean_JK[at] += weight[:, None] * mean_PK
        self.square_JK[at] += weight[:, None] * var_PK
        self.parts.append((at, weight, mean_PK))
        if self.cov_JKK is not None and cov_PKK is not None:
            self.cov_JKK[at] += weight[:, None, None] * cov_PKK

    def mixed(self, reuse_J: FloatArray) -> Mixed:
        """Moments of the whole."""
        var_JK = self.square_JK
        for at, weight, mean_PK in self.parts:
            apart_PK = mean_PK - self.mean_JK[at]
            var_JK[at] += weight[:, None] * apart_PK**2
            if self.cov_JKK is not None:
                self.cov_JKK[at] += weight[:, None, None] * apart_PK[:, :, None] * apart_PK[:, None, :]
        return Mixed(self.mean_JK, var_JK, reuse_J, self.cov_JKK)


def fit_combined(history: Sequence[Profile], rng: np.random.Generator) -> Combined:
    """Learn the population, and remember the past jobs."""
    known = past(history)
    return Combined(learn(known, PhysicsPrior()), known, fit_loglines(history, rng))


def fit_physics(history: Sequence[Profile], rng: np.random.Generator) -> Combined:
    """The compute + communication model with its residual process alone: no reuse, no line."""
    known = past(history)
    name = "compute + communication"
    return Combined(learn(known, PhysicsPrior()), known, fit_loglines(history, rng), False, False, name)
