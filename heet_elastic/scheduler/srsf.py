"""Shortest remaining service first (Tiresias, NSDI'19, with known lengths), in three variants.

Service = remaining time x requested GPUs. `srsf`: the requested count or nothing, preemptive. `srsf-e`: then leftover
GPUs go one at a time to the running job whose throughput grows most. `srsf-max`: each job in order takes as many as
it can use. Blind to host types: curves are averaged over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.blind import assign_types, mean_curve_JW
from heet_elastic.scheduler.fifo import asked_for
from heet_elastic.scheduler.options import build_options, in_canonical_order

Variant = Literal["requested", "elastic", "max"]


@dataclass(frozen=True, slots=True)
class Srsf:
    """Shortest remaining service first."""

    name: str = "srsf"
    interval_s: float = 300.0
    variant: Variant = "requested"

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the remaining service in GPU seconds."""
        return in_canonical_order(lambda p, _: _choose(p, self.variant), problem, rng)


def _choose(problem: Problem, variant: Variant) -> Choice:
    options = build_options(problem)
    curve = mean_curve_JW(options)
    wants = asked_for(problem, options)
    speed = np.where(wants > 0, curve[np.arange(len(wants)), np.maximum(wants, 1) - 1], 0.0)
    service = np.where(speed > 0, problem.remaining_J * wants / np.where(speed > 0, speed, 1.0), np.inf)
    order = np.argsort(service, kind="stable")
    counts = srsf_counts(curve, wants, order, int(options.gpus_H.sum()), variant)
    return assign_types(options, counts, order, service, f"SRSF ({variant})")


def srsf_counts(curve_JW: FloatArray, wants_J: IntArray, order: IntArray, gpus: int, variant: Variant) -> IntArray:
    """Workers per job. curve_JW[j, w-1] = throughput, 0 = not possible; `wants_J` what jobs ask for, 0 = nothing."""
    counts = np.zeros(len(wants_J), dtype=np.int64)
    free = gpus
    for j in order:
        if variant == "max":
            possible = np.flatnonzero(curve_JW[j, :free] > 0)
            give = int(possible[-1]) + 1 if len(possible) else 0
        else:
            give = int(wants_J[j]) if wants_J[j] <= free else 0
        counts[j] = give
        free -= give
        if free <= 0:
            break
    if variant == "elastic":
        _spread_leftover(curve_JW, counts, free)
    return counts


def _spread_leftover(curve_JW: FloatArray, counts: IntArray, free: int) -> None:
    """Give `free` GPUs one at a time to the running job with the largest absolute gain in throughput."""
    running = np.flatnonzero(counts > 0)
    while free > 0 and len(running):
        held = counts[running]
        inside = held < curve_JW.shape[1]
        then = np.where(inside, curve_JW[running, np.minimum(held, curve_JW.shape[1] - 1)], 0.0)
        gain = np.where(then > 0, then - curve_JW[running, held - 1], 0.0)
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        counts[running[best]] += 1
        free -= 1
