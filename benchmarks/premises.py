"""The paper's premises on measured tables, as figures: scaling by GPU, links by model, how far GPUs are apart.

    python benchmarks/premises.py [--out docs/figures]

Prints the figures behind the pictures. Data: $HEET_DATA (measured tables). Needs matplotlib.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from heet_elastic.simulator.tables import load_truth
from heet_elastic.simulator.truth import Row, Truth

TABLES = {
    "Gavel's table (8 GPUs a host)": ("throughput_gavel.csv", ("K80", "P100", "V100"), (2, 4, 8)),
    "Sia's table (PCIe)": ("throughput_sia_pcie.csv", ("T4", "RTX2080Ti", "QuadroRTX6000"), (2, 4, 8)),
}
"""Title, file, GPUs from slow to fast, worker counts."""

LINKS = {
    "P100 over NVLink\nagainst K80 over PCIe": ("throughput_tensorflow_benchmarks.csv", "K80", "P100", 8),
    "A100 over NVLink\nagainst T4 over PCIe": ("throughput_elasticflow.csv", "T4", "A100", 4),
}
"""Title, file, GPU with the slow link, GPU with the fast one, workers on one host."""


def efficiency(row: Row, host_type: str, workers: int) -> float | None:
    """T(w) / (w T(1)) on the fewest hosts measured; None where either was not measured."""
    cells = row.cells.get(host_type, {})
    hosts = min((n for w, n in cells if w == workers), default=0)
    if not hosts or (1, 1) not in cells:
        return None
    return cells[workers, hosts] / (workers * cells[1, 1])


def of_families(truth: Truth, values: Mapping[str, float | None]) -> dict[str, float]:
    """The median of each family of rows (batch sizes of one model count as one)."""
    grouped: dict[str, list[float]] = {}
    for name, value in values.items():
        if value is not None:
            grouped.setdefault(truth.rows[name].family, []).append(value)
    return {family: statistics.median(v) for family, v in sorted(grouped.items())}


def scaling(data: Path) -> Figure:
    """Scaling efficiency of every model by GPU, slow GPUs on the left."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (title, (file, kinds, counts)) in zip(figure.subplots(1, 2, sharey=True), TABLES.items(), strict=True):
        truth = load_truth([data / file], skip_bad=True)[0]
        for at, kind in enumerate(kinds):
            for shift, workers in zip((-0.22, 0.0, 0.22), counts, strict=True):
                found = of_families(truth, {n: efficiency(r, kind, workers) for n, r in truth.rows.items()})
                if not found:
                    continue
                values = list(found.values())
                axes.plot([at + shift] * len(values), values, "o", ms=4, alpha=0.5, color=f"C{counts.index(workers)}")
                middle = statistics.median(values)
                axes.plot([at + shift - 0.08, at + shift + 0.08], [middle] * 2, color="black")
                print(f"{title}: {kind}, {workers} workers: median efficiency {middle:.2f} of {len(values)} models")
        for n, workers in enumerate(counts):
            axes.plot([], [], "o", color=f"C{n}", label=f"{workers} workers")
        axes.set(title=title, xticks=range(len(kinds)), xticklabels=kinds, ylim=(0, 1.65))
        axes.axhline(1.0, lw=0.6, color="grey")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small", loc="upper center", ncols=3)
    figure.axes[0].set_ylabel("T(w) / (w T(1)), a dot a model")
    return figure


def links(data: Path) -> Figure:
    """How much better each model scales where the host has NVLink."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (title, (file, slow, fast, workers)) in zip(figure.subplots(1, 2), LINKS.items(), strict=True):
        truth = load_truth([data / file], skip_bad=True)[0]
        slow_types = [t for t in truth.types if t.startswith(slow)]
        fast_types = [t for t in truth.types if t.startswith(fast)]
        pair: dict[str, tuple[float, float]] = {}
        by_type = {
            t: of_families(truth, {n: efficiency(r, t, workers) for n, r in truth.rows.items()})
            for t in (*slow_types, *fast_types)
        }
        for family in sorted({f for found in by_type.values() for f in found}):
            low = [by_type[t][family] for t in slow_types if family in by_type[t]]
            high = [by_type[t][family] for t in fast_types if family in by_type[t]]
            if low and high:
                pair[family] = (statistics.median(low), statistics.median(high))
        order = sorted(pair, key=lambda f: pair[f][1] - pair[f][0])
        for at, family in enumerate(order):
            low_, high_ = pair[family]
            axes.plot([low_, high_], [at, at], color="grey", lw=1)
            axes.plot(low_, at, "o", color="C1")
            axes.plot(high_, at, "o", color="C0")
            print(f"{file}: {family}, {workers} workers: {low_:.2f} on {slow}, {high_:.2f} on {fast}")
        axes.plot([], [], "o", color="C1", label=slow)
        axes.plot([], [], "o", color="C0", label=fast)
        axes.set(title=title, yticks=range(len(order)), xlabel=f"efficiency of {workers} workers", xlim=(0, 1.25))
        axes.set_yticklabels(order, fontsize=7)
        axes.grid(axis="x", alpha=0.3)
        axes.legend(fontsize="small", loc="upper left")
    return figure


def speeds(data: Path) -> Figure:
    """Speed of one worker by GPU, over that on the table's slowest one; one line a model."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (title, (file, kinds, _)) in zip(figure.subplots(1, 2), TABLES.items(), strict=True):
        truth = load_truth([data / file], skip_bad=True)[0]
        relative: dict[str, dict[str, float]] = {}
        for kind in kinds:
            over = {n: over_slowest(row, kind, kinds[0]) for n, row in truth.rows.items()}
            relative[kind] = of_families(truth, over)
            values = list(relative[kind].values())
            print(
                f"{title}: {kind} over {kinds[0]}: median {statistics.median(values):.2f}, "
                f"from {min(values):.2f} to {max(values):.2f}, {len(values)} models"
            )
        for n, family in enumerate(sorted(set.union(*(set(r) for r in relative.values())))):
            points = [(i, relative[k][family]) for i, k in enumerate(kinds) if family in relative[k]]
            axes.plot(*zip(*points, strict=True), "o-", ms=4, lw=1, color=f"C{n % 10}", label=family)
        axes.set(title=title, xticks=range(len(kinds)), xticklabels=kinds, yscale="log", ylim=(0.45, 11))
        ticks = [0.5, 1, 2, 3, 5, 10]
        axes.set_yticks(ticks, [str(t) for t in ticks], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    figure.axes[0].set_ylabel("one worker, over the slowest GPU")
    return figure


def over_slowest(row: Row, kind: str, slowest: str) -> float | None:
    """T(1) on a GPU over T(1) on the slowest one; None where either was not measured."""
    here, there = row.cells.get(kind, {}).get((1, 1)), row.cells.get(slowest, {}).get((1, 1))
    return here / there if here and there else None


PICTURES: Sequence[tuple[str, Callable[[Path], Figure]]] = (("scaling", scaling), ("links", links), ("speeds", speeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    args = parser.parse_args()
    data = Path(os.environ.get("HEET_DATA", "../shared/data"))
    if not data.is_dir():
        print(
            f"benchmarks/premises.py: there is no folder {data}: set HEET_DATA to that of the tables", file=sys.stderr
        )
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES:
        draw(data).savefig(args.out / f"{name}.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
