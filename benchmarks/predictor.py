"""How long predictions take: all jobs from scratch, one job after a sample, fitting a history; and how that grows.

    python benchmarks/predictor.py [--jobs 5000] [--past 64] [--repeat 5] [--json]

Made-up jobs on three host types, six measured cells of 21 each, and a history measured everywhere. CPU seconds of one
thread, the least of the repetitions; beside them a fixed amount of numpy work (`reference_ms`), so that figures of a
busy machine can be compared with those of another. The exponent is that of seconds ~ jobs^exponent, by least squares in
logarithms. On a live cluster the update counts: a sample recomputes its own job's row alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np

from heet_elastic.model import Cell, Configuration, Profile
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Covarying, Observations

SPEED = {"slow": 1.0, "mid": 3.0, "fast": 6.0}
CONFIGURATIONS = [Configuration(h, w) for h in SPEED for w in (1, 2, 4, 8)]
CONFIGURATIONS += [Configuration(h, w, 2) for h in SPEED for w in (2, 4, 8)]
MEASURED = 6
GROWTH = (0.1, 0.2, 0.5, 1.0, 2.0)
TARGET_ALL_MS, TARGET_ONE_MS = 100.0, 1.0


def make_cells(rng: np.random.Generator, count: int) -> tuple[tuple[Configuration, Cell], ...]:
    """Cells of a job with its own computation, communication and 3 % noise."""
    work, ratio = np.exp(rng.normal(0, 1)), np.exp(rng.normal(-1, 1))
    chosen = [CONFIGURATIONS[k] for k in sorted(rng.permutation(len(CONFIGURATIONS))[:count])]
    cells = []
    for c in chosen:
        link = 2.0 if c.hosts > 1 else 0.6
        step = work / SPEED[c.host_type] + work * ratio * link * (c.workers - 1) / c.workers
        cells.append((c, Cell(c.workers / step * float(np.exp(0.03 * rng.normal())), 60.0, 10)))
    return tuple(cells)


def make_jobs(jobs: int, seed: int) -> list[Observations]:
    """New jobs of which `MEASURED` cells are known."""
    rng = np.random.default_rng(seed)
    return [Observations(f"job-{j}", cells=make_cells(rng, MEASURED), work_unit="samples") for j in range(jobs)]


def make_history(jobs: int, seed: int) -> list[Profile]:
    """Past jobs, measured everywhere."""
    rng = np.random.default_rng([seed, 1])
    return [Profile(f"past-{j}", make_cells(rng, len(CONFIGURATIONS)), work_unit="samples") for j in range(jobs)]


def cpu_ms(what: Callable[[], object], repeat: int) -> float:
    """Least CPU time of `what` in milliseconds."""
    times = []
    for _ in range(repeat):
        began = time.process_time()
        what()
        times.append(time.process_time() - began)
    return 1e3 * min(times)


def reference_ms(repeat: int) -> float:
    """CPU time of a fixed amount of numpy work."""
    table = np.random.default_rng(0).random((300, 300))

    def work() -> None:
        for _ in range(20):
            (table @ table).sum()
            np.exp(table).sum()

    return cpu_ms(work, repeat)


def measure(jobs: int, past: int, repeat: int, seed: int) -> dict[str, Any]:
    """All figures."""
    history, rng = make_history(past, seed), np.random.default_rng(seed)
    fit_ms = cpu_ms(lambda: METHODS["combined"](history, rng), min(repeat, 3))
    predictor = METHODS["combined"](history, rng)
    assert isinstance(predictor, Covarying)
    rows = make_jobs(max(int(jobs * max(GROWTH)), 100), seed)
    predictor.predict(rows[:10], CONFIGURATIONS)
    growth = {}
    for share in GROWTH:
        count = max(int(jobs * share), 10)
        growth[count] = cpu_ms(lambda n=count: predictor.predict(rows[:n], CONFIGURATIONS), repeat)  # type: ignore[misc]

    def each(what: Callable[[Sequence[Observations]], object]) -> float:
        some = rows[:50]
        return cpu_ms(lambda: [what([row]) for row in some], repeat) / len(some)

    x, y = np.log(list(growth)), np.log(list(growth.values()))
    return {
        "jobs": jobs,
        "past": past,
        "all_jobs_ms": growth[max(int(jobs), 10)],
        "one_update_ms": each(lambda row: predictor.predict(row, CONFIGURATIONS)),
        "one_covariance_ms": each(lambda row: predictor.covariance(row, CONFIGURATIONS)),
        "fit_ms": fit_ms,
        "growth_ms": {str(n): ms for n, ms in growth.items()},
        "exponent": float(np.polyfit(x, y, 1)[0]),
        "reference_ms": reference_ms(repeat),
        "target_all_ms": TARGET_ALL_MS,
        "target_one_ms": TARGET_ONE_MS,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--past", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if min(asked.jobs, asked.repeat) < 1 or asked.past < 0:
        parser.error("--jobs and --repeat are whole numbers from 1, --past from 0")
    found = measure(asked.jobs, asked.past, asked.repeat, asked.seed)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{found['jobs']} jobs from scratch: {found['all_jobs_ms']:.0f} ms (target {TARGET_ALL_MS:.0f})")
    print(f"one job after a sample: {found['one_update_ms']:.2f} ms (target {TARGET_ONE_MS:g})")
    print(f"covariance of one job, for a probe: {found['one_covariance_ms']:.2f} ms")
    print(f"fitting {found['past']} past jobs: {found['fit_ms']:.0f} ms")
    print("growth: " + ", ".join(f"{n} jobs {ms:.0f} ms" for n, ms in found["growth_ms"].items()))
    print(f"ms ~ jobs^{found['exponent']:.2f}; the reference work takes {found['reference_ms']:.1f} ms here")


if __name__ == "__main__":
    main()
