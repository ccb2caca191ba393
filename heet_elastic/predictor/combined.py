"""The default method: similar past jobs, the compute + communication model, and the line, weighted by evidence.

Three kinds of explanation compete for what was measured of a job:

- it resembles a past job: the model centred on what that turned out to be, with half of the population's variation;
- it is a job like others: the model centred on the population (both in `explain`);
- neither computation nor communication explains it (overheads, faults): the log-log line.

Each gives a Gaussian over ln T and the density of the measured cells under it; the prediction is their mixture,
weighted by prior x density, with the mixture's mean and variance (Bayesian model averaging; Hoeting et al. 1999). So a
past job is reused where it fits, and nothing switches abruptly where it half fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor.api import Completion, FloatArray, Observations, Source
from heet_elastic.predictor.explain import Explanations, as_past_jobs, as_population
from heet_elastic.predictor.finish import complete, empty, sources
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.learning import History, counts_steps, learn, past
from heet_elastic.predictor.loglines import LogLines, fit_loglines
from heet_elastic.predictor.physics import (
    ITERATIONS,
    Field,
    Population,
    Solution,
    covariances,
    latents,
    on_grid,
    solve,
    variances,
)
from heet_elastic.predictor.rows import Grid, IntArray, Rows, observe

LINE_WEIGHT = 0.1
"""Prior weight of the line."""

NEGLIGIBLE = 0.02
"""Explanations with less than this share of the best one's weight are left out."""

PAST_ITERATIONS = 1
"""Linearisations around a past job: a job that resembles it is near."""

CHUNK = 1024
"""Jobs predicted in one piece: bounds the memory, whatever the number of jobs."""


@dataclass(frozen=True)
class Mixed:
    """Moments of the mixture: mean and variance of ln T, and the weight of past jobs. Covariance only if asked for."""

    mean_JK: FloatArray
    var_JK: FloatArray
    reuse_J: FloatArray
    cov_JKK: FloatArray | None


@dataclass(frozen=True, eq=False)
class Combined:
    """The method, fitted to a history. Without `reuse` past jobs teach nothing but the population."""

    population: Population
    history: History
    line: LogLines
    reuse: bool = True
    use_line: bool = True
    name: str = "combined"

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`)."""
        if not (jobs and configurations):
            return empty(len(jobs), configurations)
        parts = [self._predict(jobs[i : i + CHUNK], configurations) for i in range(0, len(jobs), CHUNK)]
        if len(parts) == 1:
            return parts[0]
        return Completion(
            tuple(configurations),
            np.concatenate([p.throughput_JK for p in parts]),
            np.concatenate([p.log_std_JK for p in parts]),
            np.concatenate([p.source_JK for p in parts]),
        )

    def _predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        grid, rows = observe(jobs, configurations)
        mixed = self.mixture(jobs, grid, rows)
        past_types = set(self.population.host_types)
        known = np.array([k for k, c in enumerate(grid.configurations) if c.host_type in past_types], dtype=np.int64)
        source_JK = sources(grid, rows)
        source_JK[np.ix_(np.flatnonzero(rows.measured_JN.any(axis=1)), known)] = Source.MODEL
        source_JK[np.ix_(np.flatnonzero(mixed.reuse_J > 0.5), known)] = Source.REUSED
        return complete(mixed.mean_JK, np.sqrt(mixed.var_JK), source_JK, rows, grid, configurations)

    def covariance(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> FloatArray:
        """Posterior covariance of ln T (J x K x K; see `api.Covarying`)."""
        grid, rows = observe(jobs, configurations)
        cov_JKK = self.mixture(jobs, grid, rows, covariance=True).cov_JKK
        assert cov_JKK is not None
        keep = [grid.index[c] for c in configurations]
        return cov_JKK[:, keep][:, :, keep]

    def mixture(self, jobs: Sequence[Observations], grid: Grid, rows: Rows, *, covariance: bool = False) -> Mixed:
        """All explanations of `rows`, weighted."""
        place = on_grid(self.population, grid)
        in_steps_J = np.array([job.work_unit == "steps" for job in jobs], dtype=bool)
        per_step_J = counts_steps(self.population, rows, place, in_steps_J)
        work = rows.shifted(per_step_J, place.log_workers_K)
        parts = [_solved(place, work, as_population(jobs, self.population, place), ITERATIONS)]
        past_jobs = as_past_jobs(jobs, work, self.population, self.history, place) if self.reuse else None
        if past_jobs is not None:
            parts.append(_solved(place, work, past_jobs, PAST_ITERATIONS))
        line = self.line.posterior(grid, work) if self.use_line else None
        scores = [p.score_P for p in parts]
        if line is not None:
            scores.append(math.log(LINE_WEIGHT) + line.log_evidence_J)
        everyone = np.arange(len(jobs))
        of_parts = [p.ways.jobs_P for p in parts] + ([everyone] if line is not None else [])
        weights = _weights(of_parts, scores, len(jobs))
        pile = _Pile(len(jobs), len(grid.configurations), covariance=covariance)
        for weight_P, part in zip(weights, parts, strict=False):
            _add(pile, place, work, weight_P, part)
        if line is not None and weights[-1].any():
            at = np.flatnonzero(weights[-1])
            cov = self.line.covariance_on(grid, work.take(at)) if covariance else None
            pile.add(at, weights[-1][at], line.mean_JK[at], line.std_JK[at] ** 2, cov)
        reuse_J = np.zeros(len(jobs))
        if past_jobs is not None:
            np.add.at(reuse_J, past_jobs.jobs_P, weights[1])
        return pile.mixed(reuse_J, per_step_J[:, None] * place.log_workers_K)


@dataclass(frozen=True)
class _Part:
    """Explanations, solved: ln(prior x density) of each."""

    ways: Explanations
    solution: Solution
    score_P: FloatArray


def _solved(place: Field, rows: Rows, ways: Explanations, iterations: int) -> _Part:
    solution = solve(place, rows.take(ways.jobs_P), ways.centre, iterations)
    return _Part(ways, solution, ways.log_prior_P + solution.log_evidence_J)


def _weights(jobs: Sequence[IntArray], scores: Sequence[FloatArray], count: int) -> list[FloatArray]:
    """Posterior weights of explanations from ln(prior x density), summing to 1 for each job; negligible ones 0."""
    top_J = np.full(count, -np.inf)
    for at, score_P in zip(jobs, scores, strict=True):
        np.maximum.at(top_J, at, score_P)
    weights = [np.exp(score_P - top_J[at]) for at, score_P in zip(jobs, scores, strict=True)]
    weights = [np.where(w < NEGLIGIBLE, 0.0, w) for w in weights]
    total_J = np.sum([np.bincount(at, w, count) for at, w in zip(jobs, weights, strict=True)], axis=0)
    return [w / total_J[at] for at, w in zip(jobs, weights, strict=True)]


def _add(pile: _Pile, place: Field, rows: Rows, weight_P: FloatArray, part: _Part) -> None:
    """Add the explanations that weigh anything."""
    at = np.flatnonzero(weight_P)
    if not at.size:
        return
    jobs, centre, solution = part.ways.jobs_P[at], part.ways.centre.take(at), part.solution.take(at)
    few = rows.take(jobs)
    found = latents(place, few, centre, solution)
    if pile.cov_JKK is None:
        pile.add(jobs, weight_P[at], found.row_JK, variances(place, few, centre, solution, found.ratio_JK), None)
    else:
        cov_PKK = covariances(place, few, centre, solution, found.ratio_JK)
        pile.add(jobs, weight_P[at], found.row_JK, np.diagonal(cov_PKK, axis1=1, axis2=2), cov_PKK)


class _Pile:
    """Sums the moments of a mixture, some explanations after others."""

    def __init__(self, jobs: int, columns: int, *, covariance: bool) -> None:
        self.mean_JK, self.var_JK = np.zeros((jobs, columns)), np.zeros((jobs, columns))
        self.parts: list[tuple[IntArray, FloatArray, FloatArray]] = []
        self.cov_JKK = np.zeros((jobs, columns, columns)) if covariance else None

    def add(
        self,
        jobs_P: IntArray,
        weight_P: FloatArray,
        mean_PK: FloatArray,
        var_PK: FloatArray,
        cov_PKK: FloatArray | None,
    ) -> None:
        """Add explanations, `jobs_P` ascending."""
        _sum_into(self.mean_JK, jobs_P, weight_P[:, None] * mean_PK)
        _sum_into(self.var_JK, jobs_P, weight_P[:, None] * var_PK)
        self.parts.append((jobs_P, weight_P, mean_PK))
        if self.cov_JKK is not None and cov_PKK is not None:
            _sum_into(self.cov_JKK, jobs_P, weight_P[:, None, None] * cov_PKK)

    def mixed(self, reuse_J: FloatArray, less_JK: FloatArray) -> Mixed:
        """Moments of the whole, `less_JK` taken off the mean."""
        for jobs_P, weight_P, mean_PK in self.parts:
            apart_PK = mean_PK - self.mean_JK[jobs_P]
            _sum_into(self.var_JK, jobs_P, weight_P[:, None] * apart_PK**2)
            if self.cov_JKK is not None:
                outer_PKK = apart_PK[:, :, None] * apart_PK[:, None, :]
                _sum_into(self.cov_JKK, jobs_P, weight_P[:, None, None] * outer_PKK)
        return Mixed(self.mean_JK - less_JK, self.var_JK, reuse_J, self.cov_JKK)


def _sum_into(total: FloatArray, at_P: IntArray, value: FloatArray) -> None:
    """total[at_P] += value where an index, ascending, may come several times."""
    if total.shape[0] == 1:
        total[0] += value.sum(axis=0)
    elif at_P.size == total.shape[0] and at_P[0] == 0 and at_P[-1] == at_P.size - 1 and (at_P[1:] > at_P[:-1]).all():
        total += value
    elif at_P.size:
        first = np.concatenate(([0], np.flatnonzero(at_P[1:] != at_P[:-1]) + 1))
        total[at_P[first]] += np.add.reduceat(value, first, axis=0)


def fit_combined(history: Sequence[Profile], rng: np.random.Generator) -> Combined:
    """Learn the population, and remember the past jobs."""
    known = past(history, PhysicsPrior())
    return Combined(learn(known, PhysicsPrior()), known, fit_loglines(history, rng))


def fit_physics(history: Sequence[Profile], rng: np.random.Generator) -> Combined:
    """The compute + communication model with its residual process alone: no reuse, no line."""
    return replace(fit_combined(history, rng), reuse=False, use_line=False, name="physics")
