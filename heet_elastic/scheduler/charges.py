"""What a rescale must gain, and who is owed GPUs: the two bounds that `heet` and `market` share (docs/scheduling.md).

Rescales. A job's first FREE_RESCALES must gain what they cost, and so must one more for every EARNS times that cost
that it has lived; beyond those, each must gain DEARER times as much as the one before. No change gains more than the
time that is left, so a job has at most
    k = FREE_RESCALES + age / (EARNS cost) + ln(time left / cost) / ln(DEARER)
rescales: when no further one can pay it is settled, and keeps what it has until it has earned another. Rescales then
take at most 1 / EARNS of a long job's life.

Waiting. A job is owed its least count when it has waited `patience_s`, or has had less than FLOOR of that count over
its age beyond `patience_s`. Jobs that are owed GPUs come before all others.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import BoolArray, FloatArray, Problem

FREE_RESCALES = 3
EARNS = 100.0
DEARER = 1.5
FLOOR = 0.1
LEAST_COST_S = 1.0
"""A rescale is never taken to cost less, or jobs that stop and start in no time would never settle."""


def dearness_J(problem: Problem) -> FloatArray:
    """How many times its cost the next rescale of each job must gain."""
    earned = problem.age_s_J / (EARNS * np.maximum(problem.rescale_up_s_J, LEAST_COST_S))
    over = np.clip(problem.rescales_J - FREE_RESCALES - earned, 0.0, 100.0)
    dear: FloatArray = DEARER**over
    return dear


def left_s_J(problem: Problem, now_J: FloatArray) -> FloatArray:
    """Remaining time of each job at throughput now_J (inf where that is 0)."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(now_J > 0, problem.remaining_J / np.where(now_J > 0, now_J, 1.0), np.inf)


def settled_J(problem: Problem, now_J: FloatArray) -> BoolArray:
    """Jobs that run (now_J > 0) and for which no further rescale can pay."""
    cost = np.maximum(problem.rescale_up_s_J, LEAST_COST_S) * dearness_J(problem)
    settled: BoolArray = (now_J > 0) & (cost >= left_s_J(problem, now_J))
    return settled


def owed_J(problem: Problem, patience_s: float) -> BoolArray:
    """Jobs that come before all others: they waited `patience_s`, or got less than their floor since.

    Where there are more than the cluster holds, those that waited longest, then those furthest below their floor.
    """
    least = np.maximum(problem.min_J, problem.min_hosts_J)
    beyond = np.maximum(problem.age_s_J - patience_s, 0.0)
    lacks = FLOOR * least * beyond - problem.received_s_JH.sum(axis=1)
    owed: BoolArray = (problem.waited_s_J >= patience_s) | (lacks > 0)
    rows = np.flatnonzero(owed & ~problem.frozen_J)
    if least[rows].sum() > problem.group_gpus_G.sum():
        rows = rows[np.lexsort((-lacks[rows], -problem.waited_s_J[rows]))]
        owed[rows[np.cumsum(least[rows]) > problem.group_gpus_G.sum()]] = False
    return owed
