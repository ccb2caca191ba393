"""The throughput table: a row per live job, completed by the predictor from what was measured, kept up to date cheaply.

A row depends on its job's samples and the fitted predictor alone, so a sample recomputes one row. The axes only grow
(a host that is gone for a while must not throw all rows away). Wide axes are predicted at some worker counts and
interpolated in logarithms between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heet_elastic.coordinator.api import Axes, FloatArray, Row, Table
from heet_elastic.model import Cell, Configuration, Host, JobFeatures, JobView, Snapshot
from heet_elastic.predictor.api import Observations, Predictor
from heet_elastic.predictor.samples import merge, work
from heet_elastic.scheduler.api import DENSE

NEWS = 0.2
"""A cell that moved by more than this (in ln throughput) is news for the policy."""

_EVERY_COUNT = 32
_PER_OCTAVE = 8


def axes_of(hosts: Mapping[str, Host], most_workers: int, before: Axes | None = None) -> Axes:
    """Axes for these hosts, no smaller than `before`. Widths are powers of two, so that they seldom change."""
    total: dict[str, int] = {}
    largest: dict[str, int] = {} if before is None else dict(zip(before.host_types, before.per_host_H, strict=True))
    for host in hosts.values():
        here: dict[str, int] = {}
        for gpu in host.gpus:
            here[gpu.host_type] = here.get(gpu.host_type, 0) + 1
        for kind, gpus in here.items():
            total[kind] = total.get(kind, 0) + gpus
            largest[kind] = max(largest.get(kind, 0), gpus)
    widest = max(total.values(), default=1)
    workers = min(1 << (widest - 1).bit_length(), most_workers)
    if before is not None:
        workers = max(workers, before.workers)
    kinds = tuple(sorted(largest))
    return Axes(kinds, workers, tuple(largest[k] for k in kinds))


def predicted_counts(workers: int) -> tuple[int, ...]:
    """Worker counts at which a row is predicted: all up to 32, then 8 an octave, and the last."""
    counts = list(range(1, min(workers, _EVERY_COUNT) + 1))
    step = 1
    while True:
        count = round(_EVERY_COUNT * 2 ** (step / _PER_OCTAVE))
        if count >= workers:
            break
        counts.append(count)
        step += 1
    if workers > counts[-1]:
        counts.append(workers)
    return tuple(counts)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """What is asked of a predictor for these axes. columns: without repeats; index_HNS: where each one stands there.

    between: for every worker count the predicted counts around it, and how far between them it is.
    """

    columns: tuple[Configuration, ...]
    index_HNS: NDArray[np.int64]
    between: tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]


@lru_cache(maxsize=8)
def _grid(axes: Axes) -> _Grid:
    counts = predicted_counts(axes.workers)
    flat = [c for row in configurations_of(axes, counts) for pair in row for c in pair]
    columns = {c: k for k, c in enumerate(dict.fromkeys(flat))}
    index = np.array([columns[c] for c in flat], dtype=np.int64).reshape(len(axes.host_types), len(counts), 2)
    return _Grid(tuple(columns), index, _interpolation(counts, axes.workers))


def configurations_of(axes: Axes, counts: Sequence[int]) -> list[list[tuple[Configuration, Configuration]]]:
    """(dense, spread) configuration by host type and count."""
    rows = []
    for kind, per_host in zip(axes.host_types, axes.per_host_H, strict=True):
        row = []
        for workers in counts:
            hosts = -(-workers // per_host)
            row.append((Configuration(kind, workers, hosts), Configuration(kind, workers, min(workers, hosts + 1))))
        rows.append(row)
    return rows


def refresh(table: Table, snapshot: Snapshot, predictor: Predictor, most_workers: int) -> Table:
    """The table for this snapshot; rows of ended jobs stay until the job is forgotten (profiles are made of them)."""
    axes = axes_of(snapshot.hosts, most_workers, table.axes if table.axes.workers else None)
    same = axes == table.axes and predictor is table.predictor
    rows: dict[str, Row] = {}
    fresh: list[tuple[JobView, tuple[object, ...], Row | None]] = []
    for job, view in snapshot.jobs.items():
        if view.spec is None:
            continue
        old = table.rows.get(job)
        seen = (view.spec.record, view.samples)
        if old is not None and same and (view.samples is old.seen[1] or seen == old.seen):
            rows[job] = old
        elif view.result is None:
            fresh.append((view, seen, old))
        elif old is not None:
            rows[job] = old
    if not fresh and same and rows.keys() == table.rows.keys():
        return table
    rows.update(_complete(axes, predictor, fresh))
    return Table(axes, rows, predictor)


def _complete(
    axes: Axes, predictor: Predictor, fresh: Sequence[tuple[JobView, tuple[object, ...], Row | None]]
) -> dict[str, Row]:
    observed = []
    for view, _, _ in fresh:
        assert view.spec is not None
        spec, records = view.spec.record, list(view.samples.values())
        cells = tuple(sorted(merge(records, spec.work_unit, spec.total_work).items()))
        observed.append(Observations(view.job, spec.name, spec.script, cells, _features(view), spec.work_unit))
    made = {}
    for (view, seen, old), observations, numbers in zip(
        fresh, observed, predict_rows(axes, predictor, observed), strict=True
    ):
        assert view.spec is not None
        spec = view.spec.record
        position = work(list(view.samples.values()), spec.work_unit, spec.total_work)
        announced, picture = _news(observations.cells, old)
        made[view.job] = Row(
            *numbers,
            cells=observations.cells,
            features=observations.features,
            done=position.done,
            total=position.total,
            picture=picture,
            announced=announced,
            seen=seen,
        )
    return made


def _features(view: JobView) -> JobFeatures | None:
    return next((r.features for _, r in sorted(view.samples.items()) if r.features is not None), None)


def _news(
    cells: Iterable[tuple[Configuration, Cell]], old: Row | None
) -> tuple[tuple[tuple[Configuration, float], ...], int]:
    """The measured values last announced, and how often there was something to announce."""
    known = {} if old is None else dict(old.announced)
    picture = 0 if old is None else old.picture
    now = {c: cell.throughput for c, cell in cells if cell.throughput > 0}
    if any(c not in known or abs(math.log(value / known[c])) > NEWS for c, value in now.items()):
        return tuple(now.items()), picture + 1
    return tuple(known.items()), picture


def predict_rows(
    axes: Axes, predictor: Predictor, observed: Sequence[Observations]
) -> list[tuple[FloatArray, FloatArray, NDArray[np.int8]]]:
    """(throughput_HWS, log_std_HW, source_HWS) of each job on these axes."""
    if not observed:
        return []
    grid = _grid(axes)
    if not grid.columns:
        empty = np.zeros((len(axes.host_types), axes.workers, 2))
        return [(empty, empty[..., 0], empty.astype(np.int8)) for _ in observed]
    completion = predictor.predict(observed, grid.columns)
    index, (below, above, share) = grid.index_HNS, grid.between
    log_JHNS = np.log(np.maximum(completion.throughput_JK[:, index], 1e-300))
    std_JHN = completion.log_std_JK[:, index[..., DENSE]]
    source_JHNS = completion.source_JK[:, index]
    speed = np.exp(log_JHNS[:, :, below] * (1 - share)[:, None] + log_JHNS[:, :, above] * share[:, None])
    std = std_JHN[:, :, below] * (1 - share) + std_JHN[:, :, above] * share
    source = np.maximum(source_JHNS[:, :, below], source_JHNS[:, :, above])
    return [(speed[j], std[j], source[j]) for j in range(len(observed))]


def _interpolation(counts: Sequence[int], workers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]:
    """For every worker count: the predicted counts around it, and how far between them (in ln w) it is."""
    known = np.log(np.array(counts, dtype=np.float64))
    asked = np.log(np.arange(1, workers + 1, dtype=np.float64))
    above = np.clip(np.searchsorted(known, asked - 1e-12), 0, len(counts) - 1).astype(np.int64)
    exact = np.isclose(known[above], asked)
    below = np.where(exact, above, np.maximum(above - 1, 0)).astype(np.int64)
    width = np.where(exact, 1.0, known[above] - known[below])
    share = np.where(exact, 0.0, (asked - known[below]) / np.where(width > 0, width, 1.0))
    return below, above, share
