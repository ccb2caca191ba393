"""Minimum-weight full bipartite matching of jobs and equal chunks (docs/scheduling.md), as a transportation problem.

Chunks of one host type are identical columns, so a type is one sink with a capacity and the cost of solving does not
grow with the number of chunks. As many jobs as possible are matched; among those matchings the sum of prices is least.
`match` gives both: small instances to a dense assignment, the others to dual prices per type and augmenting paths.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from heet_elastic.scheduler.api import FloatArray, IntArray
from heet_elastic.scheduler.paths import Paths

DENSE_CELLS = 40_000
"""Largest jobs x chunks that is solved as a dense assignment, which is faster there."""
COARSE = 2_000
"""From so many jobs on, prices are first found for every eighth job."""
SWEEPS = 30
"""Most rounds of price changes before the rest is left to augmenting paths."""


def match(price_JH: FloatArray, chunks_H: IntArray) -> IntArray:
    """The host type of each job (-1 = unmatched) in a minimum-weight full matching; inf = not possible."""
    type_J = np.full(len(price_JH), -1)
    total = int(chunks_H.sum())
    rows = np.flatnonzero(np.isfinite(price_JH).any(axis=1))
    if not len(rows) or not total:
        return type_J
    if len(rows) > total:
        # Swapping in a cheaper unmatched job would improve: of each type, only the `total` cheapest can be matched.
        nth = np.partition(price_JH[rows], total - 1, axis=0)[total - 1]
        rows = rows[((price_JH[rows] <= nth) & np.isfinite(price_JH[rows])).any(axis=1)]
    cost = price_JH[rows]
    solve = by_assignment if len(rows) * min(total, len(rows) * len(chunks_H)) <= DENSE_CELLS else by_prices
    type_J[rows] = solve(cost, chunks_H)
    return type_J


def by_assignment(cost_JH: FloatArray, chunks_H: IntArray) -> IntArray:
    """The matching, by scipy's dense assignment over one column per chunk."""
    jobs, types = cost_JH.shape
    columns = np.repeat(np.arange(types), np.minimum(chunks_H, jobs))
    top = _unmatched_cost(cost_JH)
    dense = np.where(np.isfinite(cost_JH), cost_JH, top)[:, columns]
    row, column = linear_sum_assignment(dense)
    type_J = np.full(jobs, -1)
    type_J[row] = np.where(np.isfinite(cost_JH[row, columns[column]]), columns[column], -1)
    return type_J


def _unmatched_cost(cost_JH: FloatArray) -> float:
    """A cost for leaving a job out that no chain of other changes (one per type, there and back) can outweigh."""
    finite = cost_JH[np.isfinite(cost_JH)]
    return float(2 * (cost_JH.shape[1] + 1) * (finite.max() - min(finite.min(), 0.0)) + 1.0)


def by_prices(cost_JH: FloatArray, chunks_H: IntArray) -> IntArray:
    """The matching, by prices at which types are wanted by more jobs than they can hold, then augmenting paths.

    Every job goes to the type that is cheapest for it while there is room, which fills every type that has a price (so
    complementary slackness holds); each job that is left starts a path of moves of least reduced cost. Equal costs are
    told apart by the jobs' order (a relative 1e-12).
    """
    jobs, types = cost_JH.shape
    out = _unmatched_cost(cost_JH)
    # One row per sink; the last sink, with room for all, is to stay unmatched.
    cost = np.empty((types + 1, jobs))
    cost[:types] = np.where(np.isfinite(cost_JH), cost_JH, 2 * out).T
    cost[:types] *= 1.0 + 1e-12 * np.linspace(0.0, 1.0, jobs)
    cost[types] = out
    room = np.r_[chunks_H, jobs].astype(np.int64)
    price = _wanted_prices(cost, room, out)
    paths = Paths(cost, room, price, _cheapest(cost, price, room))
    for j in np.flatnonzero(paths.type_J < 0).tolist():
        paths.augment(j)
    return np.where(paths.type_J == types, -1, paths.type_J)


def _wanted_prices(cost: FloatArray, room: IntArray, out: float) -> FloatArray:
    """Prices as high as may be at which every type with a price is strictly preferred by more jobs than it can hold."""
    jobs = cost.shape[1]
    price, sweeps = np.zeros(len(room)), SWEEPS
    if jobs > COARSE:
        price, sweeps = _wanted_prices(cost[:, ::8], np.r_[room[:-1] // 8, len(cost[0, ::8])], out), 6
    full = [h for h in range(len(room) - 1) if room[h] < jobs]
    for _ in range(sweeps):
        before = price.copy()
        for h in full:
            price[h] = max(0.0, _rise(cost, price, room, h, out))
        if np.allclose(price, before, rtol=1e-9, atol=0.0):
            break
    while True:  # lowering one type lowers what others may ask: down until nothing changes
        before = price.copy()
        for h in full:
            if room[h] and price[h] > (most := max(0.0, _rise(cost, price, room, h, out))):
                price[h] = most * (1 - 1e-3)
        if np.array_equal(price, before):
            return price


def _rise(cost: FloatArray, price: FloatArray, room: IntArray, h: int, out: float) -> float:
    """The highest known price at which more jobs than it can hold strictly prefer type h to all others."""
    if room[h] == 0:
        return 4 * out
    elsewhere: FloatArray | None = None
    for k in range(len(cost)):
        if k != h:
            paid = cost[k] + price[k]
            elsewhere = paid if elsewhere is None else np.minimum(elsewhere, paid, out=elsewhere)
    assert elsewhere is not None
    gap = elsewhere - cost[h]  # a job prefers h while its price is below this
    last = len(gap) - int(room[h])
    ordered = np.partition(gap, [last - 1, last]) if last else gap
    marginal, below = ordered[last], ordered[last - 1]
    if below >= marginal:  # ties: go down to the next value
        lower = gap[gap < marginal]
        below = lower.max() if len(lower) else -np.inf
    return float(below)


def _cheapest(cost: FloatArray, price: FloatArray, room: IntArray) -> IntArray:
    """Put each job on the type that is cheapest for it, as far as there is room (those that prefer it most, first)."""
    paid = cost + price[:, None]
    best = paid.argmin(axis=0)
    second = np.partition(paid, 1, axis=0)[1]
    margin = second - paid[best, np.arange(cost.shape[1])]
    type_J = np.full(cost.shape[1], -1)
    for h in range(len(room)):
        mine = np.flatnonzero(best == h)
        if len(mine) > room[h]:
            mine = mine[np.argsort(-margin[mine], kind="stable")[: room[h]]]
        type_J[mine] = h
    return type_J
