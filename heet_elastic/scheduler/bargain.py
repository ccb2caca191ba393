"""Improve an allocation of configurations step by step: shed what does not fit, fill what is free, trade the rest.

A move changes one job's configuration; the GPUs that it needs come from the free ones and, if they do not suffice, from
one other job (the donor) that shrinks. `trade` ends where no such move gains; `fill` where none gains without a donor;
`seat` lets jobs in that need more GPUs at once than any one donor has; `polish` is exact where that is quick.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray
from heet_elastic.scheduler.exact import best_of_all, best_on_type, solvable

LEAST_GAIN = 1e-9
"""Gains below this share of the largest value count as none."""
MOST_POLISHED = 400_000
"""Largest jobs x GPUs of a type x counts on which types are polished in turn: a few milliseconds a type."""
SWEEPS = 4
SEATS = 8
"""Jobs that one decision tries to seat at the cost of several donors."""


class Bargain:
    """An allocation under improvement. `value_JHW` <= 0 = not possible; the arrays given are copied."""

    def __init__(self, value_JHW: FloatArray, gpus_H: IntArray, type_J: IntArray, workers_J: IntArray) -> None:
        self.value_JHW = value_JHW
        self.gpus = gpus_H
        inside = workers_J <= value_JHW.shape[2]
        self.type_J, self.workers_J = np.where(inside, type_J, -1), np.where(inside, workers_J, 0)
        self.index = np.arange(len(type_J))
        self.counts = np.arange(1, value_JHW.shape[2] + 1)
        self.least = LEAST_GAIN * float(value_JHW.max(initial=0.0))
        wrong = (self.type_J >= 0) & (self.held() <= 0)
        self.type_J[wrong], self.workers_J[wrong] = -1, 0

    def held(self) -> FloatArray:
        """Value of what each job holds."""
        held = self.value_JHW[self.index, self.type_J, self.workers_J - 1]
        return np.where(self.type_J >= 0, held, 0.0)

    def value(self) -> float:
        """Value of the allocation."""
        return float(self.held().sum())

    def free(self) -> IntArray:
        """GPUs of each type that nobody holds; negative = given away twice."""
        on = self.type_J >= 0
        used = np.bincount(self.type_J[on], weights=self.workers_J[on], minlength=len(self.gpus))
        return self.gpus - used.astype(np.int64)

    def shed(self) -> None:
        """Shrink jobs on types that are short, the least loss per GPU freed first, until everything fits."""
        for h in np.flatnonzero(self.free() < 0).tolist():
            rows, workers, _ = self._shrunk(h, -int(self.free()[h]))
            self.workers_J[rows] = workers
            self.type_J[rows[workers == 0]] = -1

    def _shrunk(self, h: int, over: int) -> tuple[IntArray, IntArray, float]:
        """(jobs on type h, their workers after freeing at least `over` GPUs, value lost), greedily by loss per GPU."""
        rows = np.flatnonzero(self.type_J == h)
        value = np.c_[np.zeros(len(rows)), self.value_JHW[rows, h]]
        value[:, 1:][value[:, 1:] <= 0] = -np.inf
        workers, index, lost = self.workers_J[rows].copy(), np.arange(len(rows)), 0.0
        while over > 0:
            frees = workers[:, None] - np.arange(value.shape[1])
            loss = value[index, workers][:, None] - value
            rate = np.where(frees > 0, loss / np.clip(frees, 1, over), np.inf)
            i, w = divmod(int(rate.argmin()), value.shape[1])
            over -= int(frees[i, w])
            lost += float(loss[i, w])
            workers[i] = w
        return rows, workers, lost

    def seat(self) -> None:
        """Let in jobs without GPUs whose smallest count no single donor can free, when they are worth all donors."""
        possible = self.value_JHW > 0
        least = np.where(possible.any(axis=2), possible.argmax(axis=2) + 1, np.iinfo(np.int64).max)
        rows = np.flatnonzero((self.type_J < 0) & (least.min(axis=1) > 1) & possible.any(axis=(1, 2)))
        if not len(rows):
            return
        counts = np.minimum(least[rows], len(self.counts))
        worth = np.take_along_axis(self.value_JHW[rows], counts[:, :, None] - 1, axis=2)[:, :, 0]
        density = np.where(least[rows] <= len(self.counts), worth / counts, -np.inf)
        order = np.argsort(-density.max(axis=1), kind="stable")[:SEATS]
        for i in order.tolist():
            for h in np.argsort(-density[i], kind="stable").tolist():
                if density[i, h] > 0 and self._seat(int(rows[i]), h, int(counts[i, h]), float(worth[i, h])):
                    break

    def _seat(self, j: int, h: int, workers: int, worth: float) -> bool:
        over = workers - int(self.free()[h])
        if int(self.workers_J[self.type_J == h].sum()) < over:
            return False
        if over > 0:
            rows, left, lost = self._shrunk(h, over)
            if lost >= worth - self.least:
                return False
            self.workers_J[rows] = left
            self.type_J[rows[left == 0]] = -1
        self.type_J[j], self.workers_J[j] = h, workers
        return True

    def fill(self) -> None:
        """Give free GPUs, type by type, to the moves of single jobs that gain most per GPU, until none gains."""
        moved = True
        while moved:
            moved = False
            for h in np.flatnonzero(self.free() > 0).tolist():
                moved |= self._fill_type(h)

    def _fill_type(self, h: int) -> bool:
        """One round of moves to, or on, type h; whether there was one."""
        free, held = int(self.free()[h]), self.held()
        most = min(free, len(self.counts))
        # From elsewhere a job needs all GPUs that it gets, so only counts up to `free` matter ...
        gain = self.value_JHW[:, h, :most] - held[:, None]
        rate = np.where(gain > self.least, gain / self.counts[:most], -np.inf)
        pick = rate.argmax(axis=1)
        best = np.take_along_axis(rate, pick[:, None], axis=1)[:, 0]
        workers = pick + 1
        # ... on h itself only what it lacks.
        on = np.flatnonzero(self.type_J == h)
        if len(on):
            gain, need = self.value_JHW[on, h] - held[on, None], self.counts - self.workers_J[on, None]
            own = np.where((gain > self.least) & (need <= free), gain / np.maximum(need, 0.5), -np.inf)
            workers[on] = own.argmax(axis=1) + 1
            best[on] = own.max(axis=1)
        rows = np.flatnonzero(best > -np.inf)
        for j in rows[np.argsort(-best[rows], kind="stable")].tolist():
            needs = int(workers[j]) - (int(self.workers_J[j]) if self.type_J[j] == h else 0)
            if needs <= free:
                free -= needs
                self.type_J[j], self.workers_J[j] = h, workers[j]
            if free <= 0:
                break
        return len(rows) > 0

    def trade(self, most: int = 200) -> None:
        """Fill, seat, then make the best move, with or without a donor, until none gains (at most `most` moves)."""
        self.fill()
        self.seat()
        jobs, types, counts = self.value_JHW.shape
        flat = np.where(self.value_JHW > 0, self.value_JHW, -np.inf).reshape(jobs, types * counts)
        # below[j,h,w]: the most that j can get from at most w workers on h
        below = np.zeros((jobs, types, counts + 1))
        np.maximum.accumulate(self.value_JHW, axis=2, out=below[:, :, 1:])
        np.maximum(below, 0.0, out=below)
        ks = np.arange(counts + 1)
        for _ in range(most):
            held, free = self.held(), self.free()
            mine = below[self.index, self.type_J]
            left = self.workers_J[:, None] - ks
            loss = held[:, None] - np.take_along_axis(mine, np.maximum(left, 0), axis=1)
            loss[(left < 0) | (self.type_J < 0)[:, None]] = np.inf
            cost = self._cost_HK(loss, free)
            if not self._best_move(flat, held, free, loss, cost, below):
                return

    def polish(self) -> None:
        """The best allocation of all on a small cluster; else each type made the best given the others, in turn.

        What is not better by more than `least` is left as it is.
        """
        jobs = len(self.index)
        if not jobs:
            return
        if solvable(self.value_JHW, self.gpus):
            kept = self.type_J, self.workers_J
            before = self.value()
            self.type_J, self.workers_J = best_of_all(self.value_JHW, self.gpus)
            if self.value() <= before + self.least:
                self.type_J, self.workers_J = kept
            return
        if jobs * float(self.gpus.max(initial=0)) * len(self.counts) > MOST_POLISHED:
            return
        moved = True
        for _ in range(SWEEPS):
            if not moved:
                return
            moved = False
            for h in np.flatnonzero(self.gpus > 0).tolist():
                moved |= self._polish_type(h)
            self.fill()

    def _polish_type(self, h: int) -> bool:
        held, on = self.held(), self.type_J == h
        elsewhere = np.where(on, 0.0, held)
        gained, workers = best_on_type(self.value_JHW[:, h], elsewhere, int(self.gpus[h]))
        if gained <= held[on].sum() + self.least:
            return False
        takes = workers > 0
        self.type_J = np.where(takes, h, np.where(on, -1, self.type_J))
        self.workers_J = np.where(takes, workers, np.where(on, 0, self.workers_J))
        return True

    def _cost_HK(self, loss: FloatArray, free: IntArray) -> FloatArray:
        """cost[h, k]: what k more GPUs of type h cost: nothing while free, else the least loss of one donor."""
        types, counts = len(self.gpus), len(self.counts)
        least = np.full((types, counts + 1), np.inf)
        order = np.argsort(self.type_J, kind="stable")
        edges = np.searchsorted(self.type_J[order], np.arange(types + 1))
        some = np.flatnonzero(edges[1:] > edges[:-1])
        if len(some):
            stop = int(edges[-1])
            least[some] = np.minimum.reduceat(loss[order[:stop]], edges[some], axis=0)
        least[:, 0] = 0.0
        short = np.clip(np.arange(counts + 1) - free[:, None], 0, counts)
        return np.take_along_axis(least, short, axis=1)

    def _best_move(
        self, flat: FloatArray, held: FloatArray, free: IntArray, loss: FloatArray, cost: FloatArray, below: FloatArray
    ) -> bool:
        """Find and make the move that gains most; False when none gains."""
        counts = len(self.counts)
        # Coming from elsewhere, all w GPUs are needed ...
        gain = flat - cost[:, 1:].ravel()
        gain -= held[:, None]
        # ... on its own type a job needs only what it lacks.
        on = np.flatnonzero(self.type_J >= 0)
        kind = self.type_J[on]
        more = np.maximum(self.counts - self.workers_J[on, None], 0)
        own = flat.reshape(len(flat), -1, counts)[on, kind] - held[on, None] - cost[kind[:, None], more]
        gain.reshape(len(flat), -1, counts)[on, kind] = own
        for _ in range(8):
            pick = int(gain.argmax())
            j, cell = divmod(pick, gain.shape[1])
            h, w = cell // counts, cell % counts + 1
            if gain[j, cell] <= self.least:
                return False
            k = w - int(free[h]) - (int(self.workers_J[j]) if self.type_J[j] == h else 0)
            if k <= 0 or self._donate(j, h, k, loss, below, float(flat[j, cell] - held[j])):
                self.type_J[j], self.workers_J[j] = h, w
                return True
            gain[j, cell] = -np.inf  # the cheapest donor was the job itself
        return False

    def _donate(self, j: int, h: int, k: int, loss: FloatArray, below: FloatArray, gain: float) -> bool:
        """Free k GPUs of type h from the cheapest other job, if that costs less than `gain`."""
        rows = np.flatnonzero((self.type_J == h) & (self.index != j))
        if not len(rows):
            return False
        i = int(rows[loss[rows, k].argmin()])
        if loss[i, k] >= gain - self.least:
            return False
        keep = int(below[i, h, : int(self.workers_J[i]) - k + 1].argmax())
        self.workers_J[i] = keep
        self.type_J[i] = h if keep else -1
        return True
