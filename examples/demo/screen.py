"""What the demo shows: chapters and events as lines, and one table that is kept up to date below them."""

from __future__ import annotations

import io
import re
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
        live = [job for job, v in snapshot.jobs.items() if v.result is None]
        if self.picture is not None and len(live) > 1 and all(speed_of(job, history) for job in live):
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
        where, speed = history.configuration(job), speed_of(job, history)
        status = v.status.record if v.status is not None else None
        jobs.add_row(
            job,
            str(status.phase) if status else "-",
            str(where) if where else "-",
            f"{speed:.2f}" if speed else "-",
            status.reason if status else "-",
        )
    return Group(hosts, jobs)


def speed_of(job: str, history: History) -> float | None:
    """Measured steps/s of the job where it is now."""
    where = history.configuration(job)
    return None if where is None else history.measured(job).get(where)


def paint(picture: Group, path: Path) -> None:
    """Write `picture` as SVG, without the web fonts that rich would load."""
    console = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO())
    console.print(picture)
    svg = console.export_svg(title="heet")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
