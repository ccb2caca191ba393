"""Jobs whose smallest allowed count fits on no single host type: they get it over several types, or wait.

A synchronous job over several types runs at its slowest member's pace, so types come fastest first. Such a job is
served when that many GPUs are idle, or when it has waited for `patience_s`; it then keeps them to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heet_elastic.scheduler.api import SPREAD, IntArray, Problem


@dataclass(frozen=True, slots=True)
class Span:
    """A job that has to span types: its row, its smallest allowed count, and how many of them each type can hold."""

    job: int
    workers: int
    room_H: IntArray


def span_types(problem: Problem, j: int, workers: int) -> list[int]:
    """Host types in the order in which a spanning job takes them: fastest at this size first."""
    table = problem.throughput_JHWS
    size = min(workers, table.shape[2]) - 1
    return sorted(range(len(problem.host_types)), key=lambda h: (-float(table[j, h, size, SPREAD]), h))


def settle_spanning(
    problem: Problem, asks: Sequence[Span], gpus_H: IntArray, held: int, patience_s: float
) -> Iterable[tuple[int, int, int]]:
    """(job, first type, workers) of each spanning job that is decided now; (job, -1, 0) = waits.

    What they take is subtracted from gpus_H in place. `held` = GPUs in use now.
    """
    idle = int(problem.group_gpus_G.sum()) - held
    order = sorted(asks, key=lambda a: (not problem.current[a.job], -problem.waited_s_J[a.job], problem.jobs[a.job]))
    for ask in order:
        j, running = ask.job, bool(problem.current[ask.job])
        takes = _share(problem, ask, gpus_H)
        if takes is None or not (running or idle >= ask.workers or problem.waited_s_J[j] >= patience_s):
            yield j, -1, 0
            continue
        for h, workers in takes:
            gpus_H[h] -= workers
        if not running:
            idle -= ask.workers
        yield j, takes[0][0], ask.workers


def _share(problem: Problem, ask: Span, gpus_H: IntArray) -> list[tuple[int, int]] | None:
    """(type, workers) of a placement; what a running job holds comes first. None = there is not enough."""
    left = ask.workers
    takes: dict[int, int] = {}
    for group, workers in problem.current[ask.job]:
        h = int(problem.group_type_G[group])
        takes[h] = takes.get(h, 0) + workers
    if sum(takes.values()) == left and all(n <= gpus_H[h] for h, n in takes.items()):
        return list(takes.items())
    taken: list[tuple[int, int]] = []
    for h in span_types(problem, ask.job, ask.workers):
        workers = min(left, int(ask.room_H[h]), int(gpus_H[h]))
        if workers > 0:
            taken.append((h, workers))
            left -= workers
    return taken if left == 0 else None
