"""Lower bounds on the mean completion time of any schedule, so that the distance to the best possible is visible.

Every bound holds for every policy, clairvoyant ones included, that runs a job on one host type at a time. `lower_bound`
is the largest of three. Jobs are seen as `Demand`s: release r_j (submission + the unavoidable first start), work W_j,
and the configurations k = (host type h, workers w, speed T_jk) that they may use; N_h is the number of GPUs of type h.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.truth import Truth

FloatArray = NDArray[np.float64]
Option = tuple[int, int, float]
"""(host type index, workers, speed) of a configuration."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A job as the bounds see it. `options` is not empty and every speed in it is > 0."""

    release_s: float
    work: float
    options: tuple[Option, ...]

    @property
    def alone_s(self) -> float:
        """Running time at the fastest configuration."""
        return self.work / max(speed for _, _, speed in self.options)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Mean completion times (from submission), in seconds, that no schedule can beat."""

    alone_s: float
    pooled_s: float
    binned_s: float

    @property
    def best_s(self) -> float:
        """The largest of them."""
        return max(self.alone_s, self.pooled_s, self.binned_s)


def lower_bound(
    jobs: Sequence[SimJob],
    truth: Truth,
    gpus: Mapping[str, int],
    start_s: float = 0.0,
    long_jobs: int = 80,
    bins: int = 48,
) -> Bounds:
    """The three bounds for these jobs on a cluster with `gpus` of each type; `start_s` is what a first start costs.

    Jobs that fit on no single type would have to span types: they are left out of all sums but the first.
    """
    demands = build_demands(jobs, truth, gpus, start_s)
    sizes = np.array(list(gpus.values()), dtype=np.float64)
    submitted = sum(j.submit_s for j in jobs)
    count = len(jobs)
    return Bounds(
        alone_s=(sum(d.release_s + d.alone_s for d in demands) - submitted) / count,
        pooled_s=(pooled_srpt(demands, sizes) - submitted) / count,
        binned_s=(binned_lp(demands, sizes, long_jobs, bins) - submitted) / count,
    )


def build_demands(jobs: Sequence[SimJob], truth: Truth, gpus: Mapping[str, int], start_s: float = 0.0) -> list[Demand]:
    """Demands of the jobs: for every type and allowed count the fastest placement over any number of hosts."""
    types = list(gpus)
    cache: dict[tuple[str, int, int], tuple[Option, ...]] = {}
    demands = []
    for job in jobs:
        key = (job.row, job.min_workers, job.max_workers)
        if key not in cache:
            cache[key] = tuple(_options(truth, types, gpus, *key))
        demands.append(Demand(job.submit_s + start_s, job.total_work, cache[key]))
    return demands


def _options(
    truth: Truth, types: Sequence[str], gpus: Mapping[str, int], row: str, least: int, most: int
) -> list[Option]:
    options = []
    for h, host_type in enumerate(types):
        spans = {n for _, n in truth.rows[row].cells.get(host_type, {})} | {1}
        for w in range(least, min(most, gpus[host_type]) + 1):
            speed = max(truth.speed(row, host_type, w, n) for n in spans)
            if speed > 0:
                options.append((h, w, speed))
    if options:
        return options
    # Only a placement over several types can hold it; at best it runs at the fastest of them, and holds none here.
    largest = max(
        truth.speed(row, t, w, n) for t, cells in truth.rows[row].cells.items() for w, n in cells if least <= w
    )
    return [(0, 0, largest)]


def alone(demands: Sequence[Demand]) -> float:
    """Sum of completion times if every job had the cluster to itself.

    Proof: a job cannot do its work W_j faster than at its fastest configuration all the time, so
    C_j >= r_j + W_j / max_k T_jk.
    """
    return sum(d.release_s + d.alone_s for d in demands)


def pooled_srpt(demands: Sequence[Demand], gpus_H: FloatArray) -> float:
    """Sum of completion times on one pooled machine under shortest remaining processing time first.

    Proof: give a GPU of type h the weight s_h > 0. While job j runs in k = (h, w) for a time dt it occupies w s_h dt of
    weighted capacity and does T_jk dt work, so a unit of its work occupies at least min_k s_h w / T_jk; all its work
    occupies at least q_j = W_j min_k(s_h w / T_jk). The cluster has S = sum_h s_h N_h of it per second. Pool it into
    one machine of speed S that may serve any job at any share: every real schedule is one of that machine (serve job j
    with the capacity that it occupies; then j is done no later than in the real schedule). On one machine with releases
    and preemption, SRPT minimises the sum of completion times (Schrage 1968). s_h is the mean speed of a GPU of type h.
    """
    weights = _type_weights(demands, len(gpus_H))
    capacity = float(weights @ gpus_H)
    needs = [
        (d.release_s, d.work * min(weights[h] * w / speed for h, w, speed in d.options) / capacity) for d in demands
    ]
    return srpt(needs)


def _type_weights(demands: Sequence[Demand], types: int) -> FloatArray:
    """Mean over jobs of a type's best speed per GPU relative to the job's best on any type; > 0."""
    total = np.full(types, 1e-9)
    for d in demands:
        best = np.zeros(types)
        for h, w, speed in d.options:
            best[h] = max(best[h], speed / w) if w else best[h]
        total += best / best.max() if best.max() > 0 else 0.0
    return total


def srpt(needs: Sequence[tuple[float, float]]) -> float:
    """Sum of completion times of (release, processing time) on one machine, shortest remaining time first."""
    order = sorted(needs)
    queue: list[float] = []
    now = total = 0.0
    i = 0
    while i < len(order) or queue:
        if not queue:
            now = max(now, order[i][0])
        while i < len(order) and order[i][0] <= now:
            heapq.heappush(queue, order[i][1])
            i += 1
        remaining = heapq.heappop(queue)
        until = order[i][0] if i < len(order) else np.inf
        if now + remaining <= until:
            now += remaining
            total += now
        else:
            heapq.heappush(queue, remaining - (until - now))
            now = until
    return total


def binned_lp(demands: Sequence[Demand], gpus_H: FloatArray, long_jobs: int, bins: int) -> float:
    """Sum of completion times: a time-binned linear programme over the `long_jobs` longest, the others alone.

    Variables z_jkb >= 0: seconds that job j runs in k within bin b = [t_b, t_b+1); the last bin has no end.
    For any real schedule let z be what it does, f_jb = sum_k T_jk z_jkb / W_j the share of j's work done in b, and C_j
    its completion. Then, with p_j = W_j / max_k T_jk:

      sum_b f_jb = 1                              all work is done
      sum_k z_jkb <= time of b after r_j          one configuration at a time
      sum_jk w_k z_jkb <= N_h |b|   (k on type h) no more GPUs than there are (the last bin is left free)
      C_j >= r_j + sum_kb z_jkb                   it waits at least nothing and runs that long
      C_j >= sum_b (max(t_b, r_j) f_jb + p_j q_jb / 2) + p_j / 2      the mean busy time, see below
      q_jb >= 2 a f_jb - a^2 for two values of a  so q_jb <= f_jb^2 is allowed (tangents of the square), q_jb >= 0

    The mean busy time: let g(t) >= 0 be the rate at which shares of j's work are done, so that its integral is 1 and
    g <= 1/p_j. The work of bin b is done after s = max(t_b, r_j); as g <= 1/p_j it is done at the earliest on
    [s, s + p_j f_jb], so the integral of t g(t) over b is at least s f_jb + p_j f_jb^2 / 2. Their sum bounds
    M_j = integral of t g(t) dt from below. And C_j - M_j = integral of (C_j - t) g(t) dt is least when all work is as
    late as possible, g = 1/p_j on [C_j - p_j, C_j], where it is p_j / 2. So every schedule is a feasible point with the
    objective sum C_j: the minimum is a lower bound. Leaving short jobs out only frees capacity; for them
    C_j >= r_j + p_j. Configurations below the concave hull of (w, T) on their type, (0, 0) included, are left out: a
    mix of hull points and idling has the same GPU time and speed, and runs no longer.
    """
    chosen = sorted(range(len(demands)), key=lambda j: (-demands[j].alone_s, j))[:long_jobs]
    chosen = [j for j in chosen if all(w > 0 for _, w, _ in demands[j].options)]
    if not chosen:
        return alone(demands)
    long = [demands[j] for j in chosen]
    picked = set(chosen)
    rest = alone([d for j, d in enumerate(demands) if j not in picked])
    return rest + max(_solve(long, gpus_H, _edges(long, bins)), alone(long))


def hull(options: Sequence[Option]) -> list[Option]:
    """Options on the concave hull of speed over workers of their type, from (0, 0) up to the fastest."""
    kept: list[Option] = []
    for h in sorted({o[0] for o in options}):
        points: list[Option] = [(h, 0, 0.0)]
        for option in sorted(o for o in options if o[0] == h):
            if option[2] <= points[-1][2]:
                continue
            while len(points) > 1 and _above(points[-2], points[-1], option):
                points.pop()
            points.append(option)
        kept += points[1:]
    return kept


def _above(a: Option, b: Option, c: Option) -> bool:
    """Whether b lies on or below the line from a to c."""
    return (b[2] - a[2]) * (c[1] - a[1]) <= (c[2] - a[2]) * (b[1] - a[1])


def _edges(long: Sequence[Demand], bins: int) -> FloatArray:
    """Bin edges: quantiles of releases and of moments at which the jobs could end when sharing the cluster."""
    times = [d.release_s for d in long]
    times += [d.release_s + share * d.alone_s for d in long for share in (0.5, 1.0, 2.0, 4.0)]
    edges = np.quantile(np.array(times), np.linspace(0.0, 1.0, bins + 1))
    return np.unique(edges)


def _solve(long: Sequence[Demand], gpus_H: FloatArray, edges: FloatArray) -> float:
    """Minimum of sum C_j of the programme in `binned_lp`."""
    model = _Model(long, gpus_H, edges)
    result = linprog(
        model.cost,
        A_ub=model.inequalities(),
        b_ub=np.array(model.ub_limit),
        A_eq=model.equalities(),
        b_eq=np.ones(len(long)),
        method="highs",
    )
    if result.status != 0:
        return 0.0  # the solver gave up: no bound, never a wrong one
    # The optimum of a floating-point solver is trusted to its tolerance: shave it off.
    return float(result.fun or 0.0) * (1.0 - 1e-6)


class _Model:
    """The programme's sparse matrices. Columns: C_j first, then z; rows are added job by job, bin by bin."""

    def __init__(self, long: Sequence[Demand], gpus_H: FloatArray, edges: FloatArray) -> None:
        self.long, self.jobs, self.bins = long, len(long), len(edges)
        ends = np.append(edges[1:], np.inf)
        self.ub_limit: list[float] = []
        self._ub: list[tuple[int, int, float]] = []
        self._eq: list[tuple[int, int, float]] = []
        self.columns = self.jobs
        capacity_row: dict[tuple[int, int], int] = {}
        for b in range(self.bins - 1):
            for h, n in enumerate(gpus_H):
                capacity_row[h, b] = len(self.ub_limit)
                self.ub_limit.append(float(n) * float(ends[b] - edges[b]))
        for j, d in enumerate(long):
            self._add_job(j, d, edges, ends, capacity_row)
        self.cost = np.concatenate([np.ones(self.jobs), np.zeros(self.columns - self.jobs)])

    def _add_job(
        self, j: int, d: Demand, edges: FloatArray, ends: FloatArray, capacity_row: Mapping[tuple[int, int], int]
    ) -> None:
        options = hull(d.options)
        running, busy = len(self.ub_limit), len(self.ub_limit) + 1
        self.ub_limit += [-d.release_s, -d.alone_s / 2]
        self._ub += [(running, j, -1.0), (busy, j, -1.0)]
        for b in range(self.bins):
            length = ends[b] - max(edges[b], d.release_s)
            if length <= 0:
                continue
            one_at_a_time = -1
            if np.isfinite(length):
                one_at_a_time = len(self.ub_limit)
                self.ub_limit.append(float(length))
            begins = max(float(edges[b]), d.release_s)
            squares = self._add_square(busy, d, float(length))
            for h, w, speed in options:
                z = self.columns
                self.columns += 1
                share = speed / d.work
                self._eq.append((j, z, share))
                self._ub += [(running, z, 1.0), (busy, z, begins * share)]
                self._ub += [(row, z, 2.0 * at * share) for row, at in squares]
                if one_at_a_time >= 0:
                    self._ub += [(one_at_a_time, z, 1.0), (capacity_row[h, b], z, float(w))]

    def _add_square(self, busy: int, d: Demand, length: float) -> list[tuple[int, float]]:
        """The column q of a bin, with a row 2 a f - q <= a^2 for each tangent point a; the rows and points."""
        if not np.isfinite(length):
            return []
        full = min(length / d.alone_s, 1.0)
        q = self.columns
        self.columns += 1
        self._ub.append((busy, q, d.alone_s / 2))
        squares = []
        for at in (full, full / 2):
            squares.append((len(self.ub_limit), at))
            self._ub.append((len(self.ub_limit), q, -1.0))
            self.ub_limit.append(at * at)
        return squares

    def inequalities(self) -> Any:
        """Rows that are <= `ub_limit`."""
        return _matrix(self._ub, len(self.ub_limit), self.columns)

    def equalities(self) -> Any:
        """Rows that are = 1: all work is done."""
        return _matrix(self._eq, self.jobs, self.columns)


def _matrix(entries: Sequence[tuple[int, int, float]], rows: int, columns: int) -> Any:
    r, c, v = zip(*entries, strict=True)
    return csr_array((np.array(v), (np.array(r), np.array(c))), shape=(rows, columns))
