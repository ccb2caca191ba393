"""How daemons are told to end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


def on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop` with the number of SIGTERM, SIGINT (Ctrl-C) or SIGHUP. Main thread only.

    A SIGHUP that is ignored when we start stays so: that is what `nohup` asks for.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        stop(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handle)
