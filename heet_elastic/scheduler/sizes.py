"""How dense a placement is, and what a job's throughput is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import DENSE, SPREAD, BoolArray, FloatArray, IntArray, Placed, Problem
from heet_elastic.scheduler.options import hosts_of


@dataclass(frozen=True, slots=True)
class Priced:
    """A placement as it would run: throughput, hosts spanned, whether it is densest possible, whether it changes."""

    speed_J: FloatArray
    hosts_J: IntArray
    dense_J: BoolArray
    changed_J: BoolArray


class Sizes:
    """Group sizes of each host type, largest first, and the throughput of a job on given groups."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.type_of: list[int] = problem.group_type_G.tolist()
        self.gpus: list[int] = problem.group_gpus_G.tolist()
        self._largest: list[list[int]] = [[] for _ in problem.host_types]
        for group, h in enumerate(self.type_of):
            self._largest[h].append(self.gpus[group])
        for sizes in self._largest:
            sizes.sort(reverse=True)

    def fewest_hosts(self, j: int, h: int, workers: int) -> int:
        """The least number of hosts of type h that can hold `workers` of job j."""
        problem = self.problem
        each = int(problem.per_host_J[j])
        if each:
            return -(-workers // each)
        sizes = self._largest[h]
        if problem.limit_JG is not None:
            groups = np.flatnonzero(problem.group_type_G == h)
            usable = np.minimum(problem.limit_JG[j, groups], problem.group_gpus_G[groups])
            sizes = sorted(usable.tolist(), reverse=True)
        left, hosts = workers, 0
        for size in sizes:
            if left <= 0 or size <= 0:
                break
            left -= size
            hosts += 1
        return max(hosts, int(problem.min_hosts_J[j]))

    def speed(self, j: int, where: Placed) -> tuple[float, bool]:
        """Throughput of job j placed at `where` (not empty), and whether that is as dense as can be.

        Over several host types a synchronous job runs at the pace of its slowest member: the smallest, over those
        types, of the throughput that all of its workers would have there.
        """
        workers = sum(n for _, n in where)
        types = {self.type_of[group] for group, _ in where}
        table = self.problem.throughput_JHWS
        if workers > table.shape[2]:
            return 0.0, False
        if len(types) > 1:
            return min(float(table[j, h, workers - 1, SPREAD]) for h in types), False
        (h,) = types
        stands = -(-workers // max(self._largest[h][0], 1))  # hosts for which DENSE stands
        dense = len(where) == 1 or len(where) <= self.fewest_hosts(j, h, workers)
        return float(table[j, h, workers - 1, DENSE if len(where) <= stands else SPREAD]), dense


def reprice(problem: Problem, placed: tuple[Placed, ...]) -> Priced:
    """The placement `placed` with the throughput of the hosts that it spans (0 where a job has nothing)."""
    jobs = len(problem.jobs)
    speed, hosts = np.zeros(jobs), np.zeros(jobs, dtype=np.int64)
    dense, changed = np.ones(jobs, dtype=bool), np.zeros(jobs, dtype=bool)
    sizes = Sizes(problem)
    for j, where in enumerate(placed):
        changed[j] = where != problem.current[j]
        if where:
            hosts[j] = hosts_of(problem, where)
            speed[j], dense[j] = sizes.speed(j, where)
    return Priced(speed, hosts, dense, changed)
