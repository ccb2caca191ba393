"""What each job may be given: the throughput table with every limit applied, and the GPUs that can be given away.

A configuration (j, h, w) is possible iff w is allowed (`allowed_JW`, minimum, maximum), at most `max_hosts` and at
least `min_hosts` groups of type h can hold w workers of j under `limit_JG`, a rigid job gets `per_host` workers on each
host, and the table says that j runs there (> 0). Jobs that finish (frozen) hold what they have and take no part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from heet_elastic.scheduler.api import DENSE, BoolArray, Choice, FloatArray, IntArray, Placed, Problem


@dataclass(frozen=True, slots=True)
class Options:
    """The possible configurations of a problem.

    speed_JHW[j,h,w-1]: densest throughput, 0 = not possible. gpus_H: GPUs of each type that no frozen job holds.
    active_J: jobs that take part. current_type_J, current_J: what they hold (-1, 0 = nothing). span_J: jobs whose
    smallest allowed count fits on no single type.
    """

    speed_JHW: FloatArray
    gpus_H: IntArray
    active_J: BoolArray
    current_type_J: IntArray
    current_J: IntArray
    span_J: BoolArray


def usable_JG(problem: Problem) -> IntArray | None:
    """Most workers of each job on each group: the smaller of the limit and the group; None = the groups' sizes."""
    if problem.limit_JG is None:
        return None
    return np.minimum(problem.limit_JG, problem.group_gpus_G[None, :])


def room_JH(problem: Problem) -> IntArray:
    """Most workers of each job on each host type, on at most `max_hosts` hosts (rigid: `per_host` on each)."""
    jobs, types = len(problem.jobs), len(problem.host_types)
    room = np.zeros((jobs, types), dtype=np.int64)
    usable = usable_JG(problem)
    rigid = problem.per_host_J > 0
    for h in range(types):
        groups = np.flatnonzero(problem.group_type_G == h)
        if not len(groups):
            continue
        hosts = np.clip(problem.max_hosts_J, 1, len(groups))
        if usable is None:
            sizes = np.sort(problem.group_gpus_G[groups])[::-1]
            room[:, h] = np.cumsum(sizes)[hosts - 1]
            if rigid.any():
                ascending = sizes[::-1]
                holding = len(groups) - np.searchsorted(ascending, problem.per_host_J[rigid], side="left")
                room[rigid, h] = problem.per_host_J[rigid] * np.minimum(holding, problem.max_hosts_J[rigid])
            room[:, h][(problem.min_hosts_J > (sizes > 0).sum())] = 0
        else:
            mine = -np.sort(-usable[:, groups], axis=1)
            room[:, h] = np.take_along_axis(np.cumsum(mine, axis=1), hosts[:, None] - 1, axis=1)[:, 0]
            if rigid.any():
                holding = (mine[rigid] >= problem.per_host_J[rigid, None]).sum(axis=1)
                room[rigid, h] = problem.per_host_J[rigid] * np.minimum(holding, problem.max_hosts_J[rigid])
            room[:, h][problem.min_hosts_J > (mine > 0).sum(axis=1)] = 0
    return room


def counts_JW(problem: Problem) -> BoolArray:
    """Worker counts that each job may have, wherever they are."""
    counts = np.arange(1, problem.allowed_JW.shape[1] + 1)
    low = np.maximum(problem.min_J, problem.min_hosts_J)
    allowed = problem.allowed_JW & (counts >= low[:, None]) & (counts <= problem.max_J[:, None])
    rigid = problem.per_host_J > 0
    if rigid.any():
        each = problem.per_host_J[rigid, None]
        hosts = counts // each
        fits = (counts % each == 0) & (hosts >= problem.min_hosts_J[rigid, None])
        allowed[rigid] &= fits & (hosts <= problem.max_hosts_J[rigid, None])
    return allowed


def frozen_gpus_H(problem: Problem) -> IntArray:
    """GPUs of each type that frozen jobs hold."""
    held = np.zeros(len(problem.host_types), dtype=np.int64)
    for j in np.flatnonzero(problem.frozen_J):
        for group, workers in problem.current[j]:
            held[problem.group_type_G[group]] += workers
    return held


def type_gpus_H(problem: Problem) -> IntArray:
    """All GPUs of each type."""
    types = len(problem.host_types)
    return np.bincount(problem.group_type_G, weights=problem.group_gpus_G, minlength=types).astype(np.int64)


def build_options(problem: Problem) -> Options:
    """The possible configurations of `problem`."""
    gpus = np.maximum(type_gpus_H(problem) - frozen_gpus_H(problem), 0)
    active = ~problem.frozen_J
    counts = np.arange(1, problem.allowed_JW.shape[1] + 1)
    allowed = counts_JW(problem)
    room = np.minimum(room_JH(problem), gpus[None, :])
    possible = allowed[:, None, :] & (counts <= room[:, :, None]) & active[:, None, None]
    dense = problem.throughput_JHWS[..., DENSE]
    speed = np.where(possible & np.isfinite(dense) & (dense > 0), dense, 0.0)
    smallest = np.where(allowed.any(axis=1), allowed.argmax(axis=1) + 1, 0)
    span = active & (smallest > 0) & (room.max(axis=1, initial=0) < smallest) & (room.sum(axis=1) >= smallest)
    return Options(speed, gpus, active, problem.current_type_J(), problem.current_workers_J(), span)


def permuted(problem: Problem, order: IntArray) -> Problem:
    """The same problem with its jobs in another order."""
    changed: dict[str, object] = {
        "jobs": tuple(problem.jobs[j] for j in order),
        "current": tuple(problem.current[j] for j in order),
    }
    for field in fields(problem):
        if "_J" in field.name and (value := getattr(problem, field.name)) is not None:
            changed[field.name] = value[order]
    return replace(problem, **changed)  # type: ignore[arg-type]


def in_canonical_order(
    choose: Callable[[Problem, np.random.Generator], Choice], problem: Problem, rng: np.random.Generator
) -> Choice:
    """`choose` with the jobs sorted by name, so that ties never depend on the order in which jobs are listed."""
    names = problem.jobs
    if all(a < b for a, b in pairwise(names)):
        return choose(problem, rng)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    choice = choose(permuted(problem, order), rng)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return Choice(choice.type_J[back], choice.workers_J[back], choice.price_J[back], choice.note)


def hosts_of(problem: Problem, placed: Placed) -> int:
    """Number of hosts of a placement."""
    return len({problem.groups[group] for group, _ in placed})
