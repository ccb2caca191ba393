"""First come, first served: each job in order of arrival takes what it asked for on the type where it is fastest.

A job that does not fit holds back those behind it (no backfilling), and a job that runs is never moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, IntArray, Problem
from heet_elastic.scheduler.options import Options, build_options, in_canonical_order, some


def asked_for(problem: Problem, options: Options) -> IntArray:
    """What a launcher without elasticity would ask for: the largest possible count <= requested, else the least."""
    possible = some(options.speed_JHW > 0, 1)
    counts = np.arange(1, possible.shape[1] + 1)
    below = possible & (counts <= problem.requested_J[:, None])
    largest = np.where(below.any(axis=1), possible.shape[1] - below[:, ::-1].argmax(axis=1), 0)
    least = np.where(possible.any(axis=1), possible.argmax(axis=1) + 1, 0)
    return np.where(largest > 0, largest, least)


@dataclass(frozen=True, slots=True)
class Fifo:
    """First in, first out, at the requested size."""

    name: str = "fifo"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the rank in the queue."""
        return in_canonical_order(_choose, problem, rng)


def _choose(problem: Problem, rng: np.random.Generator) -> Choice:
    del rng
    options = build_options(problem)
    jobs = len(problem.jobs)
    type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    free = options.gpus_H.copy()
    running = options.stays_J
    for j in np.flatnonzero(running):
        if options.current_J[j] <= free[options.current_type_J[j]]:
            type_J[j], workers_J[j] = options.current_type_J[j], options.current_J[j]
            free[type_J[j]] -= workers_J[j]
        else:
            running[j] = False  # GPUs have gone: it starts again as it asked to
    wants = asked_for(problem, options)
    order = np.argsort(-problem.age_s_J, kind="stable")
    rank = np.empty(jobs)
    rank[order] = np.arange(jobs)
    for j in order:
        if running[j] or wants[j] == 0:
            continue
        speed = np.where(free >= wants[j], options.speed_JHW[j, :, wants[j] - 1], 0.0)
        h = int(speed.argmax())
        if speed[h] <= 0:
            break
        type_J[j], workers_J[j] = h, wants[j]
        free[h] -= wants[j]
    return options.choice(type_J, workers_J, rank, "first come, first served")
