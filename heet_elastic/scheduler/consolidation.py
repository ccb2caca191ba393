"""Undo fragmentation: move small jobs off a host so that a job that is spread over several fits there, when that pays.

Both sides are completion times: the spread job saves R/T_spread - R/T_dense seconds, and each job that has to move
loses its own rescale cost. Only moves that save more than they cost are made, most saved first, and no job that moves
ends on a slower place than it had.
"""

from __future__ import annotations

from typing import Protocol

from heet_elastic.scheduler.api import DENSE, Problem
from heet_elastic.scheduler.free import Free
from heet_elastic.scheduler.sizes import Sizes

MOST_MOVES = 32
"""Spread jobs that one decision tries to bring together, so that its time stays bounded."""

Where = dict[int, int]


class Placing(Protocol):
    """What consolidation needs of a placement under construction."""

    problem: Problem
    sizes: Sizes
    free: Free
    placed: dict[int, Where]
    type_J: list[int]

    def set(self, j: int, where: Where) -> None:
        """Job j now holds `where`."""

    def limit(self, j: int, group: int) -> int:
        """Most workers of job j on this group."""

    def fresh(self, j: int, want: int, types: tuple[int, ...]) -> Where | None:
        """A place for `want` workers as if the job held nothing."""

    def intact(self, j: int) -> bool:
        """Whether the job runs on where it is."""


def consolidate(placing: Placing) -> None:
    """Bring spread jobs together on one host each, in place."""
    spread = sorted(_spread(placing))[:MOST_MOVES]
    if not spread:
        return
    occupants: dict[int, set[int]] = {}
    for j, where in placing.placed.items():
        for group in where:
            occupants.setdefault(group, set()).add(j)
    for saving, _, j in spread:
        _gather(placing, j, -saving, occupants)


def _spread(placing: Placing) -> list[tuple[float, str, int]]:
    """(-seconds saved if dense, name, job) of the jobs that would gain on a single host."""
    problem = placing.problem
    found = []
    for j, where in placing.placed.items():
        if len(where) < 2 or problem.frozen_J[j] or problem.min_hosts_J[j] > 1 or problem.per_host_J[j]:
            continue
        workers, h = sum(where.values()), placing.type_J[j]
        if workers > problem.throughput_JHWS.shape[2]:
            continue
        speed, dense = placing.sizes.speed(j, tuple(where.items()))
        together = float(problem.throughput_JHWS[j, h, workers - 1, DENSE])
        if dense or together <= speed or placing.sizes.fewest_hosts(j, h, workers) > 1:
            continue
        restart = float(problem.rescale_up_s_J[j]) if placing.intact(j) else 0.0
        work = float(problem.remaining_J[j])
        saving = (work / speed if speed > 0 else float("inf")) - work / together - restart
        if saving > 0:
            found.append((-saving, problem.jobs[j], j))
    return found


def _gather(placing: Placing, j: int, saving: float, occupants: dict[int, set[int]]) -> None:
    """Put all of job j's workers on the host that is cheapest to clear, if that costs less than `saving`."""
    old, h = placing.placed[j], placing.type_J[j]
    workers = sum(old.values())
    plans = []
    for group in placing.free.groups[h]:
        if placing.limit(j, group) >= workers:
            movers = _movers(placing, j, group, workers - old.get(group, 0) - placing.free.gpus[group], occupants)
            if movers is not None and movers[0] < saving:
                plans.append((movers[0], group, movers[1]))
    for _, group, movers_ in sorted(plans)[:3]:
        if _apply(placing, j, group, workers, movers_):
            for job in (j, *movers_):
                for members in occupants.values():
                    members.discard(job)
                for g in placing.placed[job]:
                    occupants.setdefault(g, set()).add(job)
            return


def _movers(
    placing: Placing, j: int, group: int, lack: int, occupants: dict[int, set[int]]
) -> tuple[float, tuple[int, ...]] | None:
    """The cheapest jobs (greedily, by cost per GPU) whose leaving frees `lack` GPUs of `group`; None = impossible."""
    problem = placing.problem
    cost, movers = 0.0, []
    rated = []
    for k in occupants.get(group, ()):
        if k != j and not problem.frozen_J[k] and len(placing.placed[k]) == 1:
            price = float(problem.rescale_up_s_J[k]) if placing.intact(k) else 0.0
            rated.append((price / placing.placed[k][group], problem.jobs[k], k, price))
    for _, _, k, price in sorted(rated):
        if lack <= 0:
            break
        lack -= placing.placed[k][group]
        cost += price
        movers.append(k)
    return (cost, tuple(movers)) if lack <= 0 else None


def _apply(placing: Placing, j: int, group: int, workers: int, movers: tuple[int, ...]) -> bool:
    """Make the move, or leave everything as it was when a mover finds no place on one host."""
    before = {k: placing.placed[k] for k in (j, *movers)}
    for k in before:
        placing.set(k, {})
    placing.set(j, {group: workers})
    for k in sorted(movers, key=lambda m: (-sum(before[m].values()), placing.problem.jobs[m])):
        where = placing.fresh(k, sum(before[k].values()), (placing.type_J[k],))
        if where is None or len(where) > 1:
            for m in before:
                placing.set(m, {})
            for m, was in before.items():
                placing.set(m, was)
            return False
        placing.set(k, where)
    return True
