"""Learning a population from past jobs: expectation-maximisation over the linearised posteriors of `physics`.

E: the posterior of every past job given all of its cells. M: host type speeds r and their covariance D (inverse-Wishart
prior), mean and spread of q, the level B (a Gaussian process: the posterior mean of a shared effect seen through the
jobs' own deviations), and per link class how widely jobs deviate there. The prior's weights keep few jobs from saying
much. A past job without a cell that can be used says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heet_elastic.model import JobFeatures, Profile, WorkUnit
from heet_elastic.predictor.api import FloatArray, Observations
from heet_elastic.predictor.kernels import PhysicsPrior, kernels
from heet_elastic.predictor.physics import (
    Field,
    Latents,
    Population,
    Solution,
    latents,
    on_grid,
    population_centre,
    solve,
    unseen_population,
)
from heet_elastic.predictor.rows import BoolArray, Grid, IntArray, Rows, grid_of, observe

ROUNDS = 6
MAX_HISTORY = 256
"""Past jobs that are learned from: fitting is then seconds at the most, whatever the cluster has seen."""

RATIO_WEIGHT = 4.0
LINK_WEIGHT = 3.0
"""The prior of q's mean (half of it) and spread, and of kappa, count as that many past jobs."""


@dataclass(frozen=True, eq=False)
class History:
    """Past jobs on their own grid."""

    profiles: tuple[Profile, ...]
    grid: Grid
    rows: Rows

    @cached_property
    def named(self) -> dict[tuple[str, bool], tuple[int, ...]]:
        """Profiles of each (name, whether in steps), in their order."""
        found: dict[tuple[str, bool], tuple[int, ...]] = {}
        for i, profile in enumerate(self.profiles):
            key = profile.name, profile.work_unit == "steps"
            found[key] = (*found.get(key, ()), i)
        return found


def bounded(history: Sequence[Profile], limit: int = MAX_HISTORY) -> tuple[Profile, ...]:
    """At most `limit` profiles: those measured in most configurations, by name where equal; in the given order."""
    if len(history) <= limit:
        return tuple(history)
    order = sorted(range(len(history)), key=lambda i: (-len(history[i].cells), history[i].name, i))
    return tuple(history[i] for i in sorted(order[:limit]))


def past(history: Sequence[Profile], prior: PhysicsPrior, limit: int = MAX_HISTORY) -> History:
    """The history on the grid of its own cells, bounded, without jobs that have no usable cell.

    Rows are in work per second: those of jobs that count steps of a fixed batch per worker are multiplied by w.
    """
    profiles = bounded(history, limit)
    grid, rows = observe([Observations(p.name, cells=p.cells) for p in profiles], ())
    keep = np.flatnonzero(rows.measured_JN.any(axis=1))
    profiles, rows = tuple(profiles[i] for i in keep), rows.take(keep)
    if keep.size:
        population = unseen_population(prior, grid)
        place = on_grid(population, grid)
        in_steps_J = np.array([p.work_unit == "steps" for p in profiles], dtype=bool)
        rows = rows.shifted(counts_steps(population, rows, place, in_steps_J), place.log_workers_K)
    return History(profiles, grid, rows)


def counts_steps(population: Population, rows: Rows, place: Field, in_steps_J: BoolArray) -> FloatArray:
    """1 for jobs in steps/s whose cells fit a fixed batch per worker better than a fixed total batch, else 0 (J).

    With a fixed batch per worker w workers do w times the work in a step, so T w is the work per second. Until more
    than one worker was measured nobody can tell, and such a job is tried with more.
    """
    many_J = (rows.measured_JN & (place.multi_K[rows.at_JN] > 0)).any(axis=1)
    ask = np.flatnonzero(in_steps_J & many_J)
    found_J = np.zeros(in_steps_J.size)
    if ask.size:
        part, centre = rows.take(ask), population_centre(population, place, ask.size)
        as_work = part.shifted(np.ones(ask.size), place.log_workers_K)
        gain_J = solve(place, as_work, centre).log_evidence_J - solve(place, part, centre).log_evidence_J
        found_J[ask] = gain_J > 0
    return found_J


def learn(history: History, prior: PhysicsPrior) -> Population:
    """The population of `history`; the prior itself where that is empty."""
    if not history.profiles:
        return unseen_population(prior, grid_of(()))
    population = _start(history, prior)
    for round_number in range(ROUNDS):
        place = on_grid(population, history.grid)
        centre = population_centre(population, place, len(history.profiles))
        solution = solve(place, history.rows, centre)
        found = latents(place, history.rows, centre, solution)
        population = _update(population, history, place, solution, found, widths=round_number > 0)
    return _with_links(population, history)


def _with_links(population: Population, history: History) -> Population:
    """The rate kappa at which gradients are exchanged, from past jobs whose bytes are known (`explain`)."""
    bytes_J = np.array([log_bytes(p.features, p.work_unit) for p in history.profiles])
    known = np.flatnonzero(np.isfinite(bytes_J))
    if not known.size:
        return population
    prior, rows = population.prior, history.rows.take(known)
    place = on_grid(population, history.grid)
    centre = population_centre(population, place, known.size)
    found = latents(place, rows, centre, solve(place, rows, centre))
    many_K = np.flatnonzero(place.multi_K)
    if not many_K.size:
        return population
    # z - B - r - d is q, A - r - d is a: their difference needs neither r nor d
    apart_J = (found.ratio_JK - found.speed_JK - place.level_K)[:, many_K].mean(axis=1) - bytes_J[known]
    mean = (apart_J.sum() + LINK_WEIGHT * prior.link_mean) / (known.size + LINK_WEIGHT)
    var = (((apart_J - mean) ** 2).sum() + LINK_WEIGHT * prior.link_std**2) / (known.size + LINK_WEIGHT)
    return replace(population, link_mean=float(mean), link_std=float(np.sqrt(var)))


def log_bytes(features: JobFeatures | None, unit: WorkUnit | None) -> float:
    """ln of the gradient bytes that a worker exchanges per unit of work; NaN where that is not known."""
    if features is None:
        return math.nan
    exchanged = features.gradient_bytes or features.parameter_bytes or 4 * (features.parameters or 0)
    per_step = 1.0 if unit == "steps" else features.batch_per_worker
    if not exchanged or per_step is None or not per_step > 0 or unit == "epochs":
        return math.nan
    return math.log(exchanged / per_step)


def _start(history: History, prior: PhysicsPrior) -> Population:
    population = unseen_population(prior, history.grid)
    place = on_grid(population, history.grid)
    simple_K = place.speed_K + 0.9 * place.log_workers_K
    column_JN, measured_JN = history.rows.column_JN, history.rows.measured_JN
    apart_JN = np.where(measured_JN, history.rows.log_JN - simple_K[column_JN], 0.0)
    scale_J = apart_JN.sum(axis=1) / measured_JN.sum(axis=1)
    return replace(population, scale_mean=float(scale_J.mean()))


def _update(
    population: Population,
    history: History,
    place: Field,
    solution: Solution,
    found: Latents,
    *,
    widths: bool,
) -> Population:
    """One M step."""
    prior, jobs, grid = population.prior, len(history.profiles), history.grid
    first_H = np.array([int(np.flatnonzero(grid.type_K == h)[0]) for h in range(len(grid.host_types))], dtype=np.int64)
    speed_JH = found.speed_JK[:, first_H]
    scale_J = speed_JH.mean(axis=1)
    own_JH = speed_JH - scale_J[:, None]
    datasheet_H = kernels(grid, prior).log_speed_H
    centred_H = datasheet_H - datasheet_H.mean()
    speed_H = (own_JH.sum(axis=0) + centred_H) / (jobs + 1.0)
    spread_JH = own_JH - speed_H
    type_HH = prior.type_weight * prior.type_std**2 * np.eye(first_H.size) + spread_JH.T @ spread_JH
    type_HH += _type_uncertainty(history.rows, place, solution, first_H, prior.scale_std**2)
    ratio_JK = found.ratio_JK - own_JH[:, grid.type_K]
    level_K, ratio_J = _levels(population, place, ratio_JK - datasheet_H.mean(), jobs)
    ratio_mean = (ratio_J.sum() + RATIO_WEIGHT / 2 * prior.ratio_mean) / (jobs + RATIO_WEIGHT / 2)
    ratio_var = (((ratio_J - ratio_mean) ** 2).sum() + RATIO_WEIGHT * prior.ratio_std**2) / (jobs + RATIO_WEIGHT)
    return replace(
        population,
        speed_H=speed_H - centred_H,
        type_HH=type_HH / (prior.type_weight + jobs),
        scale_mean=float(scale_J.mean() - datasheet_H.mean()),
        ratio_mean=float(ratio_mean),
        ratio_std=float(np.sqrt(ratio_var)),
        level_weights_K=level_K,
        class_scale=_class_scales(population, history, solution) if widths else population.class_scale,
    )


def _levels(population: Population, place: Field, ratio_JK: FloatArray, jobs: int) -> tuple[FloatArray, FloatArray]:
    """(weights of B's process, q of each job), from q + B + delta of each job at each cell."""
    known = kernels(place.grid, population.prior)
    multi_K = place.multi_K > 0
    apart_JK = ratio_JK - place.level_K
    ratio_J = apart_JK[:, multi_K].mean(axis=1) if multi_K.any() else np.zeros(jobs)
    shift_K = (apart_JK - ratio_J[:, None]).mean(axis=0) + place.level_K - known.level_mean_K
    seen_KK = known.level_KK + place.deviation_KK / jobs + 1e-6 * np.eye(shift_K.size)
    weights_K: FloatArray = np.linalg.solve(seen_KK, shift_K)
    return weights_K, ratio_J


def _type_uncertainty(rows: Rows, place: Field, solution: Solution, first_H: IntArray, scale_var: float) -> FloatArray:
    """Sum over jobs of the posterior covariance of their speeds, relative to their mean over host types (H x H)."""
    at_JN, types = rows.at_JN, first_H.size
    cov_HH = scale_var + place.type_KK[np.ix_(first_H, first_H)]
    cross_JNH = scale_var + (1 - solution.slope_JN)[:, :, None] * place.type_KK[at_JN][:, :, first_H]
    half_JNH = solution.whiten_JNN @ (cross_JNH * rows.measured_JN[:, :, None])
    total_HH = rows.column_JN.shape[0] * cov_HH - np.einsum("jnh,jni->hi", half_JNH, half_JNH)
    centring_HH = np.eye(types) - 1.0 / types
    out: FloatArray = centring_HH @ total_HH @ centring_HH
    return out


def _class_scales(population: Population, history: History, solution: Solution) -> dict[tuple[str, bool], float]:
    """How much wider than the prior jobs deviate in each link class: sqrt of the mean of delta' K^-1 delta / cells."""
    grid, rows, prior = history.grid, history.rows, population.prior
    base_KK = kernels(grid, prior).deviation_KK
    place = on_grid(population, grid)
    class_K = kernels(grid, prior).class_K
    at_JN = rows.at_JN
    pair = at_JN[:, :, None], at_JN[:, None, :]
    prior_JNN = place.deviation_KK[pair]
    cross_JNN = -prior_JNN * solution.slope_JN[:, None, :] * rows.measured_JN[:, None, :]
    mean_JN = (cross_JNN @ solution.weight_JN[:, :, None])[:, :, 0]
    half_JNN = solution.whiten_JNN @ cross_JNN.transpose(0, 2, 1)
    second_JNN = prior_JNN - half_JNN.transpose(0, 2, 1) @ half_JNN + mean_JN[:, :, None] * mean_JN[:, None, :]
    scales = {}
    for c in np.unique(class_K[grid.workers_K > 1]):
        in_class_JN = rows.measured_JN & (class_K[at_JN] == c) & (grid.workers_K[at_JN] > 1)
        cells = in_class_JN.sum()
        both_JNN = in_class_JN[:, :, None] & in_class_JN[:, None, :]
        cov_JNN = np.where(both_JNN, base_KK[pair], np.eye(at_JN.shape[1]))
        seen = np.trace(np.linalg.solve(cov_JNN, np.where(both_JNN, second_JNN, 0.0)), axis1=1, axis2=2).sum()
        weight = prior.class_weight * max(1, int(((class_K == c) & (grid.workers_K > 1)).sum()))
        k = int(np.flatnonzero(class_K == c)[0])
        scales[grid.configurations[k].host_type, grid.configurations[k].hosts > 1] = float(
            np.sqrt((weight + seen) / (weight + cells))
        )
    return scales
