"""Market: one price per host type, one configuration per job (docs/scheduling.md).

    maximise sum_j u_j T'_j(c_j) / (R_j^a Tmax_j^(1-a))    subject to the GPUs of each type

R_j: what is left of job j; a weighs short jobs first against speed. T' charges a rescale inside the objective: over
the time D that a configuration lasts, a change that stalls the job for s seconds leaves T' = T D / (D + s). D is the
lesser of the job's own remaining time and the mean time between its rescales so far; s is its own cost of a rescale,
which grows with the rescales that it has had (`charges`). Losing all GPUs costs a restart later: a running job counts
T s / D on top of every configuration. What is only predicted counts one standard deviation less for a job that runs:
the best of a handful of uncertain moves looks about that much better than it is. Not so for growth on the type where it
runs: else a job would never try more workers beside idle GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.bargain import Bargain
from heet_elastic.scheduler.charges import dearness_J, owed_J, settled_J
from heet_elastic.scheduler.clearing import SMALL, clear, densities
from heet_elastic.scheduler.gate import current_speed_J
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order
from heet_elastic.scheduler.pricing import lasting_s_J
from heet_elastic.scheduler.sizes import Sizes
from heet_elastic.scheduler.steady import steadied

TINY_S = 1e-9
MOST_HELD = 1e3
"""Most that holding GPUs counts, in units of the job's own throughput: further differences would drown in it."""
NEAR = 0.01
"""With many jobs, what improves on what runs is preferred to a fresh clearing unless that is worth so much more."""


@dataclass(frozen=True, slots=True)
class Market:
    """Clear a market for GPUs. `patience_s`: a job that has waited this long comes before all others.

    shortness: a, from 0 (speed alone) to 1 (remaining time alone).
    """

    name: str = "market"
    interval_s: float = 300.0
    patience_s: float = 3600.0
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
        value[rows] = _running(problem, options, rows) * weight_J[rows, None, None]
    owed = np.flatnonzero(owed_J(problem, policy.patience_s) & (weight_J > 0))
    if len(owed):
        # More than whatever its least count could be worth to others.
        least = np.maximum((value[owed] > 0).any(axis=1).argmax(axis=1) + 1, 1)
        value[owed] += (value[owed] > 0) * (2.0 * float(value.max()) * least)[:, None, None]
    return value


def _running(problem: Problem, options: Options, rows: IntArray) -> FloatArray:
    """T' of the jobs in `rows`, which run: what they have is free of charge, at the throughput of where they are."""
    speed = options.speed_JHW[rows]
    kind, held = options.current_type_J[rows], options.current_J[rows]
    dear = dearness_J(problem)[rows]
    up, down = problem.rescale_up_s_J[rows] * dear, problem.rescale_down_s_J[rows] * dear
    lasting = lasting_s_J(problem)[rows]
    counts = np.arange(1, speed.shape[2] + 1)
    here = kind[:, None] == np.arange(speed.shape[1])
    shrinks = here[:, :, None] & (counts < held[:, None, None])
    cost = np.where(shrinks, down[:, None, None], up[:, None, None])
    with np.errstate(divide="ignore"):
        lasts = np.minimum(problem.remaining_J[rows, None, None] / speed, lasting[:, None, None])
    fraction = lasts / np.maximum(lasts + cost, TINY_S)
    if problem.log_std_JHW is not None:
        grows = here[:, :, None] & (counts > held[:, None, None])
        std = problem.log_std_JHW[rows]
        fraction *= np.exp(-np.where((std > 0) & ~grows, std, 0.0))
    charged: FloatArray = speed * fraction
    sizes = Sizes(problem)
    for i in np.flatnonzero(options.stays_J[rows]).tolist():
        j, h, w = int(rows[i]), int(kind[i]), int(held[i]) - 1
        now = sizes.speed(j, problem.current[j])[0]
        if now > 0:
            charged[i, h, w] = max(charged[i, h, w], now)
            lasts_s = max(min(problem.remaining_J[j] / now, lasting[i]), TINY_S)
            charged[i] += (charged[i] > 0) * (now * min(up[i] / lasts_s, MOST_HELD))
    return charged


def market_value(policy: Market, problem: Problem) -> tuple[FloatArray, IntArray]:
    """(value_JHW, gpus_H): what the market of `problem` maximises, and the GPUs that it clears."""
    problem, options = _seen(problem)
    return values_JHW(policy, problem, options, weights_J(policy, problem, options)), options.gpus_H


def _seen(problem: Problem) -> tuple[Problem, Options]:
    """The problem with steadied curves, and its options; settled jobs keep what they have."""
    problem = steadied(problem)
    options = build_options(problem)
    settled = settled_J(problem, current_speed_J(problem, options))
    return problem, build_options(problem, keep_J=settled) if settled.any() else options


def duality_gap(policy: Market, problem: Problem) -> float:
    """(bound - value) / bound of the market cleared from nothing: how far from the best it is at most."""
    value, gpus_H = market_value(policy, problem)
    return clear(value, gpus_H).gap


def _choose(policy: Market, problem: Problem) -> Choice:
    problem, options = _seen(problem)
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
        bargain.polish()
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
