"""AFS-L (Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI'21, Algorithm 1 and Eq. 3).

Stage one: one GPU (the least allowed count) to each job, shortest first. Stage two: every further GPU to the job that
wins against all others pairwise. Of a shorter job a and a longer job b, b wins iff (p_b' - p_b)/p_b' > (p_a' - p_a)/p_a
where p' is the throughput with one GPU more. The relation is not transitive, so the order of the scan is part of the
definition: by arrival, then name. Blind to host types: curves are averaged over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray, Problem
from heet_elastic.scheduler.blind import assign_types, mean_curve_JW
from heet_elastic.scheduler.options import build_options, in_canonical_order


@dataclass(frozen=True, slots=True)
class Afs:
    """Apathetic future share, length-aware."""

    name: str = "afs"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is the remaining time on one GPU."""
        return in_canonical_order(_choose, problem, rng)


def afs_counts(curve_JW: FloatArray, remaining_J: FloatArray, scan: IntArray, gpus: int) -> IntArray:
    """Workers per job by the two stages. curve_JW[j, w-1] = throughput, 0 = not possible; `scan`: order of stage two.

    Jobs are called shorter or longer by remaining_J over the throughput of what they hold so far.
    """
    following = [_following(row, curve_JW.shape[1]) for row in curve_JW.tolist()]
    table, work = curve_JW.tolist(), remaining_J.tolist()
    held, free = [0] * len(table), gpus
    entry = [work[j] / table[j][following[j][0] - 1] if following[j][0] else np.inf for j in range(len(table))]
    for j in np.argsort(entry, kind="stable").tolist():
        if following[j][0] and following[j][0] <= free:
            held[j] = following[j][0]
            free -= held[j]
    place = {j: i for i, j in enumerate(scan.tolist())}
    bids = {j: bid for j in place if (bid := _bid(j, held, following, table, work))}
    while free > 0:
        winner: int | None = None
        for j in place:  # in the order of the scan
            if j in bids and bids[j].step <= free and (winner is None or bids[j].beats(bids[winner])):
                winner = j
        if winner is None:
            break
        free -= bids[winner].step
        held[winner] += bids.pop(winner).step
        if bid := _bid(winner, held, following, table, work):
            bids[winner] = bid
    return np.array(held, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Bid:
    """What a job would gain by its next GPUs: relative to what it has now and to what it would have, per GPU."""

    length_s: float
    step: int
    to_now: float
    to_then: float

    def beats(self, other: _Bid) -> bool:
        """Whether the pairwise test gives the GPU to this job rather than to `other` (the shorter one wins ties)."""
        if self.length_s < other.length_s:
            return not other.to_then > self.to_now
        return self.to_then > other.to_now


def _bid(
    j: int, held: list[int], following: list[list[int]], table: list[list[float]], work: list[float]
) -> _Bid | None:
    after = following[j][held[j]] if held[j] else 0
    if not after:
        return None
    now, then, step = table[j][held[j] - 1], table[j][after - 1], after - held[j]
    if then <= now:
        return None
    return _Bid(work[j] / now, step, (then - now) / now / step, (then - now) / then / step)


def _following(row: list[float], most: int) -> list[int]:
    """following[w] = the next possible count above w (0 = none)."""
    following, after = [0] * (most + 1), 0
    for w in range(most, -1, -1):
        following[w] = after
        if w and row[w - 1] > 0:
            after = w
    return following


def _choose(problem: Problem, rng: np.random.Generator) -> Choice:
    del rng
    options = build_options(problem)
    curve = mean_curve_JW(options)
    least = (curve > 0).argmax(axis=1)
    slowest = curve[np.arange(len(curve)), least]
    length = np.where(slowest > 0, problem.remaining_J / np.where(slowest > 0, slowest, 1.0), np.inf)
    scan = np.argsort(-problem.age_s_J, kind="stable")
    counts = afs_counts(curve, problem.remaining_J, scan, int(options.gpus_H.sum()))
    return assign_types(options, counts, np.argsort(length, kind="stable"), length, "AFS-L")
