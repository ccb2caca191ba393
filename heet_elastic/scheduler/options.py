"""What each job may be given: the throughput table with every limit applied, and the GPUs that can be given away.

A configuration (j, h, w) is possible iff w is allowed (`allowed_JW`, minimum, maximum), at most `max_hosts` and at
least `min_hosts` groups of type h can hold w workers of j under `limit_JG`, a rigid job gets `per_host` workers on each
host, and the table says that j runs there (> 0). Two kinds of jobs are settled before any policy looks: those that
finish (frozen) hold what they have, and those that fit on no single type are served as `spanning` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np

from heet_elastic.scheduler.api import BoolArray, Choice, FloatArray, IntArray, Placed, Problem
from heet_elastic.scheduler.density import densest_speed_JHW
from heet_elastic.scheduler.spanning import Span, settle_spanning

SLOWEST, FASTEST = 1e-100, 1e100
"""Speeds outside are no speeds: they would overflow in ratios."""


@dataclass(frozen=True, slots=True)
class Options:
    """The possible configurations of a problem.

    speed_JHW[j,h,w-1]: throughput on the fewest hosts that the job can have, 0 = not possible. gpus_H: GPUs of each
    type that policies may give away. current_type_J, current_J: what jobs hold (-1, 0 = nothing). fixed_J: jobs that
    are settled already, with fixed_type_J and fixed_workers_J; their speeds here are 0.
    """

    speed_JHW: FloatArray
    gpus_H: IntArray
    current_type_J: IntArray
    current_J: IntArray
    fixed_J: BoolArray
    fixed_type_J: IntArray
    fixed_workers_J: IntArray

    @property
    def running_J(self) -> BoolArray:
        """Jobs that hold GPUs and take part."""
        return (self.current_J > 0) & ~self.fixed_J

    @property
    def stays_J(self) -> BoolArray:
        """Jobs that hold a configuration which is still possible for them, so that they may keep it."""
        stays: BoolArray = self.running_J & (self.current_J <= self.speed_JHW.shape[2])
        rows = np.flatnonzero(stays)
        stays[rows] = self.speed_JHW[rows, self.current_type_J[rows], self.current_J[rows] - 1] > 0
        return stays

    def choice(self, type_J: IntArray, workers_J: IntArray, price_J: FloatArray, note: str) -> Choice:
        """A policy's decision, completed by the jobs that were settled before it."""
        return Choice(
            np.where(self.fixed_J, self.fixed_type_J, np.where(workers_J > 0, type_J, -1)),
            np.where(self.fixed_J, self.fixed_workers_J, np.where(type_J >= 0, workers_J, 0)),
            price_J,
            note,
        )


def room_JH(problem: Problem) -> IntArray:
    """Most workers of each job on each host type, on at most `max_hosts` hosts (rigid: `per_host` on each)."""
    room = np.zeros((len(problem.jobs), len(problem.host_types)), dtype=np.int64)
    each = problem.per_host_J
    rigid = np.flatnonzero(each > 0)
    for h in range(room.shape[1]):
        groups = np.flatnonzero(problem.group_type_G == h)
        if not len(groups):
            continue
        last = np.clip(problem.max_hosts_J, 1, len(groups)) - 1
        if problem.limit_JG is None:
            sizes = -np.sort(-problem.group_gpus_G[groups])
            room[:, h] = sizes.cumsum()[last]
            holding = len(groups) - np.searchsorted(sizes[::-1], each[rigid], side="left")
            hosts = int((sizes > 0).sum())
        else:
            usable = np.minimum(problem.limit_JG[:, groups], problem.group_gpus_G[groups])
            usable = -np.sort(-usable, axis=1)
            room[:, h] = np.take_along_axis(usable.cumsum(axis=1), last[:, None], axis=1)[:, 0]
            holding = (usable[rigid] >= each[rigid, None]).sum(axis=1)
            hosts = (usable > 0).sum(axis=1)
        room[rigid, h] = each[rigid] * np.minimum(holding, problem.max_hosts_J[rigid])
        room[:, h] *= problem.min_hosts_J <= np.minimum(hosts, problem.max_hosts_J)
    return room


def counts_JW(problem: Problem) -> BoolArray:
    """Worker counts that each job may have, wherever they are."""
    counts = np.arange(1, problem.allowed_JW.shape[1] + 1)
    low = np.maximum(problem.min_J, problem.min_hosts_J)
    allowed = problem.allowed_JW & (counts >= low[:, None]) & (counts <= problem.max_J[:, None])
    rigid = np.flatnonzero(problem.per_host_J > 0)
    if len(rigid):
        each = problem.per_host_J[rigid, None]
        hosts = counts // each
        fits = (counts % each == 0) & (hosts >= problem.min_hosts_J[rigid, None])
        allowed[rigid] &= fits & (hosts <= problem.max_hosts_J[rigid, None])
    return allowed


def type_gpus_H(problem: Problem) -> IntArray:
    """All GPUs of each type."""
    gpus = np.bincount(problem.group_type_G, weights=problem.group_gpus_G, minlength=len(problem.host_types))
    return gpus.astype(np.int64)


def build_options(problem: Problem, patience_s: float = 600.0, keep_J: BoolArray | None = None) -> Options:
    """The possible configurations of `problem`. A job that must span types is served within `patience_s`."""
    fixed = problem.frozen_J.copy() if keep_J is None else problem.frozen_J | keep_J
    kind, held = problem.current_type_J(), problem.current_workers_J()
    fixed_type, fixed_workers = np.where(fixed, kind, -1), np.where(fixed, held, 0)
    gpus = type_gpus_H(problem)
    for j in np.flatnonzero(fixed):
        for group, workers in problem.current[j]:
            gpus[problem.group_type_G[group]] -= workers
    gpus = np.maximum(gpus, 0)
    allowed, room = counts_JW(problem), np.minimum(room_JH(problem), gpus)
    smallest = np.where(allowed.any(axis=1), allowed.argmax(axis=1) + 1, 0)
    spans = np.flatnonzero((room.max(axis=1, initial=0) < smallest) & (room.sum(axis=1) >= smallest) & ~fixed)
    if len(spans):
        asks = [Span(int(j), int(smallest[j]), room[j]) for j in spans]
        for row, h, workers in settle_spanning(problem, asks, gpus, int(held.sum()), patience_s):
            fixed[row], fixed_type[row], fixed_workers[row] = True, h, workers
        room = np.minimum(room, gpus)
    counts = np.arange(1, allowed.shape[1] + 1)
    dense = densest_speed_JHW(problem)
    possible = allowed[:, None, :] & (counts <= room[:, :, None])
    if fixed.any():
        possible[fixed] = False
    possible &= (dense > SLOWEST) & (dense < FASTEST)  # False for NaN too
    speed = np.where(possible, dense, 0.0)
    return Options(speed, gpus, kind, held, fixed, fixed_type, fixed_workers)


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


def some(mask: BoolArray, axis: int | tuple[int, ...]) -> BoolArray:
    """`mask.any(axis)` as an array."""
    return np.asarray(mask.any(axis=axis), dtype=np.bool_)


def hosts_of(problem: Problem, placed: Placed) -> int:
    """Number of hosts of a placement."""
    return len({problem.groups[group] for group, _ in placed})
