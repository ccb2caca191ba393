"""Sia (Jayaram Subramanya et al., SOSP'23): an integer programme over jobs and configurations, solved by HiGHS.

Configurations of a type: powers of two inside a host, then whole hosts. Each job's row of the goodput matrix (here:
throughput at the job's own batch) is divided by its minimum. minimise sum A (r G)^p + lambda (1 - |A|) with p = -0.5,
lambda = 1.1. The restart factor r = (T - N S) / (T + S) of a running job (age T, N restarts, cost S) lowers every
configuration but its own; it is 1 while the job is younger than its restart cost, and floored at 0. Weights are not
rounded (the authors' code rounds to two decimals, which makes ties). Scale-up is not limited to twofold a round, since
the curves are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from heet_elastic.scheduler.api import BoolArray, Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.options import build_options, in_canonical_order, some


@dataclass(frozen=True, slots=True)
class Sia:
    """Sia's policy in 60-second rounds."""

    name: str = "sia"
    interval_s: float = 60.0
    power: float = -0.5
    unallocated: float = 1.1  # lambda
    time_limit_s: float = 10.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the job's weight in the programme where it runs."""
        return in_canonical_order(lambda p, _: _choose(self, p), problem, rng)


def sia_configurations_HW(problem: Problem, most: int) -> BoolArray:
    """Counts that Sia considers on each type: powers of two up to a host, then whole hosts."""
    types = len(problem.host_types)
    valid = np.zeros((types, most), dtype=bool)
    for h in range(types):
        sizes = problem.group_gpus_G[problem.group_type_G == h]
        if not len(sizes):
            continue
        host = int(sizes.max())
        counts = {2**k for k in range(host.bit_length()) if 2**k <= host}
        counts |= {host * n for n in range(1, int((sizes == host).sum()) + 1)}
        valid[h, [w - 1 for w in counts if w <= most]] = True
    return valid


def sia_weights(goodput_JK: FloatArray, restart_JK: FloatArray, power: float) -> FloatArray:
    """(r G)^p with every row of G divided by its minimum; inf = not possible."""
    possible = goodput_JK > 0
    least = np.where(possible, goodput_JK, np.inf).min(axis=1, initial=np.inf)
    relative = np.where(possible, goodput_JK / np.where(np.isfinite(least), least, 1.0)[:, None], 1.0) * restart_JK
    return np.where(possible & (relative > 0), np.where(relative > 0, relative, 1.0) ** power, np.inf)


def solve_assignment(
    weight_JK: FloatArray, need_KH: IntArray, gpus_H: IntArray, unallocated: float, time_limit_s: float
) -> IntArray:
    """The configuration of each job (-1 = none) with the least sum of weights + `unallocated` for each job without one.

    need_KH[k, h]: GPUs of type h that configuration k takes. Raises RuntimeError when HiGHS finds no solution in time.
    """
    jobs = len(weight_JK)
    row, column = np.nonzero(weight_JK < unallocated)
    result = np.full(jobs, -1)
    if not len(row):
        return result
    n = len(row)
    one_each = csr_array((np.ones(n), (row, np.arange(n))), shape=(jobs, n))
    need = need_KH[column]
    at, types = np.nonzero(need)
    within = csr_array((need[at, types].astype(float), (types, at)), shape=(len(gpus_H), n))
    solution = milp(
        weight_JK[row, column] - unallocated,
        integrality=np.ones(n, dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(one_each, ub=1.0), LinearConstraint(within, ub=gpus_H.astype(float))],
        options={"time_limit": time_limit_s},
    )
    if solution.x is None:
        raise RuntimeError(f"HiGHS found no assignment of {jobs} jobs within {time_limit_s:g} s: {solution.message}")
    picked = np.flatnonzero(solution.x > 0.5)
    result[row[picked]] = column[picked]
    return result


def restart_factor_J(problem: Problem) -> FloatArray:
    """r = (T - N S) / (T + S) of running jobs; 1 for others and while the job is younger than S; at least 0."""
    age, cost = problem.age_s_J, problem.rescale_up_s_J
    factor = np.maximum((age - problem.rescales_J * cost) / np.maximum(age + cost, 1e-9), 0.0)
    return np.where((problem.current_workers_J() > 0) & (age > cost), factor, 1.0)


def _choose(policy: Sia, problem: Problem) -> Choice:
    options = build_options(problem)
    jobs, types, most = options.speed_JHW.shape
    valid = sia_configurations_HW(problem, most)
    # A job that cannot use any of them (a minimum or allowed counts in between) gets its least possible count.
    usual = some((options.speed_JHW > 0) & valid, (1, 2))
    speed = np.where(valid | ~usual[:, None, None], options.speed_JHW, 0.0)
    kind, count = np.nonzero((speed > 0).any(axis=0))
    goodput = speed[:, kind, count]
    own = (options.current_type_J[:, None] == kind) & (options.current_J[:, None] == count + 1)
    restart = np.where(own, 1.0, restart_factor_J(problem)[:, None])
    weight = sia_weights(goodput, restart, policy.power)
    need = np.zeros((len(kind), types), dtype=np.int64)
    need[np.arange(len(kind)), kind] = count + 1
    picked = solve_assignment(weight, need, options.gpus_H, policy.unallocated, policy.time_limit_s)
    chosen = picked >= 0
    type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    type_J[chosen], workers_J[chosen] = kind[picked[chosen]], count[picked[chosen]] + 1
    price = np.full(jobs, np.nan)
    price[chosen] = weight[np.flatnonzero(chosen), picked[chosen]]
    return options.choice(type_J, workers_J, price, "Sia's integer programme")
