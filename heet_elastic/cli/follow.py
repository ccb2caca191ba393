"""Following a job: its phase and reason until it runs, then the log of one rank, wherever a round puts it."""

from __future__ import annotations

import sys
import time

from heet_elastic.agents.node_logs import MOST_BYTES
from heet_elastic.cli.reading import Reader, Source, source_of_rank
from heet_elastic.cli.watching import JobWatch, exit_code, known_as_job, result_of
from heet_elastic.errors import HeetError
from heet_elastic.model import JobView, Result
from heet_elastic.store.api import Store
from heet_elastic.store.keys import Keys

POLL_S = 0.5
LAST_S = 3.0
"""After the end, output may still be on its way into the log for this long."""


def follow(store: Store, keys: Keys, job: str) -> int:
    """Show the job until it ends; its exit code. Ctrl-C leaves the job running."""
    with JobWatch(store, keys, job) as watch:
        try:
            result = follow_rank(watch, Reader(store, keys, job), 0, None)
        except KeyboardInterrupt:
            print(f"\nheet: job {job} goes on (heet logs -f {job}, heet cancel {job})", file=sys.stderr)
            raise
    return exit_code(result)


def follow_rank(watch: JobWatch, reader: Reader, rank: int, lines: int | None) -> Result:
    """Print what changes about the job (stderr) and what the rank says (stdout) until the job ends."""
    teller = _Teller(watch.job)
    printer = _Printer(reader, lines)
    while True:
        view = known_as_job(watch.view())
        result = result_of(view)
        source = _where(view, rank)
        if source is not None:
            printer.turn_to(source)
        moved = printer.copy()
        if result is not None:
            _drain(printer)
            teller.say(f"{result.outcome}: {result.reason}")
            return result
        teller.tell(view)
        if not moved:
            watch.wait(POLL_S)


def _where(view: JobView, rank: int) -> Source | None:
    allocation = None if view.allocation is None else view.allocation.record
    return None if allocation is None else source_of_rank(allocation, rank)


def _drain(printer: _Printer) -> None:
    """Print until nothing came for a moment."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < min(1.0, LAST_S):
        if printer.copy():
            quiet_since = time.monotonic()
        else:
            time.sleep(0.1)


class _Teller:
    """One line on stderr whenever phase or reason change."""

    def __init__(self, job: str) -> None:
        self._job, self._said = job, ""

    def tell(self, view: JobView) -> None:
        """The job's phase and reason, if they are others than before."""
        if view.status is not None:
            status = view.status.record
            self.say(f"{status.phase}: {status.reason}")

    def say(self, text: str) -> None:
        """`text`, unless it was said last."""
        if text != self._said:
            self._said = text
            print(f"heet: {self._job} {text}", file=sys.stderr, flush=True)


class _Printer:
    """Copies the stream of one rank to stdout, following it from host to host."""

    def __init__(self, reader: Reader, lines: int | None) -> None:
        self._reader, self._lines = reader, lines
        self._source: Source | None = None
        self._told = ""

    def turn_to(self, source: Source) -> None:
        """The rank is there now; what the old place still has is printed first."""
        if source == self._source:
            return
        if self._source is not None:
            while self.copy():
                pass
            print(f"heet: goes on on host {source.host}", file=sys.stderr, flush=True)
        elif self._lines is not None:
            self._reader.start_at(source, -MOST_BYTES)
        self._source = source

    def copy(self) -> bool:
        """Print what is new; False when nothing was."""
        if self._source is None:
            return False
        try:
            data = self._reader.more(self._source).data
        except HeetError as e:
            if "no such log" not in str(e) and str(e) != self._told:
                self._told = str(e)
                print(f"heet: {e}", file=sys.stderr, flush=True)
            return False
        if data and self._lines is not None:
            data = b"".join(data.splitlines(keepends=True)[-self._lines :])
            self._lines = None
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return bool(data)
