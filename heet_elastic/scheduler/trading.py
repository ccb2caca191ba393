"""Trading of single workers between jobs of one host type, by AFS's inequality (AFS, NSDI'21, Eq. 3).

Recipient b (v workers, v+ = its next count) and donor a (w workers, w- = its count below) trade iff
    b shorter than a:  (T_b(v+) - T_b(v)) / T_b(v)  > (T_a(w) - T_a(w-)) / T_a(w)
    b longer than a:   (T_b(v+) - T_b(v)) / T_b(v+) > (T_a(w) - T_a(w-)) / T_a(w-)
with gains and losses per GPU; a job without workers always wins. The largest margin first, and only when it pays for
the rescales that it causes; in one round every job trades at most once, then margins are computed anew. On curves that
are not concave the plain rule can swap for ever, so a job that has received does not give, and one that has given does
not receive, in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray

MOST = 64
"""Jobs of a type that are looked at on each side, and rounds of one pass and type."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What trades are judged by: remaining work, seconds that a new configuration lasts, own cost of a rescale.

    cost_up_J and cost_down_J are 0 for jobs that are rescaled anyway. All are arrays over jobs.
    """

    remaining_J: FloatArray
    lasting_s_J: FloatArray
    cost_up_J: FloatArray
    cost_down_J: FloatArray


def trade(speed_JHW: FloatArray, terms: Terms, type_J: IntArray, workers_J: IntArray, waiting_J: IntArray) -> None:
    """Trade on every type; type_J, workers_J change in place. `waiting_J`: jobs without workers, most urgent first."""
    for h in range(speed_JHW.shape[1]):
        mine = np.flatnonzero(type_J == h)
        if len(mine):
            _Pit(speed_JHW, terms, h, mine, waiting_J[type_J[waiting_J] < 0]).run(type_J, workers_J)


class _Pit:
    """The jobs of one type that may trade."""

    def __init__(self, speed_JHW: FloatArray, terms: Terms, h: int, mine: IntArray, waiting: IntArray) -> None:
        self.h, self.terms = h, terms
        waiting = waiting[speed_JHW[waiting, h].any(axis=1)][:MOST]
        self.rows = np.r_[mine, waiting]
        self.curve = np.c_[np.zeros(len(self.rows)), speed_JHW[self.rows, h]]

    def run(self, type_J: IntArray, workers_J: IntArray) -> None:
        rows = self.rows
        gives, takes = np.ones(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
        for _ in range(MOST):
            held = workers_J[rows]
            up, down = self._next(held), self._below(held)
            deals = self._deals(held, np.where(takes, up, 0), np.where(gives, down, 0))
            if not deals:
                return
            for b, a in deals:
                workers_J[rows[b]] += up[b]
                workers_J[rows[a]] -= down[a]
                type_J[rows[b]] = self.h
                gives[b], takes[a] = False, False

    def _next(self, held: IntArray) -> IntArray:
        """GPUs to the next possible count that is faster; 0 = none."""
        counts = np.arange(self.curve.shape[1])
        now = self.curve[np.arange(len(held)), held]
        better = (counts > held[:, None]) & (self.curve > now[:, None])
        return np.where(better.any(axis=1), better.argmax(axis=1) - held, 0)

    def _below(self, held: IntArray) -> IntArray:
        """GPUs that a step down to the next possible count frees; 0 = it holds its minimum."""
        counts = np.arange(self.curve.shape[1])
        possible = (counts < held[:, None]) & (self.curve > 0)
        below = self.curve.shape[1] - 1 - possible[:, ::-1].argmax(axis=1)
        return np.where(possible.any(axis=1), held - below, 0)

    def _deals(self, held: IntArray, up: IntArray, down: IntArray) -> list[tuple[int, int]]:
        """(recipient, donor) of the trades with the largest margins, each job in at most one of them."""
        index, terms = np.arange(len(held)), self.terms
        takers, givers = np.flatnonzero(up > 0), np.flatnonzero(down > 0)
        if not len(takers) or not len(givers):
            return []
        now = self.curve[index, held]
        then, after = self.curve[index, held + up], self.curve[index, held - down]
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.where(now > 0, terms.remaining_J[self.rows] / now, np.inf)
            gain_now, gain_then = (then - now) / now / up, (then - now) / then / up
            loss_now, loss_then = (now - after) / now / down, (now - after) / after / down
        gain_then = np.where(now > 0, gain_then, np.inf)
        takers = takers[np.argsort(-gain_now[takers], kind="stable")[:MOST]]
        givers = givers[np.argsort(loss_now[givers], kind="stable")[:MOST]]
        shorter = length[takers, None] < length[givers]
        margin = np.where(
            shorter,
            gain_now[takers, None] - loss_now[givers],
            gain_then[takers, None] - loss_then[givers],
        )
        lasting = np.minimum(terms.lasting_s_J[self.rows[takers]], length[takers])
        cost = terms.cost_up_J[self.rows[takers]][:, None] + terms.cost_down_J[self.rows[givers]]
        fits = (down[givers] >= up[takers, None]) & (takers[:, None] != givers)
        with np.errstate(invalid="ignore"):
            pays = fits & (margin > 0) & ((now[takers] == 0)[:, None] | (margin * lasting[:, None] > cost))
        rows, columns = np.nonzero(pays)
        deals: list[tuple[int, int]] = []
        busy: set[int] = set()
        for i in np.argsort(-margin[rows, columns], kind="stable").tolist():
            b, a = int(takers[rows[i]]), int(givers[columns[i]])
            if b not in busy and a not in busy:
                busy |= {a, b}
                deals.append((b, a))
        return deals
