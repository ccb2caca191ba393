"""The contract of a policy: a Problem of arrays in, one (host type, workers) per job out; `placement` puts it on hosts.

Shape suffixes: J jobs, H host types, W worker counts 1..W, G device groups (the GPUs of one host type on one host),
S = 2 placements of a worker count: 0 = densest possible, 1 = spread over more hosts than needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

DENSE, SPREAD = 0, 1

Placed = tuple[tuple[int, int], ...]
"""Where a job runs: (group index, workers there), by group; empty = nowhere."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One decision: who is there, what they want, what was measured, and what they have now.

    throughput_JHWS[j,h,w-1,s]: predicted work units/s of job j with w workers on host type h; 0 = not possible there
    (no data about that type, or no host where the job could run). Workers that are not allowed have `allowed_JW` False.
    limit_JG: most workers of job j on group g (0: no agent of it there); None = the group's GPUs.
    per_host_J: workers that a job must have on every host that it uses (rigid jobs take whole agents); 0 = any number.
    current: what each job holds now. A frozen job keeps exactly that.
    """

    jobs: tuple[str, ...]
    host_types: tuple[str, ...]
    groups: tuple[str, ...]  # host name of each group
    group_type_G: IntArray
    group_gpus_G: IntArray
    throughput_JHWS: FloatArray
    log_std_JHW: FloatArray | None
    remaining_J: FloatArray  # work units
    min_J: IntArray
    max_J: IntArray
    allowed_JW: BoolArray
    limit_JG: IntArray | None
    per_host_J: IntArray
    min_hosts_J: IntArray
    max_hosts_J: IntArray
    requested_J: IntArray  # what a rigid launcher would ask for: baselines without elasticity use it
    priority_J: FloatArray  # 1 = normal, 2 = twice as urgent
    age_s_J: FloatArray
    waited_s_J: FloatArray  # since the job last had a worker
    received_s_JH: FloatArray  # GPU seconds received so far
    since_rescale_s_J: FloatArray  # inf = never
    rescale_up_s_J: FloatArray  # the job's own cost of growing, moving or starting
    rescale_down_s_J: FloatArray
    rescales_J: IntArray
    frozen_J: BoolArray
    current: tuple[Placed, ...]

    def current_type_J(self) -> IntArray:
        """Host type that each job runs on now (that of its first group); -1 = none."""
        return np.array([int(self.group_type_G[p[0][0]]) if p else -1 for p in self.current], dtype=np.int64)

    def current_workers_J(self) -> IntArray:
        """Workers that each job has now."""
        return np.array([sum(n for _, n in p) if p else 0 for p in self.current], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a policy chose: a host type (-1 = none) and a worker count (0 = none) per job.

    price_J: the number by which jobs were ranked, for explanations (lower = sooner); NaN where it has no meaning.
    note: one sentence about the decision as a whole.
    """

    type_J: IntArray
    workers_J: IntArray
    price_J: FloatArray
    note: str = ""


class Policy(Protocol):
    """A way to share the cluster. A value: `choose` changes nothing and depends on its arguments alone."""

    @property
    def name(self) -> str:
        """The name that `--policy` takes."""

    @property
    def interval_s(self) -> float:
        """How often the policy wants to be asked besides arrivals, departures and losses."""

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job, within the GPUs of each type. Independent of the order of jobs."""


PolicyFactory = Callable[[], Policy]
