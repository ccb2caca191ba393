"""Minimum-weight full bipartite matching of jobs and equal chunks (ALGORITHMS.md 4).

Chunks of one host type are identical columns, so the matching is a transportation problem with one sink per host type.
As many jobs as possible are matched; among those matchings the sum of prices is smallest.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from heet_elastic.scheduler.api import FloatArray, IntArray


def match(price_JH: FloatArray, chunks_H: IntArray) -> IntArray:
    """The host type of each job (-1 = unmatched) in a minimum-weight full matching; inf = not possible."""
    jobs, types = price_JH.shape
    type_J = np.full(jobs, -1)
    total = int(chunks_H.sum())
    open_J = np.zeros(jobs, dtype=bool)
    for h in range(types):
        # Swapping in a cheaper unmatched job would improve: only the `total` cheapest of a type can be matched to it.
        cheapest = np.argsort(price_JH[:, h], kind="stable")[:total]
        open_J[cheapest[np.isfinite(price_JH[cheapest, h])]] = True
    rows = np.flatnonzero(open_J)
    columns = np.repeat(np.arange(types), np.minimum(chunks_H, len(rows)))
    if not len(rows) or not len(columns):
        return type_J
    cost = price_JH[np.ix_(rows, columns)]
    finite = np.isfinite(cost)
    top = float(cost[finite].max(initial=1.0))
    cost = np.where(finite, cost / top, 2.0 * (min(cost.shape) + 1))
    picked, column = linear_sum_assignment(cost)
    good = finite[picked, column]
    type_J[rows[picked[good]]] = columns[column[good]]
    return type_J
