"""Predicted curves, steadied: a cell that sticks out of its neighbours is more likely noise than truth.

The speed of one job on one host type, over the same number of hosts, is nearly a straight line in logarithms of its
workers. Predictions are pulled towards the line through their neighbours, the more the less sure they are:
    ln T' = ln T + k (line - ln T),   k = s^2 / (s^2 + BEND^2),   s = the prediction's standard deviation of ln T.
What was measured (s small) stays. Without it, whoever chooses the best of many cells chooses the luckiest error.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heet_elastic.scheduler.api import DENSE, BoolArray, IntArray, Problem
from heet_elastic.scheduler.density import table_hosts_HW

BEND = 0.05
"""How far (in ln T) real curves are from a line through neighbours up to a factor of two away."""
REACH = float(np.log(2.0))
"""How far away, in ln workers, neighbours may be."""


@lru_cache(maxsize=64)
def _smoother(hosts: tuple[int, ...]) -> NDArray[np.float32]:
    """S_WW: each column fits a line in ln w to the near cells on as many hosts, and reads it off at its own w."""
    log_w, span = np.log(np.arange(1, len(hosts) + 1)), np.array(hosts)
    smoother = np.eye(len(hosts))
    for i in range(len(hosts)):
        near = np.flatnonzero((np.abs(log_w - log_w[i]) <= REACH + 1e-9) & (span == span[i]))
        if len(near) > 2:
            design = np.c_[np.ones(len(near)), log_w[near] - log_w[i]]
            smoother[i] = 0.0
            smoother[i, near] = np.linalg.pinv(design)[0]
    return smoother.T.astype(np.float32)


def steadied(problem: Problem) -> Problem:
    """The problem with uncertain cells pulled towards their neighbours; the same object where nothing is uncertain."""
    std = problem.log_std_JHW
    if std is None or not std.size:
        return problem
    dense = problem.throughput_JHWS[..., DENSE]
    # Types of which a job has only some counts are left alone: a gap has no neighbours.
    smooth: BoolArray = (dense.min(axis=2) > 1e-30) & (dense.max(axis=2) < 1e30) & (std.max(axis=2) > BEND / 4)
    if not smooth.any():
        return problem
    speed = problem.throughput_JHWS.copy()
    for h, hosts in enumerate(table_hosts_HW(problem).tolist()):
        some: IntArray = np.flatnonzero(smooth[:, h])
        rows = slice(None) if len(some) == len(smooth) else some  # a view is cheaper than a copy
        # Single precision: what is pulled is uncertain by far more than its rounding.
        log_t, pull = np.log(dense[rows, h].astype(np.float32)), np.square(std[rows, h].astype(np.float32))
        pull /= pull + np.float32(BEND**2)
        pull *= log_t @ _smoother(tuple(hosts)) - log_t
        speed[rows, h] *= np.exp(pull)[:, :, None]
    return replace(problem, throughput_JHWS=speed)
