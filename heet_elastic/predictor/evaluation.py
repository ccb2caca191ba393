"""Judging methods on a measured table: hide most of a job's cells, predict them from the rest and from other jobs.

hold-out family   the history of a job holds no other batch size of its model: what a new model meets
hold-out job      the history holds everything but the job itself: what a sibling of past jobs meets

All methods see the same measured cells. Under the chosen design those are chosen one by one by the default method, from
what it knew after the cells before. The name and family of a job are hidden from every method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from heet_elastic.predictor.api import Fit, FloatArray, Observations, Predictor
from heet_elastic.predictor.designs import predictor_gains, standard
from heet_elastic.predictor.rows import BoolArray, IntArray
from heet_elastic.predictor.scores import Predictions
from heet_elastic.predictor.tables import ThroughputTable

Design = Literal["standard", "chosen"]
HoldOut = Literal["family", "job"]
Report = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How to judge: `probes` measured cells of each job; `counts` = further numbers of cells for a curve."""

    probes: int = 6
    design: Design = "standard"
    hold_out: HoldOut = "family"
    counts: tuple[int, ...] = ()
    seed: int = 0

    @property
    def all_counts(self) -> tuple[int, ...]:
        """Numbers of measured cells that are judged, ascending."""
        return tuple(sorted({self.probes, *self.counts}))


@dataclass(frozen=True)
class Judged:
    """Predictions by (method, number of measured cells); `cold` = the default method without any history."""

    table: ThroughputTable
    plan: Plan
    predictions: Mapping[tuple[str, int], Predictions]
    cold: Predictions | None = None
    folds: int = 0
    notes: tuple[str, ...] = field(default=())


def folds(table: ThroughputTable, hold_out: HoldOut) -> Iterator[tuple[IntArray, IntArray]]:
    """(held-out jobs, past jobs) of each fold, in a fixed order."""
    families = np.array(table.families)
    if hold_out == "family":
        for family in sorted(set(table.families)):
            yield np.flatnonzero(families == family), np.flatnonzero(families != family)
    else:
        everyone = np.arange(len(table.jobs))
        for j in everyone:
            yield everyone[j : j + 1], np.delete(everyone, j)


def evaluate(
    table: ThroughputTable,
    methods: Mapping[str, Fit],
    chooser: Fit,
    plan: Plan,
    *,
    cold: bool = False,
    report: Report = lambda *_: None,
) -> Judged:
    """Judge `methods` on `table`; `chooser` chooses cells. Deterministic for a seed."""
    parts = list(folds(table, plan.hold_out))
    steps, done = len(parts) * (len(methods) + 1), 0
    shape = table.throughput_JK.shape
    truth_JK = np.log(table.throughput_JK)
    found = {(m, n): _Empty(shape) for m in methods for n in plan.all_counts}
    cold_found = _Empty(shape)
    for test, history in parts:
        profiles = [table.profile(int(i)) for i in history]
        name = table.families[int(test[0])] if plan.hold_out == "family" else table.jobs[int(test[0])]
        report(f"{name}: choosing cells", done, steps)
        predictors: dict[str, Predictor] = {}
        for method, fit in methods.items():
            if fit is chooser:
                predictors[method] = fit(profiles, np.random.default_rng(plan.seed))
        own = next(iter(predictors.values()), None)
        if plan.design == "chosen" and own is None:
            own = chooser(profiles, np.random.default_rng(plan.seed))
        orders = [_order(table, int(j), plan) for j in test] if plan.design == "standard" else None
        chosen = orders if orders is not None else _choose(table, test, own, max(plan.all_counts))
        done += 1
        for method, fit in methods.items():
            report(f"{name}: {method}", done, steps)
            predictor = predictors.get(method) or fit(profiles, np.random.default_rng(plan.seed))
            for n in plan.all_counts:
                found[method, n].fill(table, predictor, test, [order[:n] for order in chosen])
            done += 1
        if cold:
            nothing = chooser([], np.random.default_rng(plan.seed))
            cold_found.fill(table, nothing, test, [order[: plan.probes] for order in chosen])
    report("done", steps, steps)
    return Judged(
        table,
        plan,
        {key: value.predictions(table, truth_JK) for key, value in found.items()},
        cold_found.predictions(table, truth_JK) if cold else None,
        len(parts),
    )


class _Empty:
    """Arrays that folds fill with predictions."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.log_JK, self.std_JK = np.full(shape, np.nan), np.full(shape, np.nan)
        self.measured_JK = np.zeros(shape, dtype=bool)

    def fill(
        self, table: ThroughputTable, predictor: Predictor, jobs: IntArray, measured: Sequence[Sequence[int]]
    ) -> None:
        """Predict `jobs` from these columns of each."""
        rows = [hidden(table, int(j), columns) for j, columns in zip(jobs, measured, strict=True)]
        completion = predictor.predict(rows, table.configurations)
        self.log_JK[jobs] = np.log(completion.throughput_JK)
        self.std_JK[jobs] = completion.log_std_JK
        for j, columns in zip(jobs, measured, strict=True):
            self.measured_JK[j, list(columns)] = True

    def predictions(self, table: ThroughputTable, truth_JK: FloatArray) -> Predictions:
        """What was filled in."""
        return Predictions(table.configurations, truth_JK, self.log_JK, self.std_JK, self.measured_JK)


def hidden(table: ThroughputTable, job: int, columns: Sequence[int]) -> Observations:
    """The job with only these columns measured, and without its name."""
    return table.observations(job, columns, named=False)


def _known(table: ThroughputTable, job: int) -> BoolArray:
    out: BoolArray = np.isfinite(table.throughput_JK[job])
    return out


def _order(table: ThroughputTable, job: int, plan: Plan) -> list[int]:
    """The standard design of the largest number of cells; smaller numbers are its beginnings."""
    return standard(table.configurations, _known(table, job), max(plan.all_counts))


def _choose(table: ThroughputTable, jobs: IntArray, predictor: Predictor | None, probes: int) -> list[list[int]]:
    """Columns in the order in which `predictor` would measure them, for each job."""
    assert predictor is not None
    chosen: list[list[int]] = [[] for _ in jobs]
    known_JK = np.array([_known(table, int(j)) for j in jobs])
    for _ in range(probes):
        rows = [hidden(table, int(j), columns) for j, columns in zip(jobs, chosen, strict=True)]
        gain_JK = predictor_gains(predictor, rows, table.configurations, known_JK)
        gain_JK = np.where(known_JK, gain_JK, -np.inf)
        for gain_K, columns in zip(gain_JK, chosen, strict=True):
            gain_K[columns] = -np.inf
            best = int(np.argmax(gain_K))
            if np.isfinite(gain_K[best]):
                columns.append(best)
    return chosen
