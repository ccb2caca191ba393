"""Clear a market: one price per host type, one configuration per job (docs/scheduling.md).

    maximise sum_j v[j, c_j]   subject to   GPUs of type h used <= gpus_h,   each job at most one configuration

Its Lagrangian dual has one variable per host type, D(p) = sum_h gpus_h p_h + sum_j max(0, max_{h,w} v[j,h,w] - p_h w),
which bounds every allocation from above; D - value is the duality gap. Prices follow excess demand until it fits;
what they leave is given away by `bargain`. The result is maximal: no GPU stays free that any job would gain from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray
from heet_elastic.scheduler.bargain import Bargain


@dataclass(frozen=True, slots=True)
class Cleared:
    """An allocation (type -1 and 0 workers = nothing), its prices, its value and the upper bound on any value."""

    type_J: IntArray
    workers_J: IntArray
    price_H: FloatArray
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """(bound - value) / bound: how far from the best the allocation is at most."""
        return max(0.0, 1.0 - self.value / self.bound) if self.bound > 0 else 0.0


SMALL = 256
"""Up to so many jobs, allocations are improved by trades between two jobs; beyond, the gap is tiny anyway."""


def clear(
    value_JHW: FloatArray, gpus_H: IntArray, start: tuple[IntArray, IntArray] | None = None, rounds: int = 16
) -> Cleared:
    """Choose one configuration per job. value_JHW[j,h,w-1] > 0 is what w workers on h are worth; <= 0 = not possible.

    `start`: types and workers of a feasible allocation that is improved as well (what runs now); the better result of
    the two is returned. `rounds` price updates are made. Near-linear in the size of value_JHW.
    """
    jobs, types, _ = value_JHW.shape
    if not jobs or not gpus_H.any() or value_JHW.max(initial=0.0) <= 0:
        return Cleared(np.full(jobs, -1), np.zeros(jobs, dtype=np.int64), np.zeros(types), 0.0, 0.0)
    density_JH = densities(value_JHW)
    first = _first_prices(density_JH, gpus_H)
    rows = np.flatnonzero((density_JH > 0.3 * first).any(axis=1))
    price, bound, type_J, workers_J = _clear_rows(value_JHW[rows], gpus_H, first, rounds)
    left_out = np.ones(jobs, dtype=bool)
    left_out[rows] = False
    if (density_JH[left_out] > price).any():  # somebody who was left out would buy at these prices
        rows = np.arange(jobs)
        price, bound, type_J, workers_J = _clear_rows(value_JHW, gpus_H, first, rounds)
    best = Bargain(value_JHW, gpus_H, np.full(jobs, -1), np.zeros(jobs, dtype=np.int64))
    best.type_J[rows], best.workers_J[rows] = type_J, workers_J
    best.fill()
    if start is not None and jobs <= SMALL:
        other = Bargain(value_JHW, gpus_H, *start)
        other.shed()
        other.trade()
        other.polish()
        if other.value() >= best.value():
            best = other
    return Cleared(best.type_J, best.workers_J, price, best.value(), max(bound, best.value()))


def densities(value_JHW: FloatArray) -> FloatArray:
    """Most value per GPU of each job on each type: a job buys on h iff this is above the price."""
    dense: FloatArray = np.max(value_JHW / np.arange(1, value_JHW.shape[2] + 1), axis=2)
    return dense


def _clear_rows(
    value_JHW: FloatArray, gpus_H: IntArray, first_H: FloatArray, rounds: int
) -> tuple[FloatArray, float, IntArray, IntArray]:
    """(prices, bound, types, workers) for these jobs alone."""
    market = _Market(value_JHW, gpus_H)
    price, bound, fitting = _find_prices(market, first_H, rounds)
    if market.jobs > SMALL:
        return price, bound, *fitting
    bargain = Bargain(value_JHW, gpus_H, *market.allocation(*market.demand(price)))
    bargain.shed()
    bargain.trade()
    bargain.polish()
    return price, bound, bargain.type_J, bargain.workers_J


class _Market:
    """The rows that can be worth anything, flattened to jobs x cells (a cell = host type and count)."""

    def __init__(self, value_JHW: FloatArray, gpus_H: IntArray) -> None:
        jobs, types, most = value_JHW.shape
        self.jobs, self.types, self.most = jobs, types, most
        self.value = value_JHW.reshape(jobs, types * most)
        self.gpus = gpus_H.astype(float)
        self.kind = np.repeat(np.arange(types), most)
        self.count = np.tile(np.arange(1, most + 1), types)
        self.offset = np.arange(jobs) * (types * most)
        self.work = np.empty_like(self.value)

    def demand(self, price_H: FloatArray) -> tuple[FloatArray, IntArray]:
        """Surplus of each job's best cell at these prices, and that cell."""
        np.subtract(self.value, (price_H[:, None] * np.arange(1, self.most + 1)).ravel(), out=self.work)
        best = self.work.argmax(axis=1)
        return self.work.ravel()[self.offset + best], best

    def allocation(self, surplus: FloatArray, best: IntArray) -> tuple[IntArray, IntArray]:
        """Types and workers of what is wanted."""
        wants = surplus > 0
        return np.where(wants, self.kind[best], -1), np.where(wants, self.count[best], 0)


def _first_prices(density_JH: FloatArray, gpus_H: IntArray) -> FloatArray:
    """A start: half of what the last GPU is worth if every job wants one GPU of the type where it is densest."""
    favourite = density_JH.argmax(axis=1)
    top = float(density_JH.max())
    price = np.full(len(gpus_H), 1e-4 * top)
    for h, gpus in enumerate(gpus_H.tolist()):
        mine = density_JH[favourite == h, h]
        if len(mine):
            nth = max(len(mine) - 1 - gpus, 0)
            price[h] = max(price[h], 0.5 * np.partition(mine, nth)[nth])
    return price


def _find_prices(
    market: _Market, first_H: FloatArray, rounds: int
) -> tuple[FloatArray, float, tuple[IntArray, IntArray]]:
    """Prices with the least dual value met, that value, and the most valuable demand met that fits.

    Each price moves against its excess demand, by a step that shrinks when the sign of the excess changes.
    """
    gpus, price = market.gpus, first_H
    floor = price * 1e-6
    step, before = np.full(market.types, 0.7), np.zeros(market.types)
    least, least_price, most_value = np.inf, price, -1.0
    fitting = np.full(market.jobs, -1), np.zeros(market.jobs, dtype=np.int64)
    must_fit = market.jobs > SMALL
    for turn in range(rounds + 80):
        surplus, best = market.demand(price)
        wants = np.flatnonzero(surplus > 0)
        cells, gains = best[wants], float(surplus[wants].sum())
        used = np.bincount(market.kind[cells], weights=market.count[cells], minlength=market.types)
        dual = float(price @ gpus) + gains
        if dual < least:
            least, least_price = dual, price
        if (used <= gpus).all() and gains + float(price @ used) > most_value:
            most_value, fitting = gains + float(price @ used), market.allocation(surplus, best)
        excess = (used - gpus) / np.maximum(gpus, 1.0)
        excess[(gpus == 0) & (used > 0)] = 1.0
        if (np.abs(excess) * (price > floor) < 1e-9).all() or (turn >= rounds and (most_value >= 0 or not must_fit)):
            break
        turned = excess * before < 0
        step = np.where(turned, step * 0.45, np.minimum(step * 1.2, 1.0))
        if turn >= rounds:  # nothing has fitted yet: raise the prices of what is short until it does
            step = np.where(excess > 0, 0.5, 0.0)
        before = np.where(excess != 0, excess, before)
        price = np.maximum(price * np.exp(step * np.clip(3 * excess, -1, 1)), floor)
    return least_price, least, fitting
