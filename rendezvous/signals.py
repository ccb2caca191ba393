"""Notice SIGTERM and SIGINT at once, whoever's handler is installed and wherever the main thread is.

torch replaces the handlers at each start and installs none before the first; inside a C++ wait no Python handler runs.
`signal.set_wakeup_fd` writes a byte per signal from the C handler, which a thread reads.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class SignalWatch:
    """Calls `on_signal(signum)` from a thread for every signal that has a Python handler. Main thread only."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self.received: list[int] = []
        self._on_signal = on_signal
        self._read = self._write = -1
        if threading.current_thread() is not threading.main_thread():
            return
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        for signum, handler in self._before.items():
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(signum, _end)
        self.install_wakeup()
        threading.Thread(target=self._run, name="heet-signals", daemon=True).start()

    def install_wakeup(self) -> None:
        """(Again) have signals written to our pipe; somebody else may have taken the one place for it."""
        if self._write >= 0 and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def close(self) -> None:
        """Stop noticing."""
        if self._write >= 0:
            if threading.current_thread() is threading.main_thread():
                signal.set_wakeup_fd(-1)
            write, self._write = self._write, -1
            os.close(write)

    def _run(self) -> None:
        while True:
            try:
                data = os.read(self._read, 64)
            except OSError:
                return
            if not data:
                return
            for signum in data:
                self.received.append(signum)
                self._on_signal(signum)


def _end(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)
