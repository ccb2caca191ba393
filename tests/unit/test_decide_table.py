"""The throughput table: axes that only grow, a row per job, recomputed only for new samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from heet_elastic.coordinator.api import Axes, Table
from heet_elastic.coordinator.decide.table import axes_of, predict_rows, predicted_counts, refresh
from heet_elastic.model import CellCounters, Configuration, SampleRecord
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Completion, Observations
from heet_elastic.scheduler.api import DENSE, SPREAD
from tests.unit.decide_worlds import host, snapshot, spec, view


@dataclass
class Exact:
    """Knows the truth: workers^0.9 / hosts^0.1, times 2 on V100."""

    asked: list[tuple[Observations, ...]] = field(default_factory=list)
    name: str = "exact"

    def predict(self, jobs: Any, configurations: Any) -> Completion:
        self.asked.append(tuple(jobs))
        speed = [(2.0 if c.host_type == "V100" else 1.0) * c.workers**0.9 / c.hosts**0.1 for c in configurations]
        table = np.tile(np.array(speed), (len(jobs), 1))
        return Completion(tuple(configurations), table, np.full_like(table, 0.1), np.zeros(table.shape, dtype=np.int8))


def counters(workers: int, step_s: float) -> SampleRecord:
    cell = CellCounters(Configuration("T4", workers), 60.0, 600, 0.0, 0.0, step_s, 0.0, 10, workers)
    return SampleRecord("a1", 1, cells=(cell,))


def test_axes_hold_every_type_and_grow_by_powers_of_two():
    hosts = {h.name: h for h in (host("h1"), host("h2"), host("h3"), host("v1", "V100", 8))}
    axes = axes_of(hosts, 1024)
    assert axes == Axes(("T4", "V100"), 16, (4, 8))
    assert axes_of(hosts, 10).workers == 10
    assert axes_of({}, 1024, axes) == axes, "a host that is gone for a while costs no row"


@pytest.mark.parametrize("workers", [1, 2, 31, 32, 33, 64, 100, 1024])
def test_predicted_counts_begin_with_one_and_end_with_the_last(workers):
    counts = predicted_counts(workers)
    assert counts[0] == 1
    assert counts[-1] == workers
    assert list(counts) == sorted(set(counts))
    assert len(counts) < 32 + 8 * 6


def test_rows_hold_dense_and_spread_throughput_and_interpolate_wide_axes():
    axes = Axes(("T4", "V100"), 128, (4, 8))
    ((speed, std, source),) = predict_rows(axes, Exact(), [Observations("a")])
    assert speed.shape == (2, 128, 2)
    assert std.shape == (2, 128)
    assert source.shape == (2, 128, 2)
    assert speed[0, 5, DENSE] == pytest.approx(6**0.9 / 2**0.1)
    assert speed[0, 5, SPREAD] == pytest.approx(6**0.9 / 3**0.1)
    assert speed[1, 0, DENSE] == speed[1, 0, SPREAD] == pytest.approx(2.0)
    for w in range(1, 129):
        truth = w**0.9 / np.ceil(w / 4) ** 0.1
        assert speed[0, w - 1, DENSE] == pytest.approx(truth, rel=0.02)


def test_only_jobs_with_new_samples_are_predicted_again():
    predictor = Exact()
    a, b = view(spec("a")), view(spec("b"))
    table = refresh(Table(), snapshot([host("h1")], [a, b]), predictor, 64)
    assert [o.job for o in predictor.asked[-1]] == ["a", "b"]
    assert refresh(table, snapshot([host("h1")], [a, b]), predictor, 64) is table
    sampled = replace(a, samples={"a1": counters(2, 0.1)})
    newer = refresh(table, snapshot([host("h1")], [sampled, b]), predictor, 64)
    assert [o.job for o in predictor.asked[-1]] == ["a"]
    assert newer.rows["b"] is table.rows["b"]
    assert dict(newer.rows["a"].cells)[Configuration("T4", 2)].throughput == pytest.approx(10.0)


def test_the_picture_changes_with_new_cells_and_large_moves_only():
    predictor, table = Exact(), Table()
    pictures = []
    for workers, step_s in ((2, 0.1), (2, 0.105), (2, 0.11), (2, 0.13), (4, 0.1)):
        records = {"a1": counters(2, 0.13), "a2": replace(counters(4, step_s), agent="a2")} if workers == 4 else None
        sampled = replace(view(spec("a")), samples=records or {"a1": counters(workers, step_s)})
        table = refresh(table, snapshot([host("h1")], [sampled]), predictor, 64)
        pictures.append(table.rows["a"].picture)
    assert pictures == [1, 1, 1, 2, 3]


def test_a_new_host_type_or_predictor_completes_all_rows_again():
    predictor = Exact()
    table = refresh(Table(), snapshot([host("h1")], [view(spec("a"))]), predictor, 64)
    table = refresh(table, snapshot([host("h1"), host("v", "V100")], [view(spec("a"))]), predictor, 64)
    assert table.rows["a"].throughput_HWS.shape[0] == 2
    another = Exact()
    assert refresh(table, snapshot([host("h1")], [view(spec("a"))]), another, 64).predictor is another
    assert len(another.asked) == 1


def test_rows_of_forgotten_jobs_go():
    predictor = Exact()
    table = refresh(Table(), snapshot([host("h1")], [view(spec("a"))]), predictor, 64)
    assert refresh(table, snapshot([host("h1")], []), predictor, 64).rows == {}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_s1_every_method_fills_a_row_of_a_job_and_a_type_that_nobody_has_seen(method):
    predictor = METHODS[method]([], np.random.default_rng(0))
    shot = snapshot([host("h1"), host("x", "Brand New 9000 PCIe", 8)], [view(spec("a"))])
    row = refresh(Table(), shot, predictor, 64).rows["a"]
    assert np.isfinite(row.throughput_HWS).all()
    assert (row.throughput_HWS > 0).all()
    assert (row.log_std_HW > 0).all()
