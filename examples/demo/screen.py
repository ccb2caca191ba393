"""What the demo shows: chapters and events as lines, and one table that is kept up to date below them."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.history import History
from heet_elastic.model import Snapshot

PICTURE_WIDTH = 110


class Screen:
    """A live table on a terminal; elsewhere lines alone. `picture`: where the table with most jobs goes as SVG."""

    def __init__(self, plain: bool, picture: Path | None) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.plain = plain or not self.console.is_terminal
        self.picture = picture
        self.begun = time.monotonic()
        self._live: Live | None = None
        self._most_jobs = 0

    def __enter__(self) -> Screen:
        if not self.plain:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, tb)
            self._live = None

    def line(self, text: str) -> None:
        """A line that stays."""
        self.console.print(Text(text))

    def say(self, text: str) -> None:
        """A line that stays, with the seconds since the start."""
        self.line(f"{time.monotonic() - self.begun:6.1f} s  {text}")

    def chapter(self, title: str) -> None:
        """The next chapter of the story."""
        self.console.print(Text(f"\n{time.monotonic() - self.begun:6.1f} s  {title}", style="bold"))

    def show(self, snapshot: Snapshot, history: History) -> None:
        """The cluster as it is now."""
        picture = view(snapshot, history)
        if self._live is not None:
            self._live.update(picture, refresh=True)
        running = sum(view.allocation is not None and view.result is None for view in snapshot.jobs.values())
        if self.picture is not None and running >= 2:
            paint(picture, self.picture)


def view(snapshot: Snapshot, history: History) -> Group:
    """Hosts and jobs as two tables."""
    hosts = Table("host", "devices", "held by", title="hosts", title_justify="left")
    for name, host in sorted(snapshot.hosts.items()):
        held = [
            f"{job}: {len(member.gpus)}"
            for job, v in sorted(snapshot.jobs.items())
            if v.allocation is not None and v.result is None
            for member in v.allocation.record.members
            if member.host == name
        ]
        kinds = sorted({g.host_type for g in host.gpus})
        hosts.add_row(name, f"{len(host.gpus)} x {', '.join(kinds)}", ", ".join(held) or "free")
    jobs = Table("job", "phase", "runs on", "steps/s", "last decision", title="jobs", title_justify="left")
    for job, v in sorted(snapshot.jobs.items()):
        where = history.configuration(job)
        speed = history.measured(job).get(where) if where is not None else None
        status = v.status.record if v.status is not None else None
        jobs.add_row(
            job,
            str(status.phase) if status else "-",
            str(where) if where else "-",
            f"{speed:.2f}" if speed else "-",
            status.reason if status else "-",
        )
    return Group(hosts, jobs)


def paint(picture: Group, path: Path) -> None:
    """Write `picture` as SVG."""
    console = Console(record=True, width=PICTURE_WIDTH, file=path.with_suffix(".txt").open("w"))
    console.print(picture)
    path.with_suffix(".txt").unlink()
    console.save_svg(str(path), title="heet")
