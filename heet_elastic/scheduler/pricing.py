"""Prices (ALGORITHMS.md 3): the remaining time of a job on a partition; the lower, the sooner it is served.

    price(j, k) = R_j / T_j(h, g) = [R_j / T_j(h, 1)] x [1 / (g e_j(h, g))] + the job's own cost of getting there

The first factor prefers short jobs, the second jobs that scale. The formula is a reconstruction of Heet's (ASPLOS'24).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray, Problem
from heet_elastic.scheduler.options import Options

Objective = Literal["both", "short", "scale"]


def at_count(speed_JHW: FloatArray, workers_JH: IntArray) -> FloatArray:
    """speed_JHW at one worker count per job and type (0 workers: 0)."""
    index = np.maximum(workers_JH - 1, 0)[:, :, None]
    return np.where(workers_JH > 0, np.take_along_axis(speed_JHW, index, axis=2)[:, :, 0], 0.0)


def single_speed_JH(problem: Problem, options: Options) -> FloatArray:
    """T_j(h, 1), or for a job that may not run with one worker its best speed per worker on h."""
    one = problem.throughput_JHWS[:, :, 0, 0]
    counts = np.arange(1, options.speed_JHW.shape[2] + 1)
    per_worker = (options.speed_JHW / counts).max(axis=2)
    return np.where((one > 0) & np.isfinite(one), one, per_worker)


def urgency_J(problem: Problem, patience_s: float) -> FloatArray:
    """By how much a job's price is divided: its priority, and ageing that grows without bound while it waits."""
    return problem.priority_J * (1.0 + problem.waited_s_J / patience_s) ** 2


def price_JH(
    problem: Problem, options: Options, workers_JH: IntArray, objective: Objective, patience_s: float
) -> FloatArray:
    """price(j, k) for one worker count per job and type, in seconds; inf = not possible."""
    speed = at_count(options.speed_JHW, workers_JH)
    one = single_speed_JH(problem, options)
    moving = (options.current_type_J[:, None] != np.arange(speed.shape[1])[None, :]).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        if objective == "short":
            price = problem.remaining_J[:, None] / one
        elif objective == "scale":
            price = workers_JH * one / speed
        else:
            price = problem.remaining_J[:, None] / speed + moving * problem.rescale_up_s_J[:, None]
    price = np.where(speed > 0, price, np.inf)
    return price / urgency_J(problem, patience_s)[:, None]
