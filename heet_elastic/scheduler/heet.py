"""Heet's policy (ASPLOS'24) as reconstructed: price, match jobs with equal chunks, extend, trade, and gate rescales."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import BoolArray, Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.charges import owed_J, settled_J
from heet_elastic.scheduler.chunks import chunk_sizes_H, entry_counts_JH, seat_big_jobs
from heet_elastic.scheduler.extension import extend
from heet_elastic.scheduler.gate import current_speed_J, horizon_s_J, keep_what_does_not_pay
from heet_elastic.scheduler.matching import match
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order
from heet_elastic.scheduler.pricing import Objective, price_JH, urgency_J
from heet_elastic.scheduler.steady import steadied
from heet_elastic.scheduler.trading import Terms, trade

OWED = 1e-9
"""Factor on the price of jobs that are owed GPUs: they come before all others."""


@dataclass(frozen=True, slots=True)
class Heet:
    """Price, match, extend, trade, gate. `objective` selects the price or one of its single-objective ablations.

    chunk: GPUs of a chunk, None = adaptive. patience_s: a job that has waited this long comes before all others.
    """

    name: str = "heet"
    interval_s: float = 300.0
    objective: Objective = "both"
    chunk: int | None = None
    patience_s: float = 3600.0
    trading: bool = True

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the job's price where it runs, else its best price."""
        return in_canonical_order(lambda p, _: _choose(self, p), problem, rng)


def _choose(policy: Heet, problem: Problem) -> Choice:
    problem = steadied(problem)
    options = build_options(problem)
    settled = settled_J(problem, current_speed_J(problem, options))
    if settled.any():
        options = build_options(problem, keep_J=settled)
    chunk_H = chunk_sizes_H(problem, options, policy.chunk)
    entry_JH = entry_counts_JH(options, chunk_H)
    urgency = urgency_J(problem, policy.patience_s)
    price = price_JH(problem, options, entry_JH, policy.objective, urgency)
    price[owed_J(problem, policy.patience_s)] *= OWED
    type_J, workers_J = np.full(len(price), -1), np.zeros(len(price), dtype=np.int64)
    free = options.gpus_H.copy()
    seat_big_jobs(price, entry_JH, chunk_H, free, type_J, workers_J)
    small = np.where((entry_JH <= chunk_H) & (type_J < 0)[:, None], price, np.inf)
    matched = match(small, free // chunk_H)
    rows = np.flatnonzero(matched >= 0)
    type_J[rows], workers_J[rows] = matched[rows], entry_JH[rows, matched[rows]]
    free -= np.bincount(matched[rows], weights=workers_J[rows], minlength=len(free)).astype(np.int64)
    worth = problem.remaining_J / urgency
    extend(options.speed_JHW, worth, free, type_J, workers_J, step_H=chunk_H)
    now = current_speed_J(problem, options)
    horizon = horizon_s_J(problem, now, policy.interval_s)
    if policy.trading:
        stays = (now > 0) & (type_J == options.current_type_J) & (workers_J == options.current_J)
        terms = Terms(problem.remaining_J, horizon, stays * problem.rescale_up_s_J, stays * problem.rescale_down_s_J)
        best = price.min(axis=1, initial=np.inf)
        waiting = np.flatnonzero((workers_J == 0) & np.isfinite(best))
        trade(options.speed_JHW, terms, type_J, workers_J, waiting[np.argsort(best[waiting], kind="stable")])
        free = options.gpus_H - _used(type_J, workers_J, len(free))
    changed = keep_what_does_not_pay(problem, options, now, horizon, free, type_J, workers_J)
    seat_waiting(options, price, free, type_J, workers_J, changed)
    extend(options.speed_JHW, worth, free, type_J, workers_J, may_J=changed)
    # What is left lies idle unless a job that was to stay as it is gains by it after all.
    extend(options.speed_JHW, worth, free, type_J, workers_J, may_J=(now > 0) & ~changed)
    keep_what_does_not_pay(problem, options, now, horizon, free, type_J, workers_J)
    return options.choice(type_J, workers_J, _shown_price(price, type_J), f"chunks of {int(chunk_H.max(initial=1))}")


def seat_waiting(
    options: Options,
    price_JH: FloatArray,
    free_H: IntArray,
    type_J: IntArray,
    workers_J: IntArray,
    changed_J: BoolArray,
) -> None:
    """Give free GPUs to jobs without any, in order of price: the least count on the type where that is fastest.

    All arrays but the first two change in place.
    """
    if not free_H.any():
        return
    best = price_JH.min(axis=1, initial=np.inf)
    waiting = np.flatnonzero((workers_J == 0) & np.isfinite(best))
    counts = np.arange(1, options.speed_JHW.shape[2] + 1)
    for j in waiting[np.argsort(best[waiting], kind="stable")].tolist():
        fits = (options.speed_JHW[j] > 0) & (counts <= free_H[:, None])
        some = np.flatnonzero(fits.any(axis=1))
        if len(some):
            least = fits[some].argmax(axis=1)
            pick = int(options.speed_JHW[j, some, least].argmax())
            type_J[j], workers_J[j] = some[pick], least[pick] + 1
            free_H[some[pick]] -= least[pick] + 1
            changed_J[j] = True
            if not free_H.any():
                return


def _used(type_J: IntArray, workers_J: IntArray, types: int) -> IntArray:
    on = type_J >= 0
    return np.bincount(type_J[on], weights=workers_J[on], minlength=types).astype(np.int64)


def _shown_price(price_JH: FloatArray, type_J: IntArray) -> FloatArray:
    """The price where a job runs, else its best one; NaN where it can run nowhere."""
    best = price_JH.min(axis=1, initial=np.inf)
    chosen = price_JH[np.arange(len(best)), np.maximum(type_J, 0)] if price_JH.shape[1] else best
    shown = np.where((type_J >= 0) & np.isfinite(chosen), chosen, best)
    return np.where(np.isfinite(shown), shown, np.nan)
