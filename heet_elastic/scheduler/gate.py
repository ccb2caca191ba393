"""The rescale gate: a change must pay for itself (docs/scheduling.md), else the job stays as it is.

Gain of a change from throughput T to T': (1 - T/T') D seconds, over the time D that a configuration of the job lasts;
it must exceed the job's own cost of a rescale, which grows with those that it has had (`charges`). With equal
throughput nothing changes.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import BoolArray, FloatArray, IntArray, Problem
from heet_elastic.scheduler.charges import dearness_J, left_s_J
from heet_elastic.scheduler.options import Options
from heet_elastic.scheduler.pricing import lasting_s_J
from heet_elastic.scheduler.sizes import Sizes


def current_speed_J(problem: Problem, options: Options) -> FloatArray:
    """Throughput of the running jobs as they are placed; 0 for the others and where it is not possible any more."""
    speed = np.zeros(len(problem.jobs))
    sizes = Sizes(problem)
    most = options.speed_JHW.shape[2]
    for j in np.flatnonzero(options.running_J).tolist():
        h, w = int(options.current_type_J[j]), int(options.current_J[j])
        if w <= most and options.speed_JHW[j, h, w - 1] > 0:
            speed[j] = sizes.speed(j, problem.current[j])[0]
    return speed


def horizon_s_J(problem: Problem, now_J: FloatArray, interval_s: float) -> FloatArray:
    """D: the remaining time, or how long configurations of the job have lasted (at least an interval) if shorter."""
    return np.minimum(left_s_J(problem, now_J), np.maximum(lasting_s_J(problem), interval_s))


def keep_what_does_not_pay(
    problem: Problem,
    options: Options,
    now_J: FloatArray,
    horizon_J: FloatArray,
    free_H: IntArray,
    type_J: IntArray,
    workers_J: IntArray,
) -> BoolArray:
    """Undo changes that do not pay, where the GPUs are still there; free_H, type_J, workers_J change in place.

    What is only predicted counts one standard deviation less, but for growth on the type where the job runs: else a job
    would never try more workers beside idle GPUs. Returns the jobs that are rescaled or started. Growth and moves are
    undone first, since that frees GPUs for undoing the rest.
    """
    kind, held = options.current_type_J, options.current_J
    running = now_J > 0
    changed: BoolArray = (workers_J > 0) & ((type_J != kind) | (workers_J != held))
    rows = np.flatnonzero(changed & running)
    if len(rows):
        new = options.speed_JHW[rows, type_J[rows], workers_J[rows] - 1]
        if problem.log_std_JHW is not None:
            grows = (type_J[rows] == kind[rows]) & (workers_J[rows] > held[rows])
            std = problem.log_std_JHW[rows, type_J[rows], workers_J[rows] - 1]
            new = new * np.exp(-np.where((std > 0) & ~grows, std, 0.0))
        gain = (1.0 - now_J[rows] / new) * horizon_J[rows]
        keeps = gain <= problem.rescale_up_s_J[rows] * dearness_J(problem)[rows]
        rows, gain = rows[keeps], gain[keeps]
        grows = workers_J[rows] > held[rows]
        for j in rows[np.lexsort((gain, ~grows))].tolist():
            h, w, old_h, old_w = int(type_J[j]), int(workers_J[j]), int(kind[j]), int(held[j])
            if old_w <= free_H[old_h] + (w if h == old_h else 0):
                free_H[h] += w
                free_H[old_h] -= old_w
                type_J[j], workers_J[j] = old_h, old_w
                changed[j] = False
    # A job that lost all its GPUs keeps them after all if nobody took them.
    for j in np.flatnonzero(running & (workers_J == 0)).tolist():
        if held[j] <= free_H[kind[j]]:
            type_J[j], workers_J[j] = kind[j], held[j]
            free_H[kind[j]] -= held[j]
    return changed
