"""Gavel (Narayanan et al., OSDI'20): fractions of time on each host type by a linear programme, realised in rounds.

X[m,h] in [0,1]: sum_h X[m,h] <= 1, sum_m scale_m X[m,h] <= GPUs_h; throughput(m,X) = sum_h T[m,h] X[m,h] at the
requested count. `las`: maximise min_m scale_m throughput(m,X) / (w_m throughput(m,X_equal)). `jct`: minimise
sum_m (age_m + steps_m / throughput(m,X)), by tangents of 1/x until the gap is 0.1 %.
A round of 360 s gives type h to jobs in order of X[m,h] / f[m,h], f = the fraction of its time that m has had h;
leftover GPUs also go to jobs with X = 0. A job that started within the round is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, lil_array, vstack

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.fifo import asked_for
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order

Goal = Literal["las", "jct"]

MOST_CUTS = 30
"""Rounds of tangents; 3 to 8 are usual."""


@dataclass(frozen=True, slots=True)
class Gavel:
    """Gavel's policies: least attained service (max-min), or least sum of completion times."""

    name: str = "gavel"
    interval_s: float = 360.0
    goal: Goal = "las"
    time_limit_s: float = 10.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is -1 x the job's priority X/f in this round."""
        return in_canonical_order(lambda p, _: _choose(self, p), problem, rng)


def solve_las(
    speed_MH: FloatArray, scale_M: IntArray, gpus_H: IntArray, weight_M: FloatArray, limit_s: float
) -> FloatArray:
    """X_MH of the max-min programme. The optimum is often not unique."""
    jobs, types = speed_MH.shape
    equal = speed_MH @ (gpus_H / max(int(gpus_H.sum()), 1))
    share = speed_MH * (scale_M / np.where(equal > 0, equal, 1.0) / weight_M)[:, None]
    upper, bound = _capacity(scale_M, gpus_H, jobs * types + 1)
    at_least = _rows(-share, jobs * types + 1)
    at_least[:, [jobs * types]] = 1.0
    return _solve(-1.0, vstack([upper, at_least.tocsr()]), np.r_[bound, np.zeros(jobs)], jobs, types, limit_s)[0]


def solve_jct(
    speed_MH: FloatArray, scale_M: IntArray, gpus_H: IntArray, steps_M: FloatArray, limit_s: float
) -> FloatArray:
    """X_MH whose sum of remaining times is within 0.1 % of the least, by cutting planes.

    time_m = alone_m y_m with y_m >= 1/p - (x_m - p)/p^2 for every point p at which the throughput x_m was met.
    """
    jobs, types = speed_MH.shape
    fastest = speed_MH.max(axis=1)
    relative = speed_MH / fastest[:, None]
    width = jobs * types + jobs
    upper, bound = _capacity(scale_M, gpus_H, width)
    alone = steps_M / fastest
    cost = alone / alone.sum()
    share = np.zeros((jobs, types))
    points = [np.full(jobs, p) for p in (1.0, 0.3, 0.1, 0.03, 0.01)]
    for _ in range(MOST_CUTS):
        while points:
            p = points.pop()
            rows = _rows(-relative / p[:, None] ** 2, width)
            rows[np.arange(jobs), jobs * types + np.arange(jobs)] = -1.0
            upper, bound = vstack([upper, rows.tocsr()]), np.r_[bound, -2.0 / p]
        share, below = _solve(cost, upper, bound, jobs, types, limit_s)
        met = np.maximum((relative * share).sum(axis=1), 1e-4)
        if float((cost / met).sum()) <= 1.001 * below:
            break
        points.append(met)
    return share


def _rows(coefficient_MH: FloatArray, width: int) -> lil_array:
    """One row per job with its types' coefficients, as an editable sparse matrix."""
    jobs, types = coefficient_MH.shape
    row = np.repeat(np.arange(jobs), types)
    matrix = csr_array((coefficient_MH.ravel(), (row, np.arange(jobs * types))), shape=(jobs, width))
    return matrix.tolil()


def _capacity(scale_M: IntArray, gpus_H: IntArray, width: int) -> tuple[csr_array, FloatArray]:
    """Rows for sum_h X <= 1 and sum_m scale X <= GPUs."""
    jobs, types = len(scale_M), len(gpus_H)
    column = np.arange(jobs * types)
    whole = csr_array((np.ones(jobs * types), (column // types, column)), shape=(jobs, width))
    used = csr_array((np.repeat(scale_M, types).astype(float), (column % types, column)), shape=(types, width))
    return vstack([whole, used]), np.r_[np.ones(jobs), gpus_H.astype(float)]


def _solve(
    cost: float | FloatArray, upper: csr_array, bound: FloatArray, jobs: int, types: int, limit_s: float
) -> tuple[FloatArray, float]:
    """X_MH and the objective of a programme whose last columns have the given cost."""
    width = upper.shape[1]
    objective = np.zeros(width)
    objective[jobs * types :] = cost
    matrix: Any = upper
    solution = linprog(objective, A_ub=matrix, b_ub=bound, method="highs", options={"time_limit": limit_s})
    if solution.x is None:
        raise RuntimeError(f"HiGHS found no allocation of {jobs} jobs within {limit_s:g} s: {solution.message}")
    return np.clip(solution.x[: jobs * types].reshape(jobs, types), 0.0, 1.0), float(solution.fun or 0.0)


def _choose(policy: Gavel, problem: Problem) -> Choice:
    options = build_options(problem)
    wants = asked_for(problem, options)
    jobs, types, _ = options.speed_JHW.shape
    index = np.maximum(wants - 1, 0)[:, None, None]
    speed = np.take_along_axis(options.speed_JHW, np.broadcast_to(index, (jobs, types, 1)), axis=2)[:, :, 0]
    speed = np.where(wants[:, None] > 0, speed, 0.0)
    rows = np.flatnonzero(speed.max(axis=1, initial=0.0) > 0)
    share = np.zeros((jobs, types))
    if len(rows):
        args = (speed[rows], wants[rows], options.gpus_H)
        if policy.goal == "las":
            share[rows] = solve_las(*args, problem.priority_J[rows], policy.time_limit_s)
        else:
            share[rows] = solve_jct(*args, problem.remaining_J[rows] * problem.priority_J[rows], policy.time_limit_s)
    had = problem.received_s_JH / np.maximum(wants[:, None] * problem.age_s_J[:, None], 1e-9)
    priority = np.where(speed > 0, share / np.maximum(had, 1e-6), -1.0)
    return _round(policy, problem, options, wants, speed, priority)


def _round(
    policy: Gavel, problem: Problem, options: Options, wants: IntArray, speed: FloatArray, priority: FloatArray
) -> Choice:
    """Give GPUs by priority, then what is left by throughput relative to the job's best type."""
    jobs = len(wants)
    type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    current_type, current, free = options.current_type_J, options.current_J, options.gpus_H.copy()
    for j in np.flatnonzero(options.stays_J & (problem.since_rescale_s_J < policy.interval_s)):
        if current[j] == wants[j] and free[current_type[j]] >= current[j]:
            type_J[j], workers_J[j] = current_type[j], current[j]
            free[current_type[j]] -= current[j]
    best = speed.max(axis=1, initial=0.0)
    relative = speed / np.where(best > 0, best, 1.0)[:, None]
    # Equal priorities: where the job is already, then where it is fastest.
    here = current_type[:, None] == np.arange(speed.shape[1])
    row, column = np.nonzero((speed > 0) & (type_J < 0)[:, None])
    keys = (-relative[row, column], ~here[row, column], -priority[row, column])
    for i in np.lexsort(keys):
        m, h = int(row[i]), int(column[i])
        if type_J[m] < 0 and wants[m] <= free[h]:
            type_J[m], workers_J[m] = h, wants[m]
            free[h] -= wants[m]
    return options.choice(type_J, workers_J, -priority.max(axis=1, initial=0.0), f"Gavel ({policy.goal})")
