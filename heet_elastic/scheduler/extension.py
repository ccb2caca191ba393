"""Marginal extension: what matching leaves over goes to jobs on their own host type (docs/scheduling.md).

    marginal price = R_j / (T_j(h, w') - T_j(h, w)),   w' the next possible count that is faster

Each round gives every job at most one step, cheapest first, until nothing is left or nobody gains.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import BoolArray, FloatArray, IntArray


def extend(
    speed_JHW: FloatArray,
    worth_J: FloatArray,
    free_H: IntArray,
    type_J: IntArray,
    workers_J: IntArray,
    may_J: BoolArray | None = None,
    step_H: IntArray | None = None,
) -> None:
    """Extend jobs (those of `may_J`) by their marginal price worth_J / gain; free_H and workers_J change in place.

    step_H: the least step of each type, the chunk; the rest of a type that is smaller than a chunk goes in any step.
    """
    for h in np.flatnonzero(free_H > 0).tolist():
        rows = np.flatnonzero((type_J == h) if may_J is None else (type_J == h) & may_J)
        step = 1 if step_H is None else int(step_H[h])
        while step and free_H[h] > 0 and len(rows):
            if not _extend_round(speed_JHW[rows, h], worth_J[rows], rows, h, step, free_H, workers_J):
                step //= 2


def _extend_round(
    curves: FloatArray, worth: FloatArray, rows: IntArray, h: int, step: int, free_H: IntArray, workers_J: IntArray
) -> bool:
    """One step of at least `step` GPUs for each of `rows`, cheapest first; False when nobody gains by one."""
    held, counts = workers_J[rows], np.arange(1, curves.shape[1] + 1)
    now = curves[np.arange(len(rows)), held - 1]
    more = counts - held[:, None]
    better = (curves > now[:, None]) & (more >= step) & (more <= free_H[h])
    some = np.flatnonzero(better.any(axis=1))
    if not len(some):
        return False
    following = better[some].argmax(axis=1)
    price = worth[some] / (curves[some, following] - now[some])
    free_H[h] = _give(price, following + 1 - held[some], int(free_H[h]), rows[some], workers_J)
    return True


def _give(price: FloatArray, need: IntArray, free: int, rows: IntArray, workers_J: IntArray) -> int:
    """Serve steps in order of price while they fit; returns what is left."""
    order = np.argsort(price, kind="stable")
    fits = np.cumsum(need[order]) <= free
    served = order[fits]
    workers_J[rows[served]] += need[served]
    free -= int(need[served].sum())
    for i in order[~fits].tolist():
        if free <= 0:
            break
        if need[i] <= free:
            workers_J[rows[i]] += need[i]
            free -= int(need[i])
    return free
