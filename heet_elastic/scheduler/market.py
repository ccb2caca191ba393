"""Market: one price per host type, one configuration per job (docs/scheduling.md).

    maximise sum_j u_j T'_j(c_j) / (R_j^a Tmax_j^(1-a))    subject to the GPUs of each type

R_j: what is left of job j; a weighs short jobs first against speed. T' charges a rescale inside the objective: over
the time D that a configuration lasts, a change that stalls the job for s seconds leaves T' = T D / (D + s). D is the
least of the job's own remaining time, the mean time between its rescales so far, and what its budget allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.bargain import Bargain
from heet_elastic.scheduler.clearing import SMALL, clear, densities
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order
from heet_elastic.scheduler.sizes import Sizes

NEAR = 0.01
"""With many jobs, what improves on what runs is preferred to a fresh clearing unless that is worth so much more."""


@dataclass(frozen=True, slots=True)
class Market:
    """Clear a market for GPUs. Every parameter has a meaning in seconds or shares; none is tuned to a table.

    patience_s: a job that has waited this long counts four times. rescale_budget: the share of its age that a job may
    spend in rescales before they become dear.
    """

    name: str = "market"
    interval_s: float = 300.0
    patience_s: float = 3600.0
    rescale_budget: float = 0.05
    shortness: float = 0.35

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J: what its GPUs cost per unit of its own value; NaN without GPUs."""
        return in_canonical_order(lambda p, _: _choose(self, p), problem, rng)


def weights_J(policy: Market, problem: Problem, options: Options) -> FloatArray:
    """u_j / (R_j^a Tmax_j^(1-a)): what a unit of work of each job is worth; 0 for a job that can run nowhere."""
    fastest = options.speed_JHW.max(axis=(1, 2), initial=0.0)
    some = fastest > 0
    fastest = np.where(some, fastest, 1.0)
    left_s = np.maximum(problem.remaining_J / fastest, 1e-9)
    urgency = problem.priority_J * (1.0 + problem.waited_s_J / policy.patience_s) ** 2
    return np.where(some, urgency * left_s**-policy.shortness / fastest, 0.0)


def values_JHW(policy: Market, problem: Problem, options: Options, weight_J: FloatArray) -> FloatArray:
    """weight T' of every configuration, T' = the throughput with the rescale charged; 0 = not possible."""
    speed = options.speed_JHW
    work, start = problem.remaining_J[:, None, None], problem.rescale_up_s_J[:, None, None]
    # A job that does not run pays its start once: T R / (R + s T) is its mean throughput to its end.
    value = speed * start
    value += work
    np.divide(speed, value, out=value, where=value > 0)
    value *= work * weight_J[:, None, None]
    rows = np.flatnonzero(options.running_J)
    if len(rows):
        value[rows] = _running(policy, problem, options, rows) * weight_J[rows, None, None]
    return value


def _running(policy: Market, problem: Problem, options: Options, rows: IntArray) -> FloatArray:
    """T' of the jobs in `rows`, which run: what they have is free of charge, at the throughput of where they are."""
    speed = options.speed_JHW[rows]
    kind, held = options.current_type_J[rows], options.current_J[rows]
    up, down = problem.rescale_up_s_J[rows], problem.rescale_down_s_J[rows]
    regime = (problem.age_s_J[rows] + up) / (problem.rescales_J[rows] + 1.0)
    regime *= np.minimum(1.0, policy.rescale_budget * regime / np.maximum(up, 1e-9))
    counts = np.arange(1, speed.shape[2] + 1)
    here = kind[:, None] == np.arange(speed.shape[1])
    shrinks = here[:, :, None] & (counts < held[:, None, None])
    cost = np.where(shrinks, down[:, None, None], up[:, None, None])
    with np.errstate(divide="ignore"):
        lasts = np.minimum(problem.remaining_J[rows, None, None] / speed, regime[:, None, None])
    charged = np.where(speed > 0, speed * lasts / (lasts + cost), 0.0) if len(rows) else speed
    sizes = Sizes(problem)
    for i, j in enumerate(rows.tolist()):
        h, w = int(kind[i]), int(held[i]) - 1
        if w < speed.shape[2] and speed[i, h, w] > 0:
            charged[i, h, w] = max(charged[i, h, w], sizes.speed(j, problem.current[j])[0])
    return charged


def market_value(policy: Market, problem: Problem) -> tuple[FloatArray, IntArray]:
    """(value_JHW, gpus_H): what the market of `problem` maximises, and the GPUs that it clears."""
    options = build_options(problem)
    return values_JHW(policy, problem, options, weights_J(policy, problem, options)), options.gpus_H


def duality_gap(policy: Market, problem: Problem) -> float:
    """(bound - value) / bound of the market cleared from nothing: how far from the best it is at most."""
    options = build_options(problem)
    value = values_JHW(policy, problem, options, weights_J(policy, problem, options))
    return clear(value, options.gpus_H).gap


def _choose(policy: Market, problem: Problem) -> Choice:
    options = build_options(problem)
    weight = weights_J(policy, problem, options)
    value = values_JHW(policy, problem, options, weight)
    held = np.where(options.running_J, options.current_J, 0)
    kind = np.where(held > 0, options.current_type_J, -1)
    type_J, workers_J, note = clear_from(value, options.gpus_H, kind, held)
    with np.errstate(divide="ignore"):
        rank = np.where(weight > 0, 1.0 / (weight * options.speed_JHW.max(axis=(1, 2), initial=0.0)), np.nan)
    return options.choice(type_J, workers_J, rank, note)


def clear_from(
    value: FloatArray, gpus_H: IntArray, type_J: IntArray, workers_J: IntArray
) -> tuple[IntArray, IntArray, str]:
    """An allocation improved from what runs; from prices where nothing runs, or most of too many jobs would be idle.

    Improving what runs changes only what gains, so equal gains leave everything as it is.
    """
    if len(value) <= SMALL and workers_J.any():
        bargain = Bargain(value, gpus_H, type_J, workers_J)
        bargain.shed()
        bargain.trade()
        return bargain.type_J, bargain.workers_J, "market from what runs"
    cleared = clear(value, gpus_H)
    if not workers_J.any():
        return cleared.type_J, cleared.workers_J, f"market within {cleared.gap:.2%} of the best"
    # Only jobs that run, or would buy something at somewhat lower prices, can matter.
    buys = (densities(value) > 0.7 * cleared.price_H).any(axis=1)
    rows = np.flatnonzero((workers_J > 0) | (cleared.workers_J > 0) | buys)
    if len(rows) <= 4 * SMALL:
        bargain = Bargain(value[rows], gpus_H, type_J[rows], workers_J[rows])
        bargain.shed()
        bargain.trade()
        whole = Bargain(value, gpus_H, np.full(len(value), -1), np.zeros(len(value), dtype=np.int64))
        whole.type_J[rows], whole.workers_J[rows] = bargain.type_J, bargain.workers_J
        if whole.value() >= (1.0 - NEAR) * cleared.value:
            return whole.type_J, whole.workers_J, "market from what runs"
    return cleared.type_J, cleared.workers_J, f"market within {cleared.gap:.2%} of the best"
