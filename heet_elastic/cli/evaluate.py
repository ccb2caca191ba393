"""`heet evaluate`: how well throughputs are predicted, judged on any measured table with most of it hidden."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from heet_elastic.cli import output, render
from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT, METHODS
from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.evaluation import Judged, Plan, Report
from heet_elastic.predictor.evaluation import evaluate as judge
from heet_elastic.predictor.scores import Score, bootstrap_medians, errors_JK, score
from heet_elastic.predictor.tables import LeftOut, ThroughputTable, covered, load_table

CURVE = (1, 2, 3, 4, 5, 6, 8, 10)
"""Numbers of measured cells of the curve."""

SHOWN = 8
"""So many jobs, configurations and bad rows are listed by name; the rest are counted."""

LARGEST = 100.0
"""Shares above this are not told apart: tables with broken units have errors of any size."""

LINE_EVERY_S = 10.0
"""Without a terminal, progress is a line on stderr at most this often."""


class DesignName(StrEnum):
    """Values of --design."""

    STANDARD = "standard"
    CHOSEN = "chosen"


class HoldOutName(StrEnum):
    """Values of --hold-out."""

    FAMILY = "family"
    JOB = "job"


def evaluate(
    throughputs: Annotated[Path, typer.Option(metavar="FILE", help="Table of measured throughputs (csv).")],
    probes: Annotated[int, typer.Option(min=1, help="Measured cells of each job.")] = 6,
    design: Annotated[
        DesignName,
        typer.Option(help="standard: one worker and most workers of each host type; chosen: where it says most."),
    ] = DesignName.STANDARD,
    hold_out: Annotated[
        HoldOutName, typer.Option(help="family: no other batch size of the model in the history; job: only the job.")
    ] = HoldOutName.FAMILY,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"Methods to judge, again or by commas; default: all of {', '.join(METHODS)}."),
    ] = None,
    min_coverage: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out configurations and jobs measured with less than this.")
    ] = 0.5,
    curve: Annotated[
        bool | None, typer.Option("--curve/--no-curve", help="Error against measured cells; default: not with --json.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn: starts of factorisations, resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures of each method as JSON.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="With --json: also families, intervals, curve, what was left out.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the details and plots there.")] = None,
) -> None:
    """Hide most of each job's throughputs, predict them, and compare the methods."""
    names = _methods(method)
    table, left_out = covered(load_table(throughputs), min_coverage)
    with_curve = curve if curve is not None else not as_json or details or out is not None
    most = int(np.isfinite(table.throughput_JK).sum(axis=1).max())
    if probes >= most:
        raise UsageError(
            f"--probes is {probes}, but no job of {throughputs} has more than {most} cell{'s' if most > 1 else ''}: "
            "nothing is hidden"
        )
    counts = tuple(n for n in CURVE if n < most) if with_curve else ()
    plan = Plan(probes, design.value, hold_out.value, counts, seed)
    with _watched() as report:
        judged = judge(table, {n: METHODS[n] for n in names}, METHODS[DEFAULT], plan, cold=True, report=report)
    scores = {n: score(judged.predictions[n, probes]) for n in names}
    if as_json and not details:
        output.print_json(_figures(scores, table))
    found = _details(judged, scores, left_out) if not as_json or details or out is not None else {}
    if as_json and details:
        output.print_json({**_figures(scores, table), **found})
    if not as_json:
        _print(judged, scores, left_out, found)
    if out is not None:
        from heet_elastic.cli.evaluation_plots import write_folder

        write_folder(out, judged, {**_figures(scores, table), **found})


def _methods(asked: Sequence[str] | None) -> list[str]:
    names = [n.strip() for text in asked or () for n in text.split(",") if n.strip()] or list(METHODS)
    for name in names:
        if name not in METHODS:
            raise UsageError(f"--method {name}: no such method; there are {', '.join(METHODS)}")
    return list(dict.fromkeys(names))


@contextmanager
def _watched() -> Iterator[Report]:
    """Progress on stderr: a bar on a terminal, else now and then a line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = time.monotonic()

        def line(what: str, done: int, steps: int) -> None:
            nonlocal last
            if time.monotonic() - last > LINE_EVERY_S and done < steps:
                last = time.monotonic()
                print(f"{done}/{steps} {what}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("evaluating", total=None)

        def move(what: str, done: int, steps: int) -> None:
            bar.update(task, description=what, completed=done, total=steps)

        yield move


# --------------------------------------------------------------------------- figures


def _number(value: float) -> float | None:
    """A figure for JSON: null where there is none."""
    return None if not math.isfinite(value) else round(value, 6)


def _figures(scores: dict[str, Score], table: ThroughputTable) -> dict[str, Any]:
    """The document that programs read."""
    keys = ("median_error", "mean_accuracy", "p90_error", "order_within_job", "order_across_jobs", "coverage80")
    return {
        "methods": {name: {key: _number(getattr(s, key)) for key in keys} for name, s in scores.items()},
        "default": DEFAULT,
        "cells": int(np.isfinite(table.throughput_JK).sum()),
        "jobs": len(table.jobs),
    }


def _details(judged: Judged, scores: dict[str, Score], left_out: LeftOut) -> dict[str, Any]:
    """Families, intervals, curve, what was left out."""
    table, probes = judged.table, judged.plan.probes
    names = list(scores)
    errors = [errors_JK(judged.predictions[n, probes]) for n in names]
    curve = {
        name: {str(n): _number(score(judged.predictions[name, n]).median_error) for n in judged.plan.all_counts}
        for name in names
    }
    return {
        "all_figures": {name: {k: _number(float(v)) for k, v in asdict(s).items()} for name, s in scores.items()},
        "cold": None if judged.cold is None else {k: _number(float(v)) for k, v in asdict(score(judged.cold)).items()},
        "families": _families(table, names, errors, judged.plan.seed),
        "curve": curve,
        "left_out": {
            "jobs": {name: round(share, 3) for name, share in left_out.jobs},
            "configurations": {str(c): round(share, 3) for c, share in left_out.configurations},
            "rows": [{"line": s.line, "reason": s.reason} for s in table.skipped],
        },
    }


def _families(table: ThroughputTable, names: Sequence[str], errors: Sequence[FloatArray], seed: int) -> dict[str, Any]:
    """Median error of every method over all jobs and each family, with 95 % intervals paired over methods."""
    families = np.array(table.families)
    groups = {"all": np.arange(families.size)}
    if len(set(table.families)) > 1:
        groups |= {f: np.flatnonzero(families == f) for f in sorted(set(table.families))}
    found = {}
    for group, at in groups.items():
        parts = [e[at] for e in errors]
        draws = bootstrap_medians(parts, [str(f) for f in families[at]], np.random.default_rng(seed))
        found[group] = {
            "jobs": int(at.size),
            "cells": int(np.isfinite(parts[0]).sum()),
            "methods": {name: _interval(parts[m], draws, m, names) for m, name in enumerate(names)},
        }
    return found


def _interval(part: FloatArray, draws: FloatArray, m: int, names: Sequence[str]) -> dict[str, Any]:
    finite = part[np.isfinite(part)]
    first = names.index(DEFAULT) if DEFAULT in names else 0
    low, high = _percentiles(draws[:, m])
    less, more = _percentiles(draws[:, m] - draws[:, first])
    return {
        "median_error": _number(float(np.median(finite))) if finite.size else None,
        "interval": [low, high],
        "minus_default": [less, more],
    }


def _percentiles(values: FloatArray) -> tuple[float | None, float | None]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None, None
    low, high = np.percentile(finite, (2.5, 97.5))
    return _number(float(low)), _number(float(high))


# --------------------------------------------------------------------------- tables for people


def _percent(value: float | None, digits: int = 1) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{100 * value:.{digits}f} %" if value < LARGEST else f"> {100 * LARGEST:.0f} %"


def _print(judged: Judged, scores: dict[str, Score], left_out: LeftOut, found: dict[str, Any]) -> None:
    console, table, plan = output.console(), judged.table, judged.plan
    cells = int(np.isfinite(table.throughput_JK).sum())
    console.print(
        f"{len(table.jobs)} jobs of {len(set(table.families))} families, {len(table.configurations)} configurations on "
        f"{', '.join(table.host_types)}, {cells} cells; {plan.probes} measured of each job ({plan.design} design), "
        f"{plan.hold_out} held out"
    )
    if len(set(table.families if plan.hold_out == "family" else table.jobs)) == 1:
        console.print(f"there is only one {plan.hold_out}: nothing is left to learn from, every method is on its own")
    for line in _left_out_lines(table, left_out):
        console.print(line)
    console.print()
    console.print(_methods_table(judged, scores, found))
    console.print()
    console.print(
        f"Median error by family, {plan.probes} cells measured, with 95 % intervals (paired bootstrap over jobs)"
    )
    console.print(_families_table(list(scores), found["families"]))
    if len(plan.all_counts) > 1:
        console.print()
        console.print("Median error against measured cells")
        console.print(_curve_table(list(scores), found["curve"], plan.all_counts))


def _methods_table(judged: Judged, scores: dict[str, Score], found: dict[str, Any]) -> Any:
    heads = ("method", "median error", "mean accuracy", "p90 error", "order in a job", "order of jobs", "regret")
    shown = render.table(*heads, "in 80 % interval", f"median minus {DEFAULT}'s")
    for column in shown.columns[1:]:
        column.justify = "right"
    rows = list(scores.items())
    if judged.cold is not None:
        rows.append((f"{DEFAULT}, no history", score(judged.cold)))
    for name, s in rows:
        figures = (s.median_error, s.mean_accuracy, s.p90_error, s.order_within_job, s.order_across_jobs, s.regret)
        known = found["families"]["all"]["methods"].get(name)
        apart = [x for x in known["minus_default"] if x is not None] if known and name != DEFAULT else []
        interval = " .. ".join(f"{100 * x:+.1f}" for x in apart) or "-"
        shown.add_row(name, *(_percent(f) for f in figures), _percent(s.coverage80, 0), interval)
    return shown


def _families_table(names: Sequence[str], families: dict[str, Any]) -> Any:
    shown = render.table("family", "jobs", "cells", *names)
    for column in shown.columns[1:]:
        column.justify = "right"
    for family, entry in families.items():
        figures = [entry["methods"][name] for name in names]
        cells = []
        for figure in figures:
            low, high = figure["interval"]
            around = "" if low is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
            cells.append(_percent(figure["median_error"]) + around)
        shown.add_row(family, str(entry["jobs"]), str(entry["cells"]), *cells)
    return shown


def _curve_table(names: Sequence[str], curve: dict[str, Any], counts: Sequence[int]) -> Any:
    shown = render.table("method", *(str(n) for n in counts))
    for column in shown.columns[1:]:
        column.justify = "right"
    for name in names:
        shown.add_row(name, *(_percent(curve[name][str(n)]) for n in counts))
    return shown


def _left_out_lines(table: ThroughputTable, left_out: LeftOut) -> list[str]:
    lines = []
    jobs = [f"{name} ({share:.0%})" for name, share in left_out.jobs]
    configurations = [f"{c} ({share:.0%})" for c, share in left_out.configurations]
    rows = [f"line {s.line}: {s.reason}" if s.line else s.reason for s in table.skipped]
    for what, entries in (("jobs", jobs), ("configurations", configurations), ("rows", rows)):
        if entries:
            more = f"; and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
            lines.append(f"left out: {len(entries)} {what}: {'; '.join(entries[:SHOWN])}{more}")
    return lines
