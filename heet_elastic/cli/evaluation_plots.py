"""Plots of `heet evaluate --out FOLDER`: error against measured cells, of all and by family; calibration; a scatter."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT
from heet_elastic.predictor.evaluation import Judged

COMPARED = ("combined", "line", "nearest", "svd-log")
"""Methods shown for each family."""

MOST_PANELS = 24

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def write_folder(folder: Path, judged: Judged, details: dict[str, Any]) -> None:
    """evaluation.json and the plots; UsageError when matplotlib is missing or the folder cannot be written."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as e:
        raise UsageError("--out draws plots with matplotlib: pip install 'heet-elastic[plots]'") from e
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "evaluation.json").write_text(json.dumps(details, indent=1) + "\n")
        for name, draw in (("curve", _curve), ("scatter", _scatter), ("calibration", _calibration)):
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")
            if draw(figure.subplots(), judged):
                figure.savefig(folder / f"{name}.png", dpi=80)
        figure = Figure(figsize=(9.0, 5.0), layout="constrained")
        if _families(figure, judged):
            figure.savefig(folder / "families.png", dpi=80)
    except OSError as e:
        raise UsageError(f"--out {folder}: {e.strerror or e}") from e


def _curve(axes: Any, judged: Judged) -> bool:
    """Median error of each method against the number of measured cells."""
    from heet_elastic.predictor.scores import score

    counts = judged.plan.all_counts
    for method in dict.fromkeys(m for m, _ in judged.predictions):
        medians = [100 * score(judged.predictions[method, n]).median_error for n in counts]
        style = {"linewidth": 2.5, "color": "black"} if method == DEFAULT else {"linewidth": 1.2}
        axes.plot(counts, medians, marker="o", markersize=3, label=method, **style)
    axes.axhline(10, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="measured cells of a job", ylabel="median error of the others (%)", yscale="log")
    axes.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.set_title(f"{judged.plan.hold_out} held out, {judged.plan.design} cells")
    axes.legend(fontsize="small", ncols=2)
    return len(counts) > 1


def _families(figure: Any, judged: Judged) -> bool:
    """Median error against the number of measured cells, a panel a family, with the methods most worth comparing."""
    from heet_elastic.predictor.scores import score

    counts, families = judged.plan.all_counts, sorted(set(judged.table.families))
    asked = dict.fromkeys(m for m, _ in judged.predictions)
    methods = [m for m in COMPARED if m in asked] or list(asked)
    if len(counts) < 2 or not 1 < len(families) <= MOST_PANELS:
        return False
    wide = math.ceil(math.sqrt(len(families)))
    panels = figure.subplots(math.ceil(len(families) / wide), wide, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, family in zip(panels, families, strict=False):
        jobs = np.flatnonzero(np.array(judged.table.families) == family)
        for method in methods:
            parts = [judged.predictions[method, n].take(jobs) for n in counts]
            style = {"linewidth": 2.0, "color": "black"} if method == DEFAULT else {"linewidth": 1.0}
            axes.plot(counts, [100 * score(p).median_error for p in parts], label=method, **style)
        axes.axhline(10, color="grey", linewidth=0.8, linestyle=":")
        axes.set(yscale="log")
        axes.set_yticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
        axes.minorticks_off()
        axes.set_title(family, fontsize="small")
    for axes in panels[len(families) :]:
        axes.set_visible(False)
    panels[0].legend(fontsize="x-small")
    figure.supxlabel("measured cells of a job")
    figure.supylabel("median error of the others (%)")
    return True


def _default(judged: Judged) -> Any:
    return judged.predictions.get((DEFAULT, judged.plan.probes))


def _scatter(axes: Any, judged: Judged) -> bool:
    """Predicted efficiency against true, of held-out cells, coloured by family."""
    found = _default(judged)
    if found is None:
        return False
    families = np.array(judged.table.families)
    workers_K = np.array([c.workers for c in judged.table.configurations])
    single = {c.host_type: k for k, c in enumerate(judged.table.configurations) if c.workers == 1}
    one_K = np.array([single.get(c.host_type, -1) for c in judged.table.configurations])
    speed_JK = found.truth_JK[:, one_K] + np.log(workers_K)
    for family in sorted(set(judged.table.families)):
        shown = found.held_out_JK & (families == family)[:, None] & (one_K >= 0) & np.isfinite(speed_JK)
        true, told = np.exp(found.truth_JK - speed_JK)[shown], np.exp(found.log_JK - speed_JK)[shown]
        axes.scatter(true, told, s=6, alpha=0.5, label=family)
    axes.plot([0.02, 2], [0.02, 2], color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="true T / (w T(1))", ylabel="predicted", xlim=(0.02, 2), ylim=(0.02, 2))
    axes.legend(fontsize="small", markerscale=2)
    return True


def _calibration(axes: Any, judged: Judged) -> bool:
    """Share of held-out cells inside central intervals, against the interval's probability."""
    from scipy.special import ndtri

    found = _default(judged)
    if found is None:
        return False
    held = found.held_out_JK
    z = np.abs(found.log_JK - found.truth_JK)[held] / found.std_JK[held]
    axes.plot(LEVELS, [(z <= ndtri(0.5 + level / 2)).mean() for level in LEVELS], marker="o", color="black")
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    axes.set(xlabel="interval", ylabel="share of held-out cells inside", title=DEFAULT)
    return True
