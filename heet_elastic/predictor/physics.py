"""The compute + communication model (`kernels`) of a population of jobs, and one job's posterior given its cells.

All parts are Gaussian but ln T is not linear in z, so the posterior is found by linearising at the current estimate
and conditioning again (iterated extended Kalman update; Bell & Cathey, IEEE TAC 1993), for all jobs at once:

    f_k ~ A_k + ln w - [ln(1 + exp z0) + p (z_k - z0)] + e_k,            p = d ln(1 + exp z) / dz = logistic(z0)
    cov(f_k, f_l) = u_k u_l var(a) + v_k v_l [(1-p_k)(1-p_l) D_kl + p_k p_l (var(q) + Delta_kl) + R_kl]

with D, Delta, R the covariances of d, delta, e; v = 1 for a job about which nothing is known but the population, less
for a job centred on a similar past one (`Centre.width_JK`); u = 1, or 1 - p where physical features tie q to a
(`Centre.coupling_J`).
Shape suffixes: J jobs, K configurations, N measured cells of a job, H host types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from heet_elastic.predictor import batched
from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.kernels import PhysicsPrior, kernels
from heet_elastic.predictor.rows import Grid, IntArray, Rows, grid_of

ITERATIONS = 5
TOLERANCE = 1e-2
"""Linearising stops after that many times, or when no z moved further than this."""

LONGEST_STEP = 1.5


@dataclass(frozen=True, eq=False)
class Population:
    """What past jobs say about host types and configurations; without past jobs, what the prior says.

    level_weights_K: B = prior mean + covariance with `level_grid` x weights, on any grid.
    class_scale: (host type, across hosts) -> how much wider than `prior` jobs deviate there.
    """

    prior: PhysicsPrior
    host_types: tuple[str, ...]
    speed_H: FloatArray  # r minus its datasheet prior
    type_HH: FloatArray  # D
    scale_mean: float
    ratio_mean: float
    ratio_std: float
    link_mean: float  # kappa: -ln of the bytes/s at which gradients are exchanged where B = 0
    link_std: float
    level_grid: Grid
    level_weights_K: FloatArray
    class_scale: Mapping[tuple[str, bool], float]


@dataclass(frozen=True, eq=False)
class Field:
    """A population on a grid: means and covariances of its parts."""

    grid: Grid
    speed_K: FloatArray  # r
    level_K: FloatArray  # B
    type_KK: FloatArray  # D
    deviation_KK: FloatArray  # Delta
    rest_KK: FloatArray  # R
    log_workers_K: FloatArray
    multi_K: FloatArray


@dataclass(frozen=True)
class Centre:
    """Where the latent parts of jobs are expected before their cells, and how well: row `of_J[j]` of C centres."""

    speed_CK: FloatArray  # A
    ratio_CK: FloatArray  # z
    rest_CK: FloatArray  # e
    unsure_CK: FloatArray  # 0 = the centre is known there, 1 = no better than the population's
    of_J: IntArray
    width_J: FloatArray  # v where the centre is known
    scale_var_J: FloatArray  # of a
    ratio_var_J: FloatArray  # of q, before v
    coupling_J: FloatArray  # 1 = q moves with a

    def take(self, jobs: IntArray) -> Centre:
        """The centre of these jobs."""
        return replace(
            self,
            of_J=self.of_J[jobs],
            width_J=self.width_J[jobs],
            scale_var_J=self.scale_var_J[jobs],
            ratio_var_J=self.ratio_var_J[jobs],
            coupling_J=self.coupling_J[jobs],
        )

    def width_JN(self, at_JN: IntArray) -> FloatArray:
        """v at some columns of each job: its variance is the job's own and what is not known of the centre."""
        own_J1 = self.width_J[:, None] ** 2
        return np.asarray(np.sqrt(own_J1 + (1.0 - own_J1) * self.unsure_CK[self.of_J[:, None], at_JN]))

    @property
    def width_JK(self) -> FloatArray:
        """v at every column."""
        own_J1 = self.width_J[:, None] ** 2
        return np.asarray(np.sqrt(own_J1 + (1.0 - own_J1) * self.unsure_CK[self.of_J]))


@dataclass(frozen=True)
class Solution:
    """The linearised posterior at the measured cells. log_evidence_J: ln of the density of what was measured."""

    slope_JN: FloatArray  # p, 0 at pads and for one worker
    weight_JN: FloatArray  # (covariance + noise)^-1 (measured - expected)
    whiten_JNN: FloatArray  # L^-1 of that covariance, lower triangular
    log_evidence_J: FloatArray

    def take(self, jobs: IntArray) -> Solution:
        """The solution of these jobs."""
        return Solution(self.slope_JN[jobs], self.weight_JN[jobs], self.whiten_JNN[jobs], self.log_evidence_J[jobs])


@lru_cache(maxsize=16)
def on_grid(population: Population, grid: Grid) -> Field:
    """`population` on `grid`; host types and configurations that no past job used get the prior."""
    known = kernels(grid, population.prior)
    position = {h: i for i, h in enumerate(population.host_types)}
    at_H = np.array([position.get(h, -1) for h in grid.host_types], dtype=np.int64)
    type_HH = np.diag(np.full(at_H.size, population.prior.type_std**2))
    both = np.flatnonzero(at_H >= 0)
    speed_H = known.log_speed_H.copy()
    if both.size:
        type_HH[np.ix_(both, both)] = population.type_HH[np.ix_(at_H[both], at_H[both])]
        speed_H[both] += population.speed_H[at_H[both]]
    scale_K = np.array([population.class_scale.get((c.host_type, c.hosts > 1), 1.0) for c in grid.configurations])
    scale_KK = np.outer(scale_K, scale_K)
    return Field(
        grid=grid,
        speed_K=speed_H[grid.type_K],
        level_K=known.level_mean_K + _level_shift(population, grid),
        type_KK=type_HH[np.ix_(grid.type_K, grid.type_K)],
        deviation_KK=known.deviation_KK * scale_KK,
        rest_KK=known.rest_KK * scale_KK,
        log_workers_K=known.log_workers_K,
        multi_K=known.multi_K,
    )


def _level_shift(population: Population, grid: Grid) -> FloatArray:
    learned = population.level_grid.configurations
    if not learned:
        return np.zeros(len(grid.configurations))
    joint = grid_of(grid.configurations, learned)
    at = [joint.index[c] for c in learned]
    cov_KK = kernels(joint, population.prior).level_KK[: len(grid.configurations), at]
    shift_K: FloatArray = cov_KK @ population.level_weights_K
    return shift_K


def unseen_population(prior: PhysicsPrior, grid: Grid) -> Population:
    """The population before any past job: what the prior says, with the host types of `grid` (possibly none)."""
    types = len(grid.host_types)
    return Population(
        prior=prior,
        host_types=grid.host_types,
        speed_H=np.zeros(types),
        type_HH=prior.type_std**2 * np.eye(types),
        scale_mean=0.0,
        ratio_mean=prior.ratio_mean,
        ratio_std=prior.ratio_std,
        link_mean=prior.link_mean,
        link_std=prior.link_std,
        level_grid=grid,
        level_weights_K=np.zeros(len(grid.configurations)),
        class_scale={},
    )


def population_centre(population: Population, place: Field, jobs: int) -> Centre:
    """The centre of jobs about which nothing is known but the population."""
    return Centre(
        speed_CK=(population.scale_mean + place.speed_K)[None, :],
        ratio_CK=(population.ratio_mean + place.speed_K + place.level_K)[None, :],
        rest_CK=np.zeros((1, place.speed_K.size)),
        unsure_CK=np.ones((1, place.speed_K.size)),
        of_J=np.zeros(jobs, dtype=np.int64),
        width_J=np.ones(jobs),
        scale_var_J=np.full(jobs, population.prior.scale_std**2),
        ratio_var_J=np.full(jobs, population.ratio_std**2),
        coupling_J=np.zeros(jobs),
    )


@dataclass(frozen=True)
class _Gathered:
    """Covariances and means at the measured cells."""

    at_JN: IntArray
    type_JNN: FloatArray
    ratio_JNN: FloatArray  # var(q) + Delta
    rest_JNN: FloatArray
    speed_JN: FloatArray
    ratio_JN: FloatArray
    rest_JN: FloatArray
    multi_JN: FloatArray
    width_JN: FloatArray


def _gathered(place: Field, rows: Rows, centre: Centre) -> _Gathered:
    at_JN = rows.at_JN
    pair = at_JN[:, :, None] * len(place.grid.configurations) + at_JN[:, None, :]
    of_J1 = centre.of_J[:, None]
    return _Gathered(
        at_JN=at_JN,
        type_JNN=place.type_KK.ravel().take(pair),
        ratio_JNN=place.deviation_KK.ravel().take(pair) + centre.ratio_var_J[:, None, None],
        rest_JNN=place.rest_KK.ravel().take(pair),
        speed_JN=centre.speed_CK[of_J1, at_JN] + place.log_workers_K[at_JN],
        ratio_JN=centre.ratio_CK[of_J1, at_JN],
        rest_JN=centre.rest_CK[of_J1, at_JN],
        multi_JN=place.multi_K[at_JN] * rows.measured_JN,
        width_JN=centre.width_JN(at_JN),
    )


def solve(place: Field, rows: Rows, centre: Centre, iterations: int = ITERATIONS) -> Solution:
    """Condition jobs on their measured cells, linearising at most `iterations` times (the first time at the centre)."""
    g = _gathered(place, rows, centre)
    z_JN = g.ratio_JN
    for iteration in range(iterations):
        p_JN = _logistic(z_JN) * g.multi_JN
        u_JN = 1.0 - centre.coupling_J[:, None] * p_JN
        expected_JN = g.speed_JN + g.rest_JN - np.logaddexp(0.0, z_JN) * g.multi_JN - p_JN * (g.ratio_JN - z_JN)
        residual_JN = np.where(rows.measured_JN, rows.log_JN - expected_JN, 0.0)
        cov_JNN = _covariance(g, rows, centre, p_JN, u_JN)
        if iteration == iterations - 1:
            break
        weight_JN = batched.solve(cov_JNN, residual_JN)
        wide_JN = g.width_JN * weight_JN
        pull_JN = g.width_JN * (_times(g.type_JNN, (1 - p_JN) * wide_JN) - _times(g.ratio_JNN, p_JN * wide_JN))
        pull_JN += (centre.coupling_J * centre.scale_var_J * (u_JN * weight_JN).sum(axis=1))[:, None]
        step_JN = np.clip(g.ratio_JN + pull_JN - z_JN, -LONGEST_STEP, LONGEST_STEP) * g.multi_JN
        # A job that has settled stays where it is: its result must not depend on the jobs beside it.
        step_JN *= np.abs(step_JN).max(axis=1, keepdims=True) >= TOLERANCE
        if not step_JN.any():
            break
        z_JN = z_JN + step_JN * (1.0 if iteration < 3 else 0.7)
    whiten_JNN = batched.whitener(cov_JNN)
    white_JN = _times(whiten_JNN, residual_JN)
    weight_JN = _times(whiten_JNN.transpose(0, 2, 1), white_JN)
    log_evidence_J = np.log(np.diagonal(whiten_JNN, axis1=1, axis2=2)).sum(axis=1) - 0.5 * (white_JN**2).sum(axis=1)
    return Solution(p_JN, weight_JN, whiten_JNN, log_evidence_J)


def _covariance(g: _Gathered, rows: Rows, centre: Centre, p_JN: FloatArray, u_JN: FloatArray) -> FloatArray:
    """Covariance of what was measured, noise included; pads are independent unit cells."""
    cov_JNN, part_JNN = np.empty_like(g.type_JNN), np.empty_like(g.type_JNN)
    _scaled(g.type_JNN, g.width_JN * (1 - p_JN), cov_JNN)
    cov_JNN += _scaled(g.ratio_JNN, g.width_JN * p_JN, part_JNN)
    cov_JNN += _scaled(g.rest_JNN, g.width_JN, part_JNN)
    cov_JNN += np.multiply((centre.scale_var_J[:, None] * u_JN)[:, :, None], u_JN[:, None, :], out=part_JNN)
    cov_JNN *= rows.pair_JNN
    diagonal = np.arange(p_JN.shape[1])
    cov_JNN[:, diagonal, diagonal] += np.where(rows.measured_JN, rows.std_JN**2, 1.0)
    return cov_JNN


def _scaled(matrix_JNN: FloatArray, factor_JN: FloatArray, out_JNN: FloatArray) -> FloatArray:
    """Rows and columns times a factor, into `out_JNN`."""
    np.multiply(matrix_JNN, factor_JN[:, :, None], out=out_JNN)
    out_JNN *= factor_JN[:, None, :]
    return out_JNN


def _times(matrix_JNN: FloatArray, vector_JN: FloatArray) -> FloatArray:
    out: FloatArray = (matrix_JNN @ vector_JN[:, :, None])[:, :, 0]
    return out


def _logistic(z: FloatArray) -> FloatArray:
    out: FloatArray = 0.5 * (1.0 + np.tanh(0.5 * z))
    return out


@dataclass(frozen=True)
class Latents:
    """Posterior means over the grid (J x K): A, z, e; `row` is ln T without the noise of measured cells."""

    speed_JK: FloatArray
    ratio_JK: FloatArray
    rest_JK: FloatArray
    row_JK: FloatArray


def latents(place: Field, rows: Rows, centre: Centre, solution: Solution) -> Latents:
    """Posterior means of the parts."""
    p_JN, weight_JN, v_JK = solution.slope_JN, solution.weight_JN, centre.width_JK
    wide_JN = centre.width_JN(rows.at_JN) * weight_JN
    used = np.unique(rows.at_JN)
    u_weight_J = ((1.0 - centre.coupling_J[:, None] * p_JN) * weight_JN).sum(axis=1)
    shared_JK = v_JK * (_spread(rows, (1 - p_JN) * wide_JN, used) @ place.type_KK[used])
    ratio_JK = _spread(rows, p_JN * wide_JN, used) @ place.deviation_KK[used]
    ratio_JK += (centre.ratio_var_J * (p_JN * wide_JN).sum(axis=1))[:, None]
    ratio_JK = shared_JK - v_JK * ratio_JK
    ratio_JK += (centre.coupling_J * centre.scale_var_J * u_weight_J)[:, None] + centre.ratio_CK[centre.of_J]
    speed_JK = centre.speed_CK[centre.of_J] + shared_JK + (centre.scale_var_J * u_weight_J)[:, None]
    rest_JK = centre.rest_CK[centre.of_J] + v_JK * (_spread(rows, wide_JN, used) @ place.rest_KK[used])
    row_JK = speed_JK + place.log_workers_K - np.logaddexp(0.0, ratio_JK) * place.multi_K + rest_JK
    return Latents(speed_JK, ratio_JK, rest_JK, row_JK)


def _spread(rows: Rows, value_JN: FloatArray, used: IntArray) -> FloatArray:
    """Values at measured cells, scattered over the used columns (J x U)."""
    out = np.zeros((value_JN.shape[0], used.size))
    j, n = np.nonzero(rows.measured_JN)
    out[j, np.searchsorted(used, rows.column_JN[j, n])] = value_JN[j, n]
    return out


def variances(place: Field, rows: Rows, centre: Centre, solution: Solution, ratio_JK: FloatArray) -> FloatArray:
    """Posterior variance of ln T over the grid (J x K)."""
    half_JNK, u_JK, _ = _half(place, rows, centre, solution, ratio_JK)
    prior_JK = centre.scale_var_J[:, None] * u_JK**2 + own_variances(place, centre, ratio_JK)
    out: FloatArray = np.maximum(prior_JK - np.einsum("jnk,jnk->jk", half_JNK, half_JNK), 1e-10)
    return out


def own_variances(place: Field, centre: Centre, ratio_JK: FloatArray) -> FloatArray:
    """Variance of ln T before any cell, apart from that of the job's scale (J x K)."""
    p_JK = _logistic(ratio_JK) * place.multi_K
    own_JK = (1 - p_JK) ** 2 * np.diag(place.type_KK) + np.diag(place.rest_KK)
    own_JK += p_JK**2 * (np.diag(place.deviation_KK) + centre.ratio_var_J[:, None])
    return np.asarray(centre.width_JK**2 * own_JK)


def covariances(place: Field, rows: Rows, centre: Centre, solution: Solution, ratio_JK: FloatArray) -> FloatArray:
    """Posterior covariance of ln T over the grid (J x K x K)."""
    half_JNK, u_JK, p_JK = _half(place, rows, centre, solution, ratio_JK)
    ratio_JKK = place.deviation_KK + centre.ratio_var_J[:, None, None]
    v_JK = centre.width_JK
    prior_JKK = centre.scale_var_J[:, None, None] * u_JK[:, :, None] * u_JK[:, None, :]
    prior_JKK += (v_JK[:, :, None] * v_JK[:, None, :]) * (
        (1 - p_JK)[:, :, None] * (1 - p_JK)[:, None, :] * place.type_KK
        + p_JK[:, :, None] * p_JK[:, None, :] * ratio_JKK
        + place.rest_KK
    )
    out: FloatArray = prior_JKK - half_JNK.transpose(0, 2, 1) @ half_JNK
    return out


def _half(
    place: Field, rows: Rows, centre: Centre, solution: Solution, ratio_JK: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(whitened covariance of measured cells with the grid, u, p)."""
    at_JN, p_JN = rows.at_JN, solution.slope_JN
    p_JK = _logistic(ratio_JK) * place.multi_K
    u_JN, u_JK = 1.0 - centre.coupling_J[:, None] * p_JN, 1.0 - centre.coupling_J[:, None] * p_JK
    width_JN, width_JK = centre.width_JN(at_JN) * rows.measured_JN, centre.width_JK
    # In place and factor by factor: for thousands of jobs this is bound by memory, not by arithmetic.
    cov_JNK = place.deviation_KK[at_JN]
    cov_JNK += centre.ratio_var_J[:, None, None]
    cov_JNK *= (width_JN * p_JN)[:, :, None]
    cov_JNK *= (width_JK * p_JK)[:, None, :]
    part_JNK = place.type_KK[at_JN]
    part_JNK *= (width_JN * (1 - p_JN))[:, :, None]
    part_JNK *= (width_JK * (1 - p_JK))[:, None, :]
    cov_JNK += part_JNK
    np.take(place.rest_KK, at_JN, axis=0, out=part_JNK, mode="clip")
    part_JNK *= width_JN[:, :, None]
    part_JNK *= width_JK[:, None, :]
    cov_JNK += part_JNK
    left_JN = centre.scale_var_J[:, None] * u_JN * rows.measured_JN
    cov_JNK += np.multiply(left_JN[:, :, None], u_JK[:, None, :], out=part_JNK)
    return np.matmul(solution.whiten_JNN, cov_JNK, out=part_JNK), u_JK, p_JK
