"""The ways in which a job can be seen before its cells say which is right: as one of the population, or as a past job.

An `Explanation` is where the compute + communication model is centred for some jobs, with its prior weight:

- the population, for every job; where features tell the gradient bytes per unit of work, communication intensity is
  tied to the job's speed:  q = a + ln(bytes) + kappa,  kappa learned from past jobs with features (m / c does not
  depend on the job beyond them: m = bytes / bandwidth);
- the nearest past jobs, for jobs with two cells or more (with one cell, any past job fits up to its factor);
- past jobs of the same name, from the first moment: their speed counts too. Cells that differ overrule the name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from heet_elastic.predictor.api import FloatArray, Observations
from heet_elastic.predictor.learning import History, log_bytes
from heet_elastic.predictor.physics import (
    Centre,
    Field,
    Population,
    latents,
    on_grid,
    own_variances,
    population_centre,
    solve,
    variances,
)
from heet_elastic.predictor.rows import Grid, IntArray, Rows, grid_of

SIMILAR = (0.25, 0.6)
"""A job that resembles a past one deviates from it this much as widely as jobs do from the population: a sibling (the
same model with another batch) or a relative."""

NEAREST = 3
POPULATION_WEIGHT = 0.5
PAST_WEIGHT = 0.4
"""Prior weight of the population, and of all past jobs together (not by name)."""

NAMED_WEIGHT = 5.0
NAMED_SCALE_STD = 0.3
"""A past job of the same name is ten times as likely as the population before any cell, at about its speed."""

MAX_NAMED = 3


@dataclass(frozen=True)
class Explanations:
    """P ways to see jobs: the job of each (ascending), where the model is centred, ln of its prior weight."""

    jobs_P: IntArray
    centre: Centre
    log_prior_P: FloatArray


@dataclass(frozen=True, eq=False)
class Past:
    """Past jobs on a grid. `centres`: C = past jobs; `row_IK`: ln T as measured where it was, completed elsewhere."""

    centres: Centre
    row_IK: FloatArray


@lru_cache(maxsize=8)
def past_on(population: Population, history: History, grid: Grid) -> Past:
    """What past jobs turned out to be, on `grid`."""
    joint = grid_of(grid.configurations, history.grid.configurations)
    at_K = np.array([joint.index[c] for c in history.grid.configurations] + [-1], dtype=np.int64)
    rows = replace(history.rows, column_JN=at_K[history.rows.column_JN])
    place = on_grid(population, joint)
    centre = population_centre(population, place, len(history.profiles))
    solution = solve(place, rows, centre)
    found = latents(place, rows, centre, solution)
    log_IK, measured_IK = rows.dense(len(joint.configurations))
    row_IK = np.where(measured_IK, log_IK, found.row_JK)
    rest_IK = row_IK - (found.row_JK - found.rest_JK)
    keep = slice(0, len(grid.configurations))
    var_IK = variances(place, rows, centre, solution, found.ratio_JK)
    unsure_IK = np.where(measured_IK, 0.0, np.minimum(1.0, var_IK / own_variances(place, centre, found.ratio_JK)))
    none = np.zeros(0)
    centres = Centre(
        speed_CK=np.ascontiguousarray(found.speed_JK[:, keep]),
        ratio_CK=np.ascontiguousarray(found.ratio_JK[:, keep]),
        rest_CK=np.ascontiguousarray(rest_IK[:, keep]),
        unsure_CK=np.ascontiguousarray(unsure_IK[:, keep]),
        of_J=none.astype(np.int64),
        width_J=none,
        scale_var_J=none,
        ratio_var_J=none,
        coupling_J=none,
    )
    return Past(centres, row_IK[:, keep])


def as_population(jobs: Sequence[Observations], population: Population, place: Field) -> Explanations:
    """Every job as one of the population."""
    weight_J = np.full(len(jobs), math.log(POPULATION_WEIGHT))
    return Explanations(np.arange(len(jobs)), _with_features(jobs, population, place), weight_J)


def as_past_jobs(
    jobs: Sequence[Observations], rows: Rows, population: Population, history: History, place: Field
) -> Explanations | None:
    """Jobs as the past jobs nearest to them and those of their name; None where there are none."""
    if not history.profiles:
        return None
    past = past_on(population, history, place.grid)
    ready = np.flatnonzero(rows.measured_JN.sum(axis=1) >= 2)
    near_JM = nearest(rows.take(ready), past.row_IK) if ready.size else np.zeros((0, 0), dtype=np.int64)
    named_at, named_of = _named(jobs, history)
    jobs_P = np.concatenate([np.repeat(ready, near_JM.shape[1]), named_at])
    if not jobs_P.size:
        return None
    of_P = np.concatenate([near_JM.ravel(), named_of])
    named = np.arange(jobs_P.size) >= near_JM.size
    log_prior_P = np.where(named, math.log(NAMED_WEIGHT / MAX_NAMED), math.log(PAST_WEIGHT / len(history.profiles)))
    scale_var_P = np.where(named, NAMED_SCALE_STD, population.prior.scale_std) ** 2
    order = np.repeat(np.argsort(jobs_P, kind="stable"), len(SIMILAR))
    centre = replace(
        past.centres,
        of_J=of_P[order],
        width_J=np.tile(SIMILAR, jobs_P.size),
        scale_var_J=scale_var_P[order],
        ratio_var_J=np.full(order.size, population.ratio_std**2),
        coupling_J=np.zeros(order.size),
    )
    return Explanations(jobs_P[order], centre, log_prior_P[order] - math.log(len(SIMILAR)))


def nearest(rows: Rows, row_IK: FloatArray) -> IntArray:
    """The `NEAREST` past jobs of each job by squared distance up to a factor, nearest first (J x M)."""
    used = np.unique(rows.at_JN)
    log_JK, measured_JK = rows.dense(row_IK.shape[1])
    y_JU, m_JU, r_IU = log_JK[:, used], measured_JK[:, used].astype(np.float64), row_IK[:, used]
    r_IU = r_IU - r_IU.mean(axis=1, keepdims=True)
    count_J1 = np.maximum(m_JU.sum(axis=1, keepdims=True), 1.0)
    y_JU = (y_JU - y_JU.sum(axis=1, keepdims=True) / count_J1) * m_JU
    gap_JI = m_JU @ r_IU.T
    square_JI = m_JU @ (r_IU**2).T - 2.0 * (y_JU @ r_IU.T) - gap_JI**2 / count_J1
    # Equal distances go by the order of past jobs, not by rounding, which depends on the jobs beside this one.
    square_JI = np.round(square_JI, 9) + 1e-12 * np.arange(row_IK.shape[0])
    most = min(NEAREST, row_IK.shape[0])
    near_JM = np.argpartition(square_JI, most - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(square_JI, near_JM, axis=1), axis=1, kind="stable")
    return np.take_along_axis(near_JM, order, axis=1)


def _named(jobs: Sequence[Observations], history: History) -> tuple[IntArray, IntArray]:
    """(jobs, past jobs of their name and unit), at most the `MAX_NAMED` latest of each."""
    pairs = [
        (j, i)
        for j, job in enumerate(jobs)
        if job.name
        for i in history.named.get((job.name, job.work_unit == "steps"), ())[-MAX_NAMED:]
    ]
    return np.array([j for j, _ in pairs], dtype=np.int64), np.array([i for _, i in pairs], dtype=np.int64)


def _with_features(jobs: Sequence[Observations], population: Population, place: Field) -> Centre:
    """The population's centre, with q tied to a for jobs whose gradient bytes are known."""
    centre = population_centre(population, place, len(jobs))
    bytes_J = np.array([log_bytes(job.features, job.work_unit) for job in jobs])
    known_J = np.isfinite(bytes_J)
    if not known_J.any():
        return centre
    tied_J = np.where(known_J, population.scale_mean + bytes_J + population.link_mean, population.ratio_mean)
    return replace(
        centre,
        ratio_CK=(place.speed_K + place.level_K)[None, :] + tied_J[:, None],
        speed_CK=np.repeat(centre.speed_CK, len(jobs), axis=0),
        rest_CK=np.repeat(centre.rest_CK, len(jobs), axis=0),
        unsure_CK=np.repeat(centre.unsure_CK, len(jobs), axis=0),
        of_J=np.arange(len(jobs)),
        ratio_var_J=np.where(known_J, population.link_std**2, population.ratio_std**2),
        coupling_J=known_J.astype(np.float64),
    )
