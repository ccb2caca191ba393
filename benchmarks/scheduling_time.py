"""How long one decision takes, from the Problem to the placed result, and how that grows.

    python benchmarks/scheduling_time.py [--jobs 5000] [--gpus 120] [--limit-s 20] [--json]

heet and market on a made-up cluster (four host types, hosts of eight), from nothing and once more from what then runs;
beside them, on the same instance in the same run, what others solve: a dense assignment of jobs to chunks (scipy),
Sia's integer programme and Gavel's linear programme (HiGHS). The exponent is that of seconds ~ size^exponent, jobs and
GPUs grown together from a quarter to four times the size asked for, by least squares in logarithms; solvers grow up to
that size.
A solver that is not done within --limit-s is ended: null. Times are processor time, so that other programs on the
machine do not count.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from scipy.optimize import linear_sum_assignment

from heet_elastic.scheduler.api import Problem
from heet_elastic.scheduler.chunks import chunk_sizes_H, entry_counts_JH
from heet_elastic.scheduler.market import Market, duality_gap
from heet_elastic.scheduler.options import build_options
from heet_elastic.scheduler.placement import place
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.scheduler.pricing import price_JH, urgency_J

OURS = ("heet", "market")
GROWTH = (0.25, 0.5, 1.0, 2.0, 4.0)
SOLVER_GROWTH = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
WORKERS = 16


def make_problem(jobs: int, gpus: int, seed: int) -> Problem:
    """Jobs that scale as w^p with p between 0.5 and 0.98 on types 1 to 6 times as fast; lengths over five decades."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(4)
    each = np.full(4, gpus // 4) + (kinds < gpus % 4)
    groups = [(h, min(8, int(n) - at)) for h, n in enumerate(each) for at in range(0, int(n), 8)]
    exponent = rng.uniform(0.5, 0.98, (jobs, 4, 1))
    speed = np.array([1.0, 1.5, 3.0, 6.0])[:, None] * rng.lognormal(0, 0.3, (jobs, 4, 1))
    table = speed * np.arange(1, WORKERS + 1) ** exponent
    return Problem(
        jobs=tuple(f"job-{j:07d}" for j in range(jobs)),
        host_types=("a", "b", "c", "d"),
        groups=tuple(f"host-{g}" for g in range(len(groups))),
        group_type_G=np.array([h for h, _ in groups]),
        group_gpus_G=np.array([n for _, n in groups]),
        throughput_JHWS=np.stack([table, 0.9 * table], axis=-1),
        log_std_JHW=np.full(table.shape, 0.15),
        remaining_J=rng.lognormal(7, 2.0, jobs),
        min_J=np.ones(jobs, dtype=np.int64),
        max_J=np.full(jobs, WORKERS),
        allowed_JW=np.ones((jobs, WORKERS), dtype=bool),
        limit_JG=None,
        per_host_J=np.zeros(jobs, dtype=np.int64),
        min_hosts_J=np.ones(jobs, dtype=np.int64),
        max_hosts_J=np.full(jobs, len(groups)),
        requested_J=rng.choice([1, 2, 4, 8], jobs),
        priority_J=np.ones(jobs),
        age_s_J=(age := rng.uniform(0, 3600, jobs)),
        waited_s_J=age,
        received_s_JH=np.zeros((jobs, 4)),
        since_rescale_s_J=np.full(jobs, np.inf),
        rescale_up_s_J=np.full(jobs, 9.0),
        rescale_down_s_J=np.full(jobs, 1.5),
        rescales_J=np.zeros(jobs, dtype=np.int64),
        frozen_J=np.zeros(jobs, dtype=bool),
        current=((),) * jobs,
    )


def decide(name: str, problem: Problem) -> tuple[float, Problem]:
    """Processor seconds of one decision, and the problem with that decision in force."""
    policy = POLICIES[name]()
    rng = np.random.default_rng(0)
    began = time.process_time()
    placed = place(problem, policy.choose(problem, rng))
    return time.process_time() - began, replace(problem, current=placed)


def fastest(name: str, problem: Problem, repeats: int) -> tuple[float, float]:
    """(seconds from nothing, seconds once more from what then runs): the best of `repeats`."""
    cold, after = math.inf, problem
    for _ in range(repeats):
        seconds, after = decide(name, problem)
        cold = min(cold, seconds)
    return cold, min(decide(name, after)[0] for _ in range(repeats))


def exponent(sizes: list[float], seconds: list[float]) -> float | None:
    """Slope of ln(seconds) over ln(size); None with fewer than two points."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def dense_assignment(problem: Problem) -> None:
    """Heet's matching with one column per chunk, as scipy's dense solver takes it."""
    options = build_options(problem)
    chunk = chunk_sizes_H(problem, options, None)
    price = price_JH(problem, options, entry_counts_JH(options, chunk), "both", urgency_J(problem, 3600.0))
    columns = np.repeat(np.arange(len(chunk)), options.gpus_H // chunk)
    linear_sum_assignment(price[:, columns])


def with_limit(name: str, limit_s: float, problem: Problem) -> None:
    """Sia's or Gavel's decision, HiGHS stopped a little after the limit."""
    POLICIES[name](time_limit_s=2 * limit_s).choose(problem, np.random.default_rng(0))  # type: ignore[call-arg]


def _child(work: Callable[[Problem], None], size: tuple[int, int], pipe: Connection) -> None:
    problem = make_problem(*size, seed=0)
    pipe.send(None)  # only the work is timed
    began = time.process_time()
    work(problem)
    pipe.send(time.process_time() - began)


def timed(work: Callable[[Problem], None], size: tuple[int, int], limit_s: float) -> float | None:
    """Processor seconds of `work` in a process of its own, which is ended after `limit_s`: None."""
    context = mp.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, size, there), daemon=True)
    child.start()
    there.close()
    try:
        here.recv()
        return float(here.recv()) if here.poll(limit_s) else None
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_ours(name: str, jobs: int, gpus: int, repeats: int) -> dict[str, Any]:
    times, result = [], {}
    for factor in GROWTH:
        size = max(int(jobs * factor), 8), max(int(gpus * factor), 8)
        cold, again = fastest(name, make_problem(*size, seed=0), repeats)
        times.append((factor, cold))
        say(f"{name}: {size[0]:,} jobs on {size[1]:,} GPUs: {cold:.4f} s, again {again:.4f} s")
        if factor == 1.0:
            result = {"seconds": cold, "again_seconds": again}
    return {**result, "exponent": exponent(*map(list, zip(*times, strict=True)))}


def measure_solver(name: str, work: Callable[[Problem], None], jobs: int, gpus: int, limit_s: float) -> dict[str, Any]:
    times: list[tuple[float, float]] = []
    seconds = None
    for factor in SOLVER_GROWTH:
        size = max(int(jobs * factor), 8), max(int(gpus * factor), 8)
        seconds = timed(work, size, limit_s)
        shown = f"not within {limit_s:g} s" if seconds is None else f"{seconds:.4f} s"
        say(f"{name}: {size[0]:,} jobs on {size[1]:,} GPUs: {shown}")
        if seconds is None:
            break
        times.append((factor, seconds))
    fitted = exponent([f for f, _ in times], [s for _, s in times])
    return {"seconds": seconds, "exponent": fitted}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--gpus", type=int, default=120)
    parser.add_argument("--limit-s", type=float, default=20.0, help="longest time for one run of another's solver")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.jobs < 8 or args.gpus < 8 or args.repeats < 1 or not args.limit_s > 0:
        parser.error("expected at least 8 jobs, 8 GPUs and 1 repeat, and a limit above 0 s")
    result: dict[str, dict[str, Any]] = {n: measure_ours(n, args.jobs, args.gpus, args.repeats) for n in OURS}
    result["market"]["gap"] = duality_gap(Market(), make_problem(args.jobs, args.gpus, seed=0))
    solvers: dict[str, Callable[[Problem], None]] = {
        "dense-assignment": dense_assignment,
        "sia": partial(with_limit, "sia", args.limit_s),
        "gavel": partial(with_limit, "gavel", args.limit_s),
    }
    for name, work in solvers.items():
        result[name] = measure_solver(name, work, args.jobs, args.gpus, args.limit_s)
    if args.json:
        print(json.dumps(result))
        return 0
    print(f"{args.jobs:,} jobs on {args.gpus:,} GPUs")
    for name, row in result.items():
        shown = "-" if row["seconds"] is None else f"{row['seconds']:.4f} s"
        grows = "-" if row["exponent"] is None else f"{row['exponent']:.2f}"
        more = f"  duality gap {row['gap']:.3%}" if "gap" in row else ""
        print(f"{name:17s} {shown:>12s}  exponent {grows:>5s}{more}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
