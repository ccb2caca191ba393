"""Exact dynamic programmes: the best allocation of all on small clusters, and of one host type given the others.

Both choose at most one configuration per job so that the sum of values is largest and GPUs suffice.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray

MOST_STEPS = 2_000_000
"""Largest jobs x configurations x states (vectors of free GPUs) that is solved exactly: some ten milliseconds."""


def solvable(value_JHW: FloatArray, gpus_H: IntArray) -> bool:
    """Whether `best_of_all` is quick on this instance."""
    jobs, types, most = value_JHW.shape
    steps = float(jobs * types * most)
    for gpus in gpus_H.tolist():
        steps *= gpus + 1
    return steps <= MOST_STEPS


def best_of_all(value_JHW: FloatArray, gpus_H: IntArray) -> tuple[IntArray, IntArray]:
    """(type, workers) of each job, -1 and 0 = nothing, in an allocation of the largest value.

    Over jobs, one state for every vector of GPUs given away: O(J x H x W x prod(gpus + 1)).
    """
    jobs, types, most = value_JHW.shape
    shape = tuple(gpus_H + 1)
    best = np.zeros(shape)
    picks = np.full((jobs, *shape), -1, dtype=np.int32)
    cells = _worth_having(value_JHW)
    for j in range(jobs):
        new = best.copy()
        for h, w in cells[j]:
            if w <= gpus_H[h]:
                to = tuple(slice(w, None) if k == h else slice(None) for k in range(types))
                source = tuple(slice(None, shape[h] - w) if k == h else slice(None) for k in range(types))
                worth = best[source] + value_JHW[j, h, w - 1]
                better = worth > new[to]
                new[to][better] = worth[better]
                picks[j][to][better] = h * most + w - 1
        best = new
    type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    state = list(gpus_H.tolist())
    for j in range(jobs - 1, -1, -1):
        pick = int(picks[(j, *state)])
        if pick >= 0:
            type_J[j], workers_J[j] = pick // most, pick % most + 1
            state[int(type_J[j])] -= int(workers_J[j])
    return type_J, workers_J


def _worth_having(value_JHW: FloatArray) -> list[list[tuple[int, int]]]:
    """(type, workers) of each job's configurations that are worth more than all smaller ones on their type."""
    before = np.zeros_like(value_JHW)
    np.maximum.accumulate(value_JHW[:, :, :-1], axis=2, out=before[:, :, 1:])
    cells: list[list[tuple[int, int]]] = [[] for _ in value_JHW]
    for j, h, w in np.argwhere(value_JHW > np.maximum(before, 0.0)).tolist():
        cells[j].append((h, w + 1))
    return cells


def best_on_type(value_JW: FloatArray, else_J: FloatArray, gpus: int) -> tuple[FloatArray, IntArray]:
    """(value gained, workers of each job) on one type; a job without workers there has else_J instead.

    O(J x gpus x W); the value gained is over everybody having else_J.
    """
    jobs, most = value_JW.shape
    most = min(most, gpus)
    gain = np.where(value_JW[:, :most] > 0, value_JW[:, :most] - else_J[:, None], -np.inf)
    options = np.c_[np.zeros(jobs), gain]
    left = np.arange(gpus + 1)[:, None] - np.arange(most + 1)
    allowed, index = np.where(left >= 0, 0.0, -np.inf), np.maximum(left, 0)
    best, rows = np.zeros(gpus + 1), np.arange(gpus + 1)
    picks = np.zeros((jobs, gpus + 1), dtype=np.int64)
    for j in np.flatnonzero(gain.max(axis=1, initial=-np.inf) > 0).tolist():
        total = best[index] + allowed + options[j]
        picks[j] = total.argmax(axis=1)
        best = total[rows, picks[j]]
    workers, free = np.zeros(jobs, dtype=np.int64), gpus
    for j in range(jobs - 1, -1, -1):
        workers[j] = picks[j, free]
        free -= int(workers[j])
    return best[gpus], workers
