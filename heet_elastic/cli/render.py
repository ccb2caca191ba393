"""Rendering of what `picture` fetched: rich tables on a terminal, plain columns elsewhere, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from heet_elastic.cli.picture import HostLine, JobLine, Picture, Speed, host_lines, job_lines

WIDE = 120
"""Columns from which a reason has room beside its job."""

NOTHING = "-"

COLOURS = {"running": "green", "succeeded": "green", "failed": "red", "cancelled": "red", "waiting": "yellow"}


def table(*columns: str) -> Table:
    """An empty table in heet's style."""
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)


class Fitting:
    """A table that fits its terminal: where it is narrow, the last column follows as lines of its own.

    first: the column that is never cut, since people copy names from it. spare: columns that a narrow one leaves out.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Text]], spare: Sequence[str] = ()) -> None:
        self._columns, self._rows, self._spare = columns, rows, spare

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints."""
        if options.max_width >= WIDE:
            yield self._table(range(len(self._columns)))
            return
        last = len(self._columns) - 1
        yield self._table([n for n, name in enumerate(self._columns) if n != last and name not in self._spare])
        for row in self._rows:
            if row[last].plain != NOTHING:
                yield Text.assemble(row[0], ": ", row[last], overflow="fold")

    def _table(self, shown: Iterable[int]) -> Table:
        found = table()
        for n in shown:
            found.add_column(self._columns[n], overflow="fold", no_wrap=n == 0)
        for row in self._rows:
            found.add_row(*(row[n] for n in shown))
        return found


def jobs_table(lines: Sequence[JobLine]) -> Fitting:
    """Jobs, one a row."""
    rows = []
    for line in lines:
        left = "" if line.restarts_left is None else f" of {line.restarts_used + line.restarts_left}"
        rows.append(
            (
                Text(line.job),
                Text(line.phase, style=COLOURS.get(line.phase, "")),
                Text(str(line.workers or NOTHING)),
                Text(line.where or NOTHING),
                Text(NOTHING if line.speed is None else f"{line.speed:.4g} {line.unit}/s"),
                Text(NOTHING if line.share is None else f"{line.share:.0%}"),
                Text(f"{line.restarts_used}{left}"),
                Text(line.reason),
            )
        )
    return Fitting(("job", "phase", "workers", "on", "speed", "done", "restarts", "why"), rows, spare=("restarts",))


def hosts_table(lines: Sequence[HostLine]) -> Fitting:
    """Hosts, one a row."""
    rows = [
        (
            Text(line.host),
            Text(", ".join(f"{n} x {kind}" for kind, n in sorted(line.types.items()))),
            Text(str(line.free)),
            Text(" ".join(f"{job}:{n}" for job, n in line.held.items()) or NOTHING),
            Text(line.address),
            Text("; ".join(f"{device}: {why}" for device, why in line.unusable.items()) or NOTHING),
        )
        for line in lines
    ]
    return Fitting(("host", "devices", "free", "held by", "address", "out of use"), rows, spare=("address",))


def speeds_table(found: Sequence[Speed], unit: str) -> Table:
    """Speeds of one job, one configuration a row."""
    shown = table("configuration", f"measured {unit}/s", f"predicted {unit}/s", "80 % interval", "from")
    for speed in found:
        shown.add_row(
            str(speed.configuration),
            "-" if speed.measured is None else f"{speed.measured:.4g}",
            "-" if speed.predicted is None or speed.measured is not None else f"{speed.predicted:.4g}",
            "-" if speed.low is None or speed.measured is not None else f"{speed.low:.3g} to {speed.high:.3g}",
            speed.source,
        )
    return shown


def leader_line(picture: Picture) -> str:
    """Who leads, as a sentence."""
    leader = picture.snapshot.leader
    if leader is not None:
        who = leader.record
        return f"{who.host} (pid {who.pid}) leads with policy {who.policy}"
    if picture.snapshot.epoch is not None:
        return "no coordinator leads now: jobs train on, nothing is planned (start heet-coordinator)"
    return "no coordinator has led here yet: jobs form rounds by themselves"


def whole(picture: Picture) -> Group:
    """Leader, hosts and jobs: what `heet status` shows."""
    hosts, jobs = host_lines(picture), job_lines(picture)
    parts: list[Any] = [Text(leader_line(picture)), Text("")]
    parts.append(hosts_table(hosts) if hosts else Text("no hosts: start torchrun or heet-agent somewhere"))
    parts += [Text(""), jobs_table(jobs) if jobs else Text("no jobs")]
    parts += [Text(f"unreadable: {problem}") for problem in picture.problems]
    return Group(*parts)


def as_json(picture: Picture) -> dict[str, Any]:
    """What `heet status --json` prints."""
    leader = picture.snapshot.leader
    return {
        "leader": asdict(leader.record) if leader else None,
        "hosts": [asdict(line) for line in host_lines(picture)],
        "jobs": [asdict(line) for line in job_lines(picture)],
        "problems": list(picture.problems),
    }
