"""What the demo shows: chapters and events as lines, and below them what `heet status --watch` shows."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from examples.demo.history import History
from heet_elastic.cli.picture import Picture
from heet_elastic.cli.render import whole
from heet_elastic.model import Phase, Snapshot

PICTURE_WIDTH = 120


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
        picture = whole(Picture(snapshot, history.table))
        if self._live is not None:
            self._live.update(picture, refresh=True)
        running = [
            j for j, v in snapshot.jobs.items() if v.status is not None and v.status.record.phase is Phase.RUNNING
        ]
        if self.picture is not None and len(running) > 1 and all(speed_of(job, history) for job in running):
            paint(picture, self.picture)


def speed_of(job: str, history: History) -> float | None:
    """Measured steps/s of the job where it is now."""
    where = history.configuration(job)
    return None if where is None else history.measured(job).get(where)


def paint(picture: RenderableType, path: Path) -> None:
    """Write `picture` as SVG, without the web fonts that rich would load."""
    console = Console(record=True, width=PICTURE_WIDTH, file=io.StringIO())
    console.print(picture)
    svg = console.export_svg(title="heet status --watch")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL))
