"""How `heet simulate` shows what it found, and how far it is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from heet_elastic.simulator import sweep
from heet_elastic.simulator.metrics import Comparison

HEADS = ("mean", "median", "p99", "makespan", "efficiency", "starved", "rescales", "decision")


@contextmanager
def silent_solvers() -> Iterator[None]:
    """Keep what native solvers print to file descriptor 1 (HiGHS does now and then) out of our own output.

    Processes that are started inside inherit it.
    """
    sys.stdout.flush()
    ours = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)
        os.close(nowhere)


@contextmanager
def watched(console: Console) -> Iterator[sweep.Progress]:
    """A progress callback with a bar where `console` is a terminal; ctrl-C asks to stop and keeps what is done."""
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True

    before = signal.signal(signal.SIGINT, stop)
    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.percentage:>5.1f} %"), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("simulating", total=1.0)
            shown = 0.0

            def progress(share: float) -> bool:
                nonlocal shown
                if share - shown > 0.001:
                    shown = share
                    bar.update(task, completed=share)
                return stopping

            yield progress
    finally:
        signal.signal(signal.SIGINT, before)


def show(console: Console, comparison: Comparison, title: str, names: Sequence[str]) -> None:
    """The table of figures, the distance to the lower bound, and what was assumed."""
    table = Table(title=f"{comparison.jobs} jobs, {comparison.seeds} seeds, {title}")
    table.add_column("policy")
    for head in (*HEADS, f"mean / {names[0]}"):
        table.add_column(head, justify="right")
    for name, f in comparison.figures.items():
        ratio = comparison.ratios[name]
        table.add_row(
            name,
            *(duration(f[k]) for k in ("mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s")),
            f"{f['efficiency']:.2f}",
            f"{f['starvation']:.1%}",
            f"{f['rescales_per_job']:.1f}",
            f"{1e3 * f['decision_s_mean']:.1f} ms",
            f"{ratio.mean:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        )
    console.print(table)
    if comparison.lower_bound_s is not None and names[0] in comparison.figures:
        first = comparison.figures[names[0]]["mean_jct_s"]
        console.print(
            f"no schedule has a mean below {duration(comparison.lower_bound_s)} "
            f"({names[0]} is at {first / comparison.lower_bound_s:.2f} times that)"
        )
    for note in comparison.notes:
        console.print(note, style="dim", highlight=False)


def duration(seconds: float) -> str:
    """A duration for people: "42 s", "3.5 min", "2.1 h", "4.0 d"; "-" for none."""
    if seconds != seconds:
        return "-"
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if unit == "s" else f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"
