"""What is assumed about rows before anything was measured: the parts of the compute + communication model on a grid.

Symbols (natural logarithms throughout; h host type, w workers, s hosts spanned, k = (h, w, s)):

    ln T_k = A_h + ln w - ln(1 + exp(z_k)) + e_k            (the second term only for w > 1)
    A_h    = a + r_h + d_h                                   throughput of one worker
    z_k    = q + r_h + d_h + B_k + delta_k                   communication over computation time of a step

so the time of a step is computation plus communication, t = c + m with c = 1 / exp(A_h) and m = c exp(z_k): a job is
described by its speed `a`, its communication intensity `q` and what it does differently (d, delta, e); host types by
their speed r and the cost B of communicating in each configuration. B starts from a ring all-reduce, which moves
2 (w - 1) / w times the gradients over the slowest link, and is learned from past jobs.

The deviations below are round numbers: halving or doubling any one of them moves the median error on the published
tables by less than a point (docs/prediction.md), so nothing is tuned to a table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.gpus import prior_speed
from heet_elastic.predictor.rows import Grid, IntArray


@dataclass(frozen=True, slots=True)
class PhysicsPrior:
    """Means and standard deviations, in natural logarithms; `*_weight` count as that many past jobs."""

    scale_std: float = 3.0  # a: the unit of work is the user's, so any speed is possible
    type_std: float = 0.4  # d: a job's own speed ratio between host types
    ratio_mean: float = -1.5  # q: on the reference GPU over two workers communication takes a fifth of the time ...
    ratio_std: float = 1.0  # ... give or take a factor of three
    type_dev: float = 0.3  # delta, shared by the cells of a host type
    class_dev: float = 0.4  # delta, shared by the cells of a host type and link class (inside a host, across hosts)
    across_dev: float = 0.3  # delta, shared by all cells across hosts
    smooth_dev: float = 0.25  # delta, smooth in ln w and ln s within a link class
    cell_dev: float = 0.05  # delta, of a cell alone
    rest_smooth: float = 0.05  # e, smooth: what neither computation nor communication explains
    rest_cell: float = 0.03  # e, of a cell alone
    length: float = 1.0  # over how much of ln w or ln s smooth parts change
    level_type: float = 1.0  # B, by host type
    level_class: float = 1.0  # B, by host type and link class
    level_smooth: float = 0.5  # B, smooth within a link class
    level_all: float = 1.0  # B, of everything
    across_level: float = 1.0  # the mean of B is this much higher across hosts
    fast_link_level: float = -1.5  # and this much lower inside a host whose type names NVLink or NVSwitch
    link_mean: float = -22.3  # kappa: gradients of two workers of a host are exchanged at about 5 GB/s ...
    link_std: float = 1.0  # ... and implementations overlap, compress or waste
    type_weight: float = 8.0  # of type_std against what past jobs show
    class_weight: float = 20.0  # of 1, the scale of a link class' deviations, against what past jobs show


@dataclass(frozen=True, slots=True)
class Kernels:
    """Covariances of the parts over a grid, and the means that are known beforehand."""

    log_speed_H: FloatArray  # datasheet prior of r
    level_mean_K: FloatArray  # prior mean of B
    level_KK: FloatArray
    deviation_KK: FloatArray  # delta
    rest_KK: FloatArray  # e
    class_K: IntArray  # 2 x host type + (across hosts)
    log_workers_K: FloatArray
    multi_K: FloatArray  # 1 where w > 1, else 0


@lru_cache(maxsize=32)
def kernels(grid: Grid, prior: PhysicsPrior) -> Kernels:
    """The parts on `grid`."""
    across_K = (grid.hosts_K > 1).astype(np.float64)
    x_K, y_K = np.log(grid.workers_K), np.log(grid.hosts_K)
    multi_K = (grid.workers_K > 1).astype(np.float64)
    same_KK = (grid.type_K[:, None] == grid.type_K[None, :]).astype(np.float64)
    class_KK = same_KK * (across_K[:, None] == across_K[None, :])
    distance_KK = (x_K[:, None] - x_K[None, :]) ** 2 + (y_K[:, None] - y_K[None, :]) ** 2
    smooth_KK = np.exp(-0.5 * distance_KK / prior.length**2)
    fade_K = np.minimum(1.0, x_K)  # nothing is left unexplained with one worker
    fast_H = np.array([bool(re.search(r"nvlink|nvswitch|sxm", h.lower())) for h in grid.host_types], dtype=np.float64)
    ring_K = np.log(2.0 * np.maximum(grid.workers_K - 1.0, 0.5) / grid.workers_K)
    return Kernels(
        log_speed_H=np.log([prior_speed(h) for h in grid.host_types]),
        level_mean_K=ring_K
        + prior.across_level * across_K
        + prior.fast_link_level * fast_H[grid.type_K] * (1 - across_K),
        level_KK=prior.level_all**2
        + prior.level_type**2 * same_KK
        + class_KK * (prior.level_class**2 + prior.level_smooth**2 * smooth_KK),
        deviation_KK=prior.type_dev**2 * same_KK
        + class_KK * (prior.class_dev**2 + prior.smooth_dev**2 * smooth_KK)
        + prior.across_dev**2 * np.outer(across_K, across_K)
        + prior.cell_dev**2 * np.eye(x_K.size),
        rest_KK=prior.rest_smooth**2 * same_KK * smooth_KK * np.outer(fade_K, fade_K)
        + np.diag(prior.rest_cell**2 * multi_K),
        class_K=2 * grid.type_K + (grid.hosts_K > 1),
        log_workers_K=x_K,
        multi_K=multi_K,
    )
