"""Heet's policy as reconstructed: price, match jobs with equal chunks, extend at marginal prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.matching import match
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order
from heet_elastic.scheduler.pricing import Objective, at_count, price_JH


@dataclass(frozen=True, slots=True)
class Heet:
    """Price, match, extend. `objective` selects the price or one of its two single-objective ablations."""

    name: str = "heet"
    interval_s: float = 300.0
    objective: Objective = "both"
    chunk: int | None = None  # GPUs of a chunk; None = adaptive
    patience_s: float = 3600.0  # a job that has waited this long is four times as urgent
    horizon_s: float = 1800.0  # a rescale must pay within this time

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the job's price where it runs, else its best price."""
        return in_canonical_order(lambda p, _: _choose(self, p), problem, rng)


def chunk_sizes_H(problem: Problem, options: Options, chunk: int | None) -> IntArray:
    """GPUs of a chunk of each type: 2^floor(log2(max(1, G/N))), at most the GPUs of a host."""
    types = len(problem.host_types)
    jobs = int(((options.speed_JHW > 0).any(axis=(1, 2))).sum())
    size = chunk or 2 ** int(np.floor(np.log2(max(1.0, float(options.gpus_H.sum()) / max(jobs, 1)))))
    largest = np.ones(types, dtype=np.int64)
    np.maximum.at(largest, problem.group_type_G, problem.group_gpus_G)
    return np.minimum(size, largest)


def entry_counts_JH(options: Options, chunk_H: IntArray) -> IntArray:
    """Workers with which a job enters a type: the largest possible count within a chunk, else the least; 0 = none."""
    possible = options.speed_JHW > 0
    counts = np.arange(1, possible.shape[2] + 1)
    within = possible & (counts <= chunk_H[None, :, None])
    largest = possible.shape[2] - within[:, :, ::-1].argmax(axis=2)
    least = np.where(possible.any(axis=2), possible.argmax(axis=2) + 1, 0)
    return np.where(within.any(axis=2), largest, least)


def _choose(policy: Heet, problem: Problem) -> Choice:
    options = build_options(problem)
    chunk_H = chunk_sizes_H(problem, options, policy.chunk)
    entry_JH = entry_counts_JH(options, chunk_H)
    price = price_JH(problem, options, entry_JH, policy.objective, policy.patience_s)
    jobs = len(problem.jobs)
    type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    free = options.gpus_H.copy()
    _take_big(price, entry_JH, chunk_H, free, type_J, workers_J)
    small = np.where((entry_JH <= chunk_H) & (type_J < 0)[:, None], price, np.inf)
    matched = match(small, free // chunk_H)
    rows = np.flatnonzero(matched >= 0)
    type_J[rows] = matched[rows]
    workers_J[rows] = entry_JH[rows, matched[rows]]
    free -= np.bincount(matched[rows], weights=workers_J[rows], minlength=len(free)).astype(np.int64)
    _extend(problem, options, free, type_J, workers_J)
    _gate(policy, problem, options, type_J, workers_J)
    frozen = problem.frozen_J
    type_J[frozen], workers_J[frozen] = options.current_type_J[frozen], options.current_J[frozen]
    placed = np.where(type_J >= 0, np.take_along_axis(price, np.maximum(type_J, 0)[:, None], axis=1)[:, 0], np.inf)
    best = np.where(type_J >= 0, placed, price.min(axis=1, initial=np.inf))
    return Choice(type_J, workers_J, np.where(np.isfinite(best), best, np.nan), f"chunks of {chunk_H.max(initial=1)}")


def _take_big(
    price: FloatArray, entry_JH: IntArray, chunk_H: IntArray, free: IntArray, type_J: IntArray, workers_J: IntArray
) -> None:
    """Jobs that need more than one chunk take turns with the others in order of price; those that fit, get GPUs."""
    best = price.min(axis=1, initial=np.inf)
    order = np.argsort(best, kind="stable")
    reserved, total = 0, int(free.sum())
    for j in order[np.isfinite(best[order])]:
        if reserved >= total:
            break
        least = int(entry_JH[j][entry_JH[j] > 0].min())
        if (entry_JH[j] <= chunk_H)[np.isfinite(price[j])].any():
            reserved += least
            continue
        for h in np.argsort(price[j], kind="stable"):
            if np.isfinite(price[j, h]) and entry_JH[j, h] <= free[h] and reserved + entry_JH[j, h] <= total:
                type_J[j], workers_J[j] = h, entry_JH[j, h]
                free[h] -= workers_J[j]
                reserved += int(workers_J[j])
                break


def _extend(problem: Problem, options: Options, free: IntArray, type_J: IntArray, workers_J: IntArray) -> None:
    """Match what is left again at marginal prices R / (T(h, w') - T(h, w)), w' the next possible count with a gain."""
    counts = np.arange(1, options.speed_JHW.shape[2] + 1)
    for h in np.flatnonzero(free > 0):
        rows = np.flatnonzero((type_J == h) & ~problem.frozen_J)
        while free[h] > 0 and len(rows):
            speed = options.speed_JHW[rows, h]
            now = at_count(options.speed_JHW[rows], workers_J[rows, None].repeat(len(free), 1))[:, h]
            better = (speed > now[:, None]) & (counts > workers_J[rows, None])
            better &= counts - workers_J[rows, None] <= free[h]
            rows, better, speed, now = (a[better.any(axis=1)] for a in (rows, better, speed, now))
            if not len(rows):
                break
            following = better.argmax(axis=1)
            gain = speed[np.arange(len(rows)), following] - now
            order = np.argsort(problem.remaining_J[rows] / gain / problem.priority_J[rows], kind="stable")
            for i in order:
                need = int(following[i]) + 1 - int(workers_J[rows[i]])
                if need <= free[h]:
                    workers_J[rows[i]] += need
                    free[h] -= need


def _gate(policy: Heet, problem: Problem, options: Options, type_J: IntArray, workers_J: IntArray) -> None:
    """Undo growth and moves that do not pay for themselves within the horizon, where the old GPUs are still there."""
    free = options.gpus_H - np.bincount(
        type_J[type_J >= 0],
        weights=np.where(problem.frozen_J, 0, workers_J)[type_J >= 0],
        minlength=len(options.gpus_H),
    ).astype(np.int64)
    for j in np.flatnonzero((options.current_J > 0) & ~problem.frozen_J & (type_J >= 0)):
        h, w, ch, cw = int(type_J[j]), int(workers_J[j]), int(options.current_type_J[j]), int(options.current_J[j])
        if (h, w) == (ch, cw) or cw > options.speed_JHW.shape[2] or options.speed_JHW[j, ch, cw - 1] <= 0:
            continue
        gives = w if h == ch else 0
        if cw - gives > free[ch]:
            continue
        gain = 1.0 - options.speed_JHW[j, ch, cw - 1] / options.speed_JHW[j, h, w - 1]
        span = min(policy.horizon_s, problem.remaining_J[j] / options.speed_JHW[j, ch, cw - 1])
        if gain * span <= problem.rescale_up_s_J[j]:
            free[h] += w
            free[ch] -= cw
            type_J[j], workers_J[j] = ch, cw
