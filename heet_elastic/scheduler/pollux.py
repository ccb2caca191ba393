"""Pollux (Qiao et al., OSDI'21) with a fixed batch: the power mean (p = -1) of the jobs' speedups is maximised.

speedup_j(w) = T_j(w) / T_j(fair share); fitness = (mean of speedup^p)^(1/p). With p = -1 that is the least sum of
1/speedup, solved here exactly by dynamic programming over jobs (the authors search with a genetic algorithm). The
re-allocation factor (T - N S)/(T + S) lowers every count but the current one. Blind to host types.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.blind import assign_types, mean_curve_JW
from heet_elastic.scheduler.options import build_options, in_canonical_order
from heet_elastic.scheduler.sia import restart_factor_J

NOTHING = 1e6
"""1/speedup of a job without GPUs: so large that as many jobs as possible run."""


@dataclass(frozen=True, slots=True)
class Pollux:
    """Pollux's allocation for jobs whose batch size is fixed."""

    name: str = "pollux"
    interval_s: float = 60.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is 1/speedup of the count that was chosen."""
        return in_canonical_order(_choose, problem, rng)


def least_cost_counts(cost_JW: FloatArray, nothing_J: FloatArray, gpus: int) -> IntArray:
    """Counts with the least sum of cost_JW[j, w-1] (inf = not possible; `nothing_J` for 0), at most `gpus` in all.

    Dynamic programming over jobs, O(J x gpus x W).
    """
    jobs, most = cost_JW.shape
    most = min(most, gpus)
    table = np.c_[nothing_J, cost_JW[:, :most]]
    best = np.zeros(gpus + 1)
    picked = np.zeros((jobs, gpus + 1), dtype=np.int64)
    shift = np.arange(gpus + 1)[:, None] - np.arange(most + 1)[None, :]
    for j in range(jobs):
        total = np.where(shift >= 0, best[np.maximum(shift, 0)], np.inf) + table[j]
        picked[j] = total.argmin(axis=1)
        best = total[np.arange(gpus + 1), picked[j]]
    counts, left = np.zeros(jobs, dtype=np.int64), gpus
    for j in range(jobs - 1, -1, -1):
        counts[j] = picked[j, left]
        left -= int(counts[j])
    return counts


def _choose(problem: Problem, rng: np.random.Generator) -> Choice:
    del rng
    options = build_options(problem)
    curve = mean_curve_JW(options)
    jobs = len(curve)
    gpus = int(options.gpus_H.sum())
    possible = curve > 0
    runnable = int(possible.any(axis=1).sum())
    share = min(max(gpus // max(runnable, 1), 1), curve.shape[1])
    below = possible[:, :share]
    fair = np.where(below.any(axis=1), share - 1 - below[:, ::-1].argmax(axis=1), possible.argmax(axis=1))
    reference = curve[np.arange(jobs), fair]
    own = np.arange(1, curve.shape[1] + 1) == options.current_J[:, None]
    factor = np.where(own, 1.0, np.maximum(restart_factor_J(problem), 1e-3)[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(possible, reference[:, None] / (curve * factor), np.inf)
    counts = least_cost_counts(cost, np.where(possible.any(axis=1), NOTHING, 0.0), gpus)
    chosen = np.where(counts > 0, cost[np.arange(jobs), np.maximum(counts, 1) - 1], np.nan)
    order = np.argsort(-counts, kind="stable")
    return assign_types(options, counts, order, chosen, "Pollux")
