"""Many runs: every policy on every seed, spread over processes; stops early with what is done."""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from heet_elastic.errors import UsageError
from heet_elastic.model import Host
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.simulator.bound import lower_bound
from heet_elastic.simulator.cluster import gpus_by_type
from heet_elastic.simulator.engine import Simulation
from heet_elastic.simulator.feed import Feed, PredictedFeed, TrueFeed
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.live import Placed
from heet_elastic.simulator.metrics import RunResult
from heet_elastic.simulator.scenario import Scenario
from heet_elastic.simulator.settings import OURS, SimulationSettings
from heet_elastic.simulator.truth import Truth

LONG_JOBS, BINS = 80, 64
"""Size of the lower bound's linear programme in an evaluation."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run (policy given) or one lower bound (policy None) of a seed's jobs, from what is `placed` at the start."""

    number: int
    jobs: tuple[SimJob, ...]
    policy: str | None
    settings: SimulationSettings
    hosts: Mapping[str, Host]
    placed: Placed


Progress = Callable[[float], bool]
"""Called with the share of all work that is done; True = stop."""


def check_policies(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each once. UsageError for one that is unknown, or none at all."""
    if not names:
        raise UsageError("--policy is empty: name at least one of " + ", ".join(POLICIES))
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"--policy: there is no policy {name!r}; there are {', '.join(POLICIES)}")
    return tuple(dict.fromkeys(names))


def make_feed(
    policy: str, jobs: Sequence[SimJob], truth: Truth, settings: SimulationSettings, hosts: Mapping[str, Host]
) -> Feed:
    """Predictions for our policies, true curves for the others (or for all with predictor = "true")."""
    most = max(j.max_workers for j in jobs)
    if policy not in OURS or settings.predictor == "true":
        return TrueFeed(truth, hosts, most, settings)
    return PredictedFeed(truth, settings, most)


def run_one(task: Task, truth: Truth, progress: Progress = lambda _: False) -> RunResult:
    """Run a task's policy on its jobs."""
    assert task.policy is not None
    feed = make_feed(task.policy, task.jobs, truth, task.settings, task.hosts)
    policy = POLICIES[task.policy]()
    return Simulation(task.jobs, truth, policy, feed, task.settings, task.hosts, task.placed, progress).run()


def bound_of(task: Task, truth: Truth) -> float:
    """Lower bound on the mean completion time of the task's jobs."""
    start_s = task.settings.costs.up_s if not task.settings.costs.spread and not task.placed else 0.0
    return lower_bound(task.jobs, truth, gpus_by_type(task.hosts), start_s, LONG_JOBS, BINS).best_s


def sweep(
    scenario: Scenario,
    policies: Sequence[str],
    settings: SimulationSettings,
    processes: int | None = None,
    progress: Progress = lambda _: False,
    bounds: bool = True,
) -> tuple[list[RunResult], dict[int, float]]:
    """(runs, lower bound by seed). After a stop, runs that were under way come back incomplete."""
    truth = scenario.truth
    tasks = [
        Task(0, jobs, policy, replace(settings, seed=seed), dict(scenario.hosts), scenario.placed)
        for seed, jobs in scenario.jobs.items()
        for policy in (*policies, *((None,) if bounds else ()))
    ]
    tasks = [replace(t, number=n) for n, t in enumerate(tasks)]
    processes = min(processes or os.cpu_count() or 1, len(tasks))
    found = _inline(tasks, truth, progress) if processes == 1 else _pooled(tasks, truth, progress, processes)
    runs = [r for r in (found.get(t.number) for t in tasks) if isinstance(r, RunResult)]
    lows = {t.settings.seed: found[t.number] for t in tasks if t.policy is None and t.number in found}
    return runs, lows


def _inline(tasks: Sequence[Task], truth: Truth, progress: Progress) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for task in tasks:
        share = len(found) / len(tasks)
        if progress(share):
            break
        if task.policy is None:
            found[task.number] = bound_of(task, truth)
        else:
            found[task.number] = run_one(task, truth, _within(progress, share, len(tasks)))
    return found


def _within(progress: Progress, share: float, tasks: int) -> Progress:
    return lambda done: progress(share + done / tasks)


_shared: dict[str, Any] = {}
"""What a worker process was started with."""


def _start_worker(truth: Truth, shares: Any, stop: Any) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears ctrl-C and asks to stop
    os.nice(5)
    _shared.update(truth=truth, shares=shares, stop=stop)


def _work(task: Task) -> Any:
    shares, stop = _shared["shares"], _shared["stop"]

    def progress(share: float) -> bool:
        shares[task.number] = share
        return bool(stop.value)

    if stop.value:
        return None
    result = bound_of(task, _shared["truth"]) if task.policy is None else run_one(task, _shared["truth"], progress)
    shares[task.number] = 1.0
    return result


def _pooled(tasks: Sequence[Task], truth: Truth, progress: Progress, processes: int) -> dict[int, Any]:
    context = mp.get_context("spawn")
    shares, stop = context.Array("d", len(tasks), lock=False), context.Value("b", 0, lock=False)
    found: dict[int, Any] = {}
    with ProcessPoolExecutor(processes, context, _start_worker, (truth, shares, stop)) as pool:
        waiting: dict[Future[Any], int] = {pool.submit(_work, t): t.number for t in tasks}
        while waiting:
            done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                number = waiting.pop(future)
                if (result := future.result()) is not None:
                    found[number] = result
            if progress(sum(shares) / len(tasks)):
                stop.value = 1
    return found
