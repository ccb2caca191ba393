"""An evaluation as JSON, CSV and files: pure functions from a Comparison to text, and one that writes a folder."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heet_elastic.simulator.jobs import SimJob, dump_jobs
from heet_elastic.simulator.metrics import Comparison, Ratio, RunResult

CSV_COLUMNS = (
    "mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "efficiency", "starvation", "longest_wait_s",
    "rescales_per_job", "most_rescales", "rescale_share", "lost_share", "gpu_hours", "fairness_p90", "decision_s_mean",
    "decision_s_p99", "decisions", "finished", "unfinished",
)  # fmt: skip


def to_json(comparison: Comparison) -> str:
    """One object: policies, lower bound, ratios to the first policy, jobs, seeds, notes. NaN becomes null."""
    data = {
        "policies": comparison.figures,
        "lower_bound_mean_jct_s": comparison.lower_bound_s,
        "ratios": _ratios(comparison.ratios),
        "median_ratios": _ratios(comparison.median_ratios),
        "p99_ratios": _ratios(comparison.p99_ratios),
        "jobs": comparison.jobs,
        "seeds": comparison.seeds,
        "notes": list(comparison.notes),
    }
    return json.dumps(_finite(data), indent=2)


def _ratios(ratios: Mapping[str, Ratio]) -> dict[str, dict[str, float | str]]:
    return {p: {"mean": r.mean, "low": r.low, "high": r.high, "interval_over": r.over} for p, r in ratios.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_csv(comparison: Comparison) -> str:
    """One line a policy and seed, every figure a column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["policy", "seed_number", *CSV_COLUMNS])
    for policy, summaries in comparison.per_seed.items():
        for number, summary in enumerate(summaries):
            writer.writerow([policy, number, *(repr(getattr(summary, c)) for c in CSV_COLUMNS)])
    return out.getvalue()


def jobs_csv(result: RunResult) -> str:
    """One line a job of one run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(result.jobs[0].__slots__) if result.jobs else []
    writer.writerow(names)
    for job in result.jobs:
        writer.writerow(["" if (v := getattr(job, n)) is None else v for n in names])
    return out.getvalue()


def write_folder(
    out: Path, comparison: Comparison, results: Sequence[RunResult], jobs: Mapping[int, Sequence[SimJob]], command: str
) -> list[Path]:
    """Everything about an evaluation in one folder; returns the files. Plots need matplotlib (extra `plots`)."""
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "summary.json": to_json(comparison),
        "summary.csv": to_csv(comparison),
        "command.txt": command + "\n",
    }
    for r in results:
        files[f"events-{r.policy}-seed{r.seed}.jsonl"] = "".join(line + "\n" for line in r.log)
        files[f"jobs-{r.policy}-seed{r.seed}.csv"] = jobs_csv(r)
    written = []
    for name, text in files.items():
        path = out / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for seed, resolved in jobs.items():
        path = out / f"resolved-seed{seed}.csv"
        dump_jobs(path, resolved)
        written.append(path)
    return written + _plots(out, results)


def _plots(out: Path, results: Sequence[RunResult]) -> list[Path]:
    try:
        from heet_elastic.simulator import plots
    except ImportError:
        return []
    return plots.write_all(out, results)
