"""Optimus (Peng et al., EuroSys'18): every GPU goes to the job whose remaining time falls most by it.

Each job starts with its least count, in order of arrival; then, one step at a time, the largest reduction of
R/T(w) - R/T(w') per GPU wins. Blind to host types: curves are averaged over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.blind import assign_types, mean_curve_JW
from heet_elastic.scheduler.options import build_options, in_canonical_order


@dataclass(frozen=True, slots=True)
class Optimus:
    """Greedy by marginal reduction of the remaining time."""

    name: str = "optimus"
    interval_s: float = 600.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the remaining time with the chosen count."""
        return in_canonical_order(_choose, problem, rng)


def optimus_counts(curve_JW: FloatArray, remaining_J: FloatArray, order: IntArray, gpus: int) -> IntArray:
    """Workers per job; curve_JW[j, w-1] = throughput, 0 = not possible; `order` in which jobs get their least count."""
    counts = np.zeros(len(curve_JW), dtype=np.int64)
    free = gpus
    for j in order:
        possible = np.flatnonzero(curve_JW[j] > 0)
        if len(possible) and possible[0] + 1 <= free:
            counts[j] = possible[0] + 1
            free -= int(counts[j])
    heap = [bid for j in np.flatnonzero(counts) if (bid := _bid(curve_JW, remaining_J, counts, int(j)))]
    heapify(heap)
    while heap and free > 0:
        _, j, step = heappop(heap)
        if step > free:
            continue
        counts[j] += step
        free -= step
        if bid := _bid(curve_JW, remaining_J, counts, j):
            heappush(heap, bid)
    return counts


def _bid(curve: FloatArray, remaining: FloatArray, counts: IntArray, j: int) -> tuple[float, int, int] | None:
    """(-seconds saved per GPU, job, GPUs) of the next possible count of job j that saves any."""
    held = int(counts[j])
    after = np.flatnonzero(curve[j, held:] > 0)
    if not len(after):
        return None
    step = int(after[0]) + 1
    saved = float(remaining[j]) * (1.0 / float(curve[j, held - 1]) - 1.0 / float(curve[j, held + step - 1]))
    return (-saved / step, j, step) if saved > 0 else None


def _choose(problem: Problem, rng: np.random.Generator) -> Choice:
    del rng
    options = build_options(problem)
    curve = mean_curve_JW(options)
    order = np.argsort(-problem.age_s_J, kind="stable")
    counts = optimus_counts(curve, problem.remaining_J, order, int(options.gpus_H.sum()))
    chosen = curve[np.arange(len(curve)), np.maximum(counts, 1) - 1]
    left = np.where(counts > 0, problem.remaining_J / np.where(chosen > 0, chosen, 1.0), np.nan)
    return assign_types(options, counts, order, left, "Optimus")
