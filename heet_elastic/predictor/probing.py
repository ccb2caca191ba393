"""Which cell of a live job to measure next, and when to stop: a probe round has to be worth its cost.

Samples that a job makes where it runs anyway are free and come first. A probe round costs the job rescale time: to the
cell and back, and what the cell is slower for the length of the probe. It is worth what better decisions are expected
to save until the job ends or the horizon: with u_k = ln T_k - exponent ln w_k (a scheduler wants speed, and GPUs have a
price), measuring cell c moves the expectation of u_k by beta_k x, x ~ N(0, 1),

    gain(c) = E[max_k (u_k + beta_k x)] - max_k u_k,        beta_k = cov(k, c) / sqrt(var(c) + noise)

in logs, so gain x horizon is the time saved (knowledge gradient: Frazier, Powell & Dayanik, INFORMS J. Comput. 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.model import Configuration
from heet_elastic.predictor.api import Completion, FloatArray, Source
from heet_elastic.predictor.rows import NOISE, BoolArray

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """When probing is allowed at all. `max_probes` and `budget_share` (of the time that the job ran) bound its cost."""

    probe_s: float = 30.0  # length of a probe round
    max_probes: int = 6
    budget_share: float = 0.05
    free_budget_s: float = 120.0  # a young job may spend this much before the share counts
    horizon_s: float = 3600.0  # savings further away are not counted
    exponent: float = 0.5  # of w in u
    sure_enough: float = 0.08  # no cell is measured that is known better than this (standard deviation of ln T)
    margin: float = 1.5  # a gain must be this many times its cost


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """What a probe would cost this job now. Costs are the job's own measured ones."""

    current: Configuration | None  # where it runs
    rescale_up_s: float
    rescale_down_s: float
    remaining_s: float | None  # at its present speed; None = unknown
    ran_s: float
    probes: int = 0
    spent_s: float = 0.0
    redo_s: float = 0.0  # work since its last checkpoint, which it would have to do again


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer: `column` of the completion to measure (None = nothing), what it gains and costs, and the sentence."""

    column: int | None
    gain_s: float
    cost_s: float
    reason: str


def next_probe(
    completion: Completion,
    covariance_KK: FloatArray,
    possible_K: BoolArray,
    job: ProbeJob,
    settings: ProbeSettings,
) -> Probe:
    """The best cell to measure of one job (row 0 of `completion`), or why none.

    covariance_KK: of ln T between the completion's configurations. possible_K: where the job could be put now without
    taking anything from another job.
    """
    allowed = _allowance(job, settings)
    if isinstance(allowed, str):
        return Probe(None, 0.0, 0.0, allowed)
    std_K = completion.log_std_JK[0]
    open_K = possible_K & (completion.source_JK[0] != Source.MEASURED) & (std_K > settings.sure_enough)
    if job.current is not None:
        open_K &= np.array([c != job.current for c in completion.configurations])
    if not open_K.any():
        return Probe(None, 0.0, 0.0, _nothing_open(possible_K, std_K, settings))
    horizon_s = settings.horizon_s if job.remaining_s is None else min(settings.horizon_s, job.remaining_s)
    gain_K = expected_gains(completion, covariance_KK, possible_K, settings.exponent) * horizon_s
    cost_K = probe_costs(completion, job, settings)
    net_K = np.where(open_K & (cost_K <= allowed), gain_K - settings.margin * cost_K, -np.inf)
    best = int(np.argmax(net_K))
    if not np.isfinite(net_K[best]):
        cheapest_s = float(cost_K[open_K].min())
        return Probe(
            None, 0.0, cheapest_s, f"no probe: the cheapest costs {cheapest_s:.0f} s, {allowed:.0f} s are left"
        )
    gain_s, cost_s, where = float(gain_K[best]), float(cost_K[best]), completion.configurations[best]
    if net_K[best] <= 0:
        return Probe(
            None, gain_s, cost_s, f"no probe: {_named(where)} would gain {gain_s:.0f} s and cost {cost_s:.0f} s"
        )
    return Probe(best, gain_s, cost_s, f"measuring {_named(where)}: uncertainty {_percent(std_K[best])}")


def _percent(log_std: float) -> str:
    """A standard deviation of ln T for people: what one more of it multiplies T by."""
    return f"{100 * np.expm1(log_std):.0f} %"


def _named(c: Configuration) -> str:
    over = "" if c.hosts == 1 else f" over {c.hosts} hosts"
    return f"{c.workers} worker{'s' if c.workers > 1 else ''} on {c.host_type}{over}"


def _allowance(job: ProbeJob, settings: ProbeSettings) -> float | str:
    """Seconds that may still be spent, or why none."""
    if job.probes >= settings.max_probes:
        return f"no probe: {job.probes} made, at most {settings.max_probes} are allowed"
    left_s = max(settings.free_budget_s, settings.budget_share * job.ran_s) - job.spent_s
    return left_s if left_s > 0 else f"no probe: {job.spent_s:.0f} s were spent, the budget is used up"


def _nothing_open(possible_K: BoolArray, std_K: FloatArray, settings: ProbeSettings) -> str:
    if not possible_K.any():
        return "no probe: nothing is free to measure on"
    sure = float(std_K[possible_K].max())
    if sure <= settings.sure_enough:
        return f"no probe: sure enough, within {_percent(sure)} wherever it could run"
    return "no probe: what could be measured now is measured"


def expected_gains(
    completion: Completion, covariance_KK: FloatArray, possible_K: BoolArray, exponent: float
) -> FloatArray:
    """Expected rise of the best u over the possible configurations if a column were measured (K, in logs, >= 0)."""
    workers_K = np.array([c.workers for c in completion.configurations], dtype=np.float64)
    at = np.flatnonzero(possible_K | (completion.source_JK[0] == Source.MEASURED))
    value_A = (np.log(completion.throughput_JK[0]) - exponent * np.log(workers_K))[at]
    move_AK = covariance_KK[at] / np.sqrt(np.maximum(np.diag(covariance_KK), 0.0) + NOISE**2)
    best_KX = (value_A[:, None, None] + move_AK[:, :, None] * _NODES).max(axis=0)
    out: FloatArray = np.maximum(best_KX @ _WEIGHTS - value_A.max(), 0.0)
    return out


def probe_costs(completion: Completion, job: ProbeJob, settings: ProbeSettings) -> FloatArray:
    """Seconds that measuring each column costs: there, back, work made again, and being slower meanwhile."""
    if job.current is None or job.current not in completion.configurations:
        return np.full(len(completion.configurations), job.rescale_up_s + settings.probe_s + job.redo_s)
    now = completion.configurations.index(job.current)
    slower_K = 1.0 - np.minimum(1.0, completion.throughput_JK[0] / completion.throughput_JK[0, now])
    grows_K = np.array([_grows(job.current, c) for c in completion.configurations])
    there_K = np.where(grows_K, job.rescale_up_s, job.rescale_down_s)
    back_K = np.array([_grows(c, job.current) for c in completion.configurations])
    back_s_K = np.where(back_K, job.rescale_up_s, job.rescale_down_s)
    return np.asarray(there_K + back_s_K + settings.probe_s * slower_K + job.redo_s)


def _grows(a: Configuration, b: Configuration) -> bool:
    """Whether going from a to b starts workers."""
    return b.host_type != a.host_type or b.workers > a.workers or b.hosts > a.hosts
