"""Jobs whose true throughput is known: computation and communication per step, on three made-up host types."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from heet_elastic.model import Cell, Configuration, JobFeatures, Profile
from heet_elastic.predictor.api import Observations

SPEED = {"slow": 1.0, "mid": 3.0, "fast": 6.0}
LINK = {"slow": 1.0, "mid": 0.6, "fast": 0.15}
"""Seconds per unit of data between two workers of one host."""

NETWORK = 2.0
"""Seconds per unit of data between two workers on two hosts."""

CONFIGURATIONS = tuple(
    [Configuration(h, w) for h in SPEED for w in (1, 2, 4, 8)]
    + [Configuration(h, w, 2) for h in SPEED for w in (2, 4, 8)]
)


def true_speed(work: float, data: float, c: Configuration) -> float:
    """Work units/s of a job with `work` per unit and `data` to exchange."""
    compute = work / SPEED[c.host_type]
    rate = NETWORK if c.hosts > 1 else LINK[c.host_type]
    return c.workers / (compute + (0.0 if c.workers == 1 else data * rate * 2 * (c.workers - 1) / c.workers))


def cell(throughput: float, age_s: float = 0.0, spread: float = 0.0, count: int = 10) -> Cell:
    """A measured cell."""
    return Cell(throughput, seconds=60.0, count=count, spread=spread, age_s=age_s)


def row(
    work: float, data: float, configurations: Iterable[Configuration] = CONFIGURATIONS
) -> tuple[tuple[Configuration, Cell], ...]:
    """Measured cells of a job, without noise."""
    return tuple((c, cell(true_speed(work, data, c))) for c in configurations)


def profiles(jobs: int = 12, seed: int = 0, name: str = "past") -> list[Profile]:
    """A history of unlike jobs, measured everywhere."""
    rng = np.random.default_rng(seed)
    return [
        Profile(f"{name}-{i}", row(w, w * r), work_unit="samples")
        for i, (w, r) in enumerate(zip(np.exp(rng.normal(0, 1, jobs)), np.exp(rng.normal(-1, 1, jobs)), strict=True))
    ]


def job(
    cells: Iterable[tuple[Configuration, Cell]], name: str = "", features: JobFeatures | None = None
) -> Observations:
    """A new job."""
    return Observations("new", name=name, cells=tuple(cells), features=features, work_unit="samples")


def rng() -> np.random.Generator:
    """The generator that methods are fitted with."""
    return np.random.default_rng(0)


def real_table(name: str) -> Path:
    """A published table, or a skip where it is not there."""
    folder = Path(os.environ.get("HEET_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    path = folder / name
    if not path.exists():
        pytest.skip(f"{path} is not there: set HEET_DATA to the folder of measured tables")
    return path
