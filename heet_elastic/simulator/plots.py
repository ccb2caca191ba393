"""Plots of an evaluation: completion times, the cluster over time, and who ran where. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from heet_elastic.simulator.metrics import RunResult

mpl.use("Agg")
HOUR = 3600.0


def write_all(out: Path, results: Sequence[RunResult]) -> list[Path]:
    """All plots of the first seed (and completion times over all seeds) into `out`."""
    if not results:
        return []
    first = min(r.seed for r in results)
    shown = [r for r in results if r.seed == first]
    files = [(out / "completion.png", completion_cdf(results)), (out / "timeline.png", timeline(shown))]
    files += [(out / f"gantt-{r.policy}.png", gantt(r)) for r in shown if r.spans]
    for path, figure in files:
        figure.savefig(path, dpi=130)
    return [path for path, _ in files]


def completion_cdf(results: Sequence[RunResult]) -> Figure:
    """Share of jobs that are done within a completion time (log scale), one line a policy, all seeds together."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for policy in dict.fromkeys(r.policy for r in results):
        times = np.sort(
            [j.finish_s - j.submit_s for r in results if r.policy == policy for j in r.jobs if j.finish_s is not None]
        )
        if len(times):
            axes.step(times / HOUR, np.arange(1, len(times) + 1) / len(times), where="post", label=policy)
    axes.set(xscale="log", xlabel="completion time (hours)", ylabel="share of jobs", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    return figure


def timeline(results: Sequence[RunResult]) -> Figure:
    """Busy GPUs, waiting jobs and scaling efficiency over time, one line a policy."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    busy, waiting, efficiency = figure.subplots(3, 1, sharex=True)
    for r in results:
        hours = np.array([s.at_s for s in r.samples]) / HOUR
        busy.step(hours, [s.busy_gpus for s in r.samples], where="post", lw=0.8, label=r.policy)
        waiting.step(hours, [s.waiting for s in r.samples], where="post", lw=0.8)
        efficiency.plot(hours, [s.efficiency for s in r.samples], lw=0.8)
    busy.set(ylabel="busy GPUs")
    busy.legend(loc="upper right", fontsize="small", ncols=3)
    waiting.set(ylabel="jobs without a worker")
    efficiency.set(ylabel="scaling efficiency", xlabel="hours", ylim=(0, 1.2))
    for axes in (busy, waiting, efficiency):
        axes.grid(alpha=0.3)
    return figure


def gantt(result: RunResult, most_jobs: int = 60) -> Figure:
    """Who ran where: a lane per host, bars as high as the share of the host that a job held; the first jobs only."""
    spans = [s for s in result.spans if s.end_s > s.start_s]
    shown = set(list(dict.fromkeys(s.job for s in spans))[:most_jobs])
    spans = [s for s in spans if s.job in shown]
    hosts = sorted({s.host for s in spans})
    figure = Figure(figsize=(9, 1.2 + 0.32 * len(hosts)), layout="constrained")
    axes = figure.subplots()
    lane = {h: i for i, h in enumerate(hosts)}
    widest = max((s.workers for s in spans), default=1)
    colours = mpl.colormaps["tab20"]
    colour = {job: colours(i % 20) for i, job in enumerate(dict.fromkeys(s.job for s in spans))}
    stacked: dict[str, list[tuple[float, float, float]]] = {}
    for s in sorted(spans, key=lambda s: (s.start_s, s.job)):
        overlapping = [b for b in stacked.get(s.host, []) if b[0] > s.start_s + 1e-9]
        height = 0.9 * s.workers / widest
        bottom = max((top for _, _, top in overlapping), default=0.0)
        axes.broken_barh(
            [(s.start_s / HOUR, (s.end_s - s.start_s) / HOUR)], (lane[s.host] + bottom, height),
            facecolors=colour[s.job], edgecolors="white", linewidth=0.2,
        )  # fmt: skip
        stacked.setdefault(s.host, []).append((s.end_s, bottom, bottom + height))
    axes.set(yticks=np.arange(len(hosts)) + 0.45, xlabel="hours", title=f"{result.policy}: the first {len(shown)} jobs")
    axes.set_yticklabels(hosts, fontsize=7)
    return figure
