"""How good predictions are, on cells that were not measured.

errors        |predicted / true - 1| of each held-out cell; accuracy = 1 - min(error, 1)
order within  pairs of configurations of one job, in the right order of throughput
order across  pairs of jobs in one configuration, in the right order of efficiency T / (w T(1)): what prices feel
regret        workers chosen on each host type to maximise T / sqrt(w): share of the best such figure that is lost
coverage80    share of cells inside their 80 % interval

A pair counts when not all that it compares was measured; true ties do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heet_elastic.model import Configuration
from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.finish import INTERVAL_80
from heet_elastic.predictor.rows import BoolArray, IntArray

SPREAD = 0.5
"""Exponent of w in the figure that a worker count is chosen by: between the fastest (0) and the most efficient (1)."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """ln T over a table: the truth (NaN = unknown), what was predicted, how surely, and which cells were measured."""

    configurations: tuple[Configuration, ...]
    truth_JK: FloatArray
    log_JK: FloatArray
    std_JK: FloatArray
    measured_JK: BoolArray

    @property
    def held_out_JK(self) -> BoolArray:
        """Cells that are judged."""
        out: BoolArray = np.isfinite(self.truth_JK) & ~self.measured_JK & np.isfinite(self.log_JK)
        return out

    def take(self, jobs: IntArray) -> Predictions:
        """The predictions of these jobs."""
        return Predictions(
            self.configurations, self.truth_JK[jobs], self.log_JK[jobs], self.std_JK[jobs], self.measured_JK[jobs]
        )


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one method; NaN where there was nothing to judge. Errors are fractions."""

    median_error: float
    mean_error: float
    mean_accuracy: float
    p90_error: float
    order_within_job: float
    order_across_jobs: float
    regret: float
    coverage80: float
    cells: int


def errors_JK(p: Predictions) -> FloatArray:
    """Relative errors of held-out cells, NaN elsewhere."""
    with np.errstate(over="ignore"):
        out: FloatArray = np.where(p.held_out_JK, np.abs(np.expm1(p.log_JK - p.truth_JK)), np.nan)
    return out


def score(p: Predictions) -> Score:
    """All figures over all jobs of `p`."""
    held = p.held_out_JK
    error = errors_JK(p)[held]
    inside = (np.abs(p.log_JK - p.truth_JK)[held] <= INTERVAL_80 * p.std_JK[held]).astype(np.float64)
    return Score(
        median_error=_of(np.median, error),
        mean_error=_of(np.mean, error),
        mean_accuracy=_of(np.mean, 1.0 - np.minimum(error, 1.0)),
        p90_error=_of(lambda e: np.quantile(e, 0.9), error),
        order_within_job=order_within(p),
        order_across_jobs=order_across(p),
        regret=regret(p),
        coverage80=_of(np.mean, inside),
        cells=int(held.sum()),
    )


def _of(figure: Callable[[FloatArray], float | np.floating[Any]], values: FloatArray) -> float:
    return float(figure(values)) if values.size else float("nan")


def known_table(p: Predictions) -> FloatArray:
    """Measured cells as measured, the rest as predicted."""
    return np.where(p.measured_JK & np.isfinite(p.truth_JK), p.truth_JK, p.log_JK)


def order_within(p: Predictions) -> float:
    """Share of pairs of configurations of a job in the right order."""
    told, right, total = known_table(p), 0, 0
    for truth_K, told_K, held_K in zip(p.truth_JK, told, p.held_out_JK, strict=True):
        at = np.flatnonzero(np.isfinite(truth_K))
        a, b = np.triu_indices(at.size, 1)
        a, b = at[a], at[b]
        judged = (held_K[a] | held_K[b]) & (truth_K[a] != truth_K[b])
        right += int(((truth_K[a] > truth_K[b]) == (told_K[a] > told_K[b]))[judged].sum())
        total += int(judged.sum())
    return right / total if total else float("nan")


def order_across(p: Predictions) -> float:
    """Share of pairs of jobs in the right order of efficiency, over all configurations of more than one worker."""
    single = {c.host_type: k for k, c in enumerate(p.configurations) if c.workers == 1}
    told, right, total = known_table(p), 0, 0
    for k, c in enumerate(p.configurations):
        one = single.get(c.host_type)
        if c.workers == 1 or one is None:
            continue
        at = np.flatnonzero(np.isfinite(p.truth_JK[:, k]) & np.isfinite(p.truth_JK[:, one]))
        true_J, told_J = p.truth_JK[at, k] - p.truth_JK[at, one], told[at, k] - told[at, one]
        held_J = p.held_out_JK[at, k] | p.held_out_JK[at, one]
        a, b = np.triu_indices(at.size, 1)
        judged = (held_J[a] | held_J[b]) & (true_J[a] != true_J[b])
        right += int(((true_J[a] > true_J[b]) == (told_J[a] > told_J[b]))[judged].sum())
        total += int(judged.sum())
    return right / total if total else float("nan")


def regret(p: Predictions) -> float:
    """Mean share of T / w^SPREAD that is lost by choosing workers by prediction, over jobs and host types."""
    told, lost = known_table(p), []
    workers_K = np.array([c.workers for c in p.configurations], dtype=np.float64)
    types = np.array([c.host_type for c in p.configurations])
    for j in range(p.truth_JK.shape[0]):
        for host_type in sorted(set(types)):
            at = np.flatnonzero((types == host_type) & np.isfinite(p.truth_JK[j]))
            if at.size > 1 and p.held_out_JK[j, at].any():
                less = SPREAD * np.log(workers_K[at])
                true, chosen = p.truth_JK[j, at] - less, int(np.argmax(told[j, at] - less))
                lost.append(-np.expm1(true[chosen] - true.max()))
    return float(np.mean(lost)) if lost else float("nan")


def bootstrap_medians(
    errors: Sequence[FloatArray], families: Sequence[str], rng: np.random.Generator, draws: int = 300
) -> FloatArray:
    """Median errors of M methods (J x K tables each) in `draws` resamples of jobs within families (draws x M).

    Paired: all methods see the same resamples, so that differences between columns have honest intervals.
    """
    groups = [np.flatnonzero(np.array(families) == f) for f in sorted(set(families))]
    out = np.full((draws, len(errors)), np.nan)
    for d in range(draws):
        at = np.concatenate([rng.choice(g, g.size) for g in groups])
        for m, table in enumerate(errors):
            drawn = table[at]
            drawn = drawn[np.isfinite(drawn)]
            out[d, m] = np.median(drawn) if drawn.size else np.nan
    return out
