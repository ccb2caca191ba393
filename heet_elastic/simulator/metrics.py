"""What a run was like: figures of one run, and of several policies paired over seeds.

Completion time = finish - submission. Efficiency = GPU-time weighted mean of T(h,w) / (w T(h,1)) while workers run.
Starvation = share of all jobs' time in the system during which they had no worker. Rescales = restarts after the first
start. Finish-time fairness = completion time over the time that the job would take as requested on the median host type
with its share of the cluster (contention averaged over the run; Mahajan et al., NSDI'20).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

BOOTSTRAP = 2000
"""Resamples behind an interval."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job. Times in seconds; `finish_s` is None when the run ended before it did."""

    job: str
    row: str
    submit_s: float
    start_s: float | None
    finish_s: float | None
    requested_s: float  # duration as requested on the median host type
    requested: int
    waited_s: float
    longest_wait_s: float
    rescales: int
    rescale_s: float
    lost_s: float
    gpu_s: float
    efficient_gpu_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """Workers of a job on one host over a stretch of time, for the Gantt chart."""

    job: str
    host: str
    workers: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment: running and waiting jobs, busy GPUs, their mean efficiency (NaN = none busy)."""

    at_s: float
    running: int
    waiting: int
    busy_gpus: int
    efficiency: float


@dataclass(frozen=True, slots=True)
class RunResult:
    """One policy on one seed. `decision_s`: wall time of every decision. `complete` is False after an interruption."""

    policy: str
    seed: int
    jobs: tuple[JobOutcome, ...]
    decision_s: tuple[float, ...]
    gpus: int
    end_s: float
    complete: bool = True
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    spans: tuple[Span, ...] = ()
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one run over the jobs that finished; NaN where none did."""

    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    efficiency: float
    starvation: float
    longest_wait_s: float
    rescales_per_job: float
    most_rescales: int
    rescale_share: float
    lost_share: float
    gpu_hours: float
    fairness_p90: float
    decision_s_mean: float
    decision_s_p99: float
    decisions: int
    finished: int
    unfinished: int


def summarise(result: RunResult) -> Summary:
    """The figures of a run."""
    done = [j for j in result.jobs if j.finish_s is not None]
    jct = np.array([j.finish_s - j.submit_s for j in done if j.finish_s is not None])
    gpu_s = sum(j.gpu_s for j in result.jobs)
    finishes = [j.finish_s for j in done if j.finish_s is not None]
    in_system = sum((j.finish_s if j.finish_s is not None else result.end_s) - j.submit_s for j in result.jobs)
    decisions = np.array(result.decision_s)
    return Summary(
        mean_jct_s=_of(jct, np.mean),
        median_jct_s=_of(jct, np.median),
        p99_jct_s=_of(jct, lambda v: np.percentile(v, 99)),
        makespan_s=max(finishes) - min(j.submit_s for j in result.jobs) if finishes else float("nan"),
        efficiency=sum(j.efficient_gpu_s for j in result.jobs) / gpu_s if gpu_s else float("nan"),
        starvation=sum(j.waited_s for j in result.jobs) / in_system if in_system else 0.0,
        longest_wait_s=max((j.longest_wait_s for j in result.jobs), default=0.0),
        rescales_per_job=_of(np.array([j.rescales for j in result.jobs]), np.mean),
        most_rescales=max((j.rescales for j in result.jobs), default=0),
        rescale_share=sum(j.rescale_s for j in result.jobs) / in_system if in_system else 0.0,
        lost_share=sum(j.lost_s for j in result.jobs) / in_system if in_system else 0.0,
        gpu_hours=gpu_s / 3600.0,
        fairness_p90=_fairness(result, done),
        decision_s_mean=_of(decisions, np.mean),
        decision_s_p99=_of(decisions, lambda v: np.percentile(v, 99)),
        decisions=len(result.decision_s),
        finished=len(done),
        unfinished=len(result.jobs) - len(done),
    )


def _of(values: np.ndarray, f: object) -> float:
    return float(f(values)) if len(values) else float("nan")  # type: ignore[operator]


def _fairness(result: RunResult, done: Sequence[JobOutcome]) -> float:
    """90th percentile over jobs of completion time over time with a fair share."""
    if not done:
        return float("nan")
    asked = sum(j.requested * j.requested_s for j in result.jobs)
    span = max(result.end_s - min(j.submit_s for j in result.jobs), 1e-9)
    contention = max(1.0, asked / (result.gpus * span))
    ratios = [(j.finish_s - j.submit_s) / (j.requested_s * contention) for j in done if j.finish_s is not None]
    return float(np.percentile(ratios, 90))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy's mean completion time over the first policy's, paired by seed, with a 95 % bootstrap interval.

    `over` says what was resampled: seeds, or (with a single seed) the jobs of that seed.
    """

    mean: float
    low: float
    high: float
    over: str = "seeds"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs of an evaluation. `figures`: per policy, each figure averaged over seeds."""

    figures: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, Ratio]
    median_ratios: Mapping[str, Ratio]
    p99_ratios: Mapping[str, Ratio]
    lower_bound_s: float | None
    jobs: int
    seeds: int
    notes: tuple[str, ...] = ()
    per_seed: Mapping[str, Sequence[Summary]] = field(default_factory=dict)


def compare(
    results: Sequence[RunResult], policies: Sequence[str], bounds: Mapping[int, float], notes: Sequence[str] = ()
) -> Comparison:
    """Figures and paired ratios. Seeds for which any policy has no complete run are left out (and said)."""
    by_key = {(r.policy, r.seed): r for r in results if r.complete}
    seeds = sorted({r.seed for r in results})
    whole = [s for s in seeds if all((p, s) in by_key for p in policies)]
    said = list(notes)
    if len(whole) < len(seeds):
        said.append(f"{len(seeds) - len(whole)} of {len(seeds)} seeds are not complete for every policy and left out")
    summaries = {p: [summarise(by_key[p, s]) for s in whole] for p in policies}
    figures = {p: _mean_figures(summaries[p]) for p in policies if summaries[p]}
    first = policies[0]

    def ratios(name: str) -> dict[str, Ratio]:
        out = {}
        for p in policies:
            if not whole:
                continue
            if len(whole) == 1 and name == "mean_jct_s":
                out[p] = _over_jobs(by_key[p, whole[0]], by_key[first, whole[0]])
                continue
            pairs = [getattr(a, name) / getattr(b, name) for a, b in zip(summaries[p], summaries[first], strict=True)]
            out[p] = bootstrap(pairs)
        return out

    known = [bounds[s] for s in whole if s in bounds]
    return Comparison(
        figures=figures,
        ratios=ratios("mean_jct_s"),
        median_ratios=ratios("median_jct_s"),
        p99_ratios=ratios("p99_jct_s"),
        lower_bound_s=sum(known) / len(known) if known else None,
        jobs=max((len(r.jobs) for r in results), default=0),
        seeds=len(whole),
        notes=tuple(said),
        per_seed=summaries,
    )


def _mean_figures(summaries: Sequence[Summary]) -> dict[str, float]:
    names = Summary.__slots__
    return {n: float(np.mean([getattr(s, n) for s in summaries])) for n in names}


def bootstrap(values: Sequence[float]) -> Ratio:
    """Mean of the values with its 95 % percentile bootstrap interval (fixed seed)."""
    v = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(20240427)
    means = v[rng.integers(len(v), size=(BOOTSTRAP, len(v)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Ratio(float(v.mean()), float(low), float(high))


def _over_jobs(a: RunResult, b: RunResult) -> Ratio:
    """With one seed: the ratio of means, its interval over resampled jobs (the same jobs in both runs)."""
    mine, other = ({j.job: j.finish_s - j.submit_s for j in r.jobs if j.finish_s is not None} for r in (a, b))
    common = sorted(mine.keys() & other.keys())
    if not common:
        return Ratio(float("nan"), float("nan"), float("nan"), over="jobs")
    x, y = np.array([mine[k] for k in common]), np.array([other[k] for k in common])
    rng = np.random.default_rng(20240427)
    ratios = np.empty(BOOTSTRAP)
    for i in range(BOOTSTRAP):  # one resample at a time: all at once would need gigabytes for long traces
        rows = rng.integers(len(common), size=len(common))
        ratios[i] = x[rows].sum() / y[rows].sum()
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Ratio(float(x.mean() / y.mean()), float(low), float(high), over="jobs")
