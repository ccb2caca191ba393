"""Prices (docs/scheduling.md): the remaining time of a job on a partition; the lower, the sooner it is served.

    price(j, k) = R_j / T_j(h, g) = [R_j / T_j(h, 1)] x [1 / (g e_j(h, g))]

The first factor prefers short jobs, the second jobs that scale; each alone is an ablation. A move to another host type
adds the job's own cost of getting there. The formula is a reconstruction of Heet's (ASPLOS'24).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from heet_elastic.scheduler.api import DENSE, FloatArray, IntArray, Problem
from heet_elastic.scheduler.options import FASTEST, SLOWEST, Options

Objective = Literal["both", "short", "scale"]


def at_count(speed_JHW: FloatArray, workers_JH: IntArray) -> FloatArray:
    """speed_JHW at one worker count per job and type (0 workers: 0)."""
    index = np.maximum(workers_JH - 1, 0)[:, :, None]
    return np.where(workers_JH > 0, np.take_along_axis(speed_JHW, index, axis=2)[:, :, 0], 0.0)


def single_speed_JH(problem: Problem, options: Options) -> FloatArray:
    """T_j(h, 1), or for a job that may not run with one worker its best speed per worker on h."""
    one = problem.throughput_JHWS[:, :, 0, DENSE]
    known = (one > SLOWEST) & (one < FASTEST)
    if known.all():
        return one
    counts = np.arange(1, options.speed_JHW.shape[2] + 1)
    per_worker: FloatArray = np.max(options.speed_JHW / counts, axis=2)
    return np.where(known, one, per_worker)


def urgency_J(problem: Problem, patience_s: float) -> FloatArray:
    """By how much a job's price is divided: its priority, and ageing that grows without bound while it waits."""
    return problem.priority_J * (1.0 + problem.waited_s_J / patience_s) ** 2


def lasting_s_J(problem: Problem) -> FloatArray:
    """How long a configuration of a job has lasted on average, counting the one that it would get now."""
    return (problem.age_s_J + problem.rescale_up_s_J) / (problem.rescales_J + 1.0)


def price_JH(
    problem: Problem, options: Options, workers_JH: IntArray, objective: Objective, urgency: FloatArray
) -> FloatArray:
    """price(j, k) for one worker count per job and type, in seconds; inf = not possible."""
    speed = at_count(options.speed_JHW, workers_JH)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if objective == "short":
            price = problem.remaining_J[:, None] / single_speed_JH(problem, options)
        elif objective == "scale":
            price = workers_JH * single_speed_JH(problem, options) / speed
        else:
            moves = options.current_type_J[:, None] != np.arange(speed.shape[1])
            price = problem.remaining_J[:, None] / speed + moves * problem.rescale_up_s_J[:, None]
    return np.where(speed > 0, price, np.inf) / urgency[:, None]
