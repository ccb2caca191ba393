"""Look at worker processes without reaping them, so that torch still can; and read what they left about an error."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heet_elastic.agents.last_words import MARK

_SECONDARY = re.compile(
    r"NCCL|Gloo|gloo|ProcessGroup|DistBackendError|DistNetworkError|DistStoreError|Connection (closed|reset)"
    r"|Broken pipe|timed out|Timed out|recvValue failed|sendBytes failed",
)
"""Errors by which a worker notices that a peer is gone: the echo of somebody else's failure."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker process ended: its exit code as subprocess gives it (negative = killed by that signal)."""

    exit_code: int

    @property
    def by_sigterm(self) -> bool:
        """Whether SIGTERM killed it."""
        return self.exit_code == -signal.SIGTERM


def peek(pids: Mapping[int, int], known: Mapping[int, Ended]) -> dict[int, Ended]:
    """Which workers (local rank -> pid) have ended, and how. Reaps nothing; `known` covers those reaped meanwhile."""
    ended = dict(known)
    for local_rank, pid in pids.items():
        if local_rank in ended:
            continue
        try:
            info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            continue  # torch has reaped it: it is stopping them, and nobody asks any more
        if info is not None:
            exited = info.si_code == os.CLD_EXITED
            ended[local_rank] = Ended(info.si_status if exited else -info.si_status)
    return ended


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What is known of a worker's error. `place`: exception, file and line; empty when unknown."""

    message: str
    place: str = ""
    secondary: bool = False


EARLY_S = 60.0
"""A worker that ends within this time of its start without having imported torch failed in its first imports. One that
ends later may be a wrapper whose children did the work."""


def read_error(path: str | None, exit_code: int, lived_s: float = float("inf")) -> ErrorReport:
    """The error in a worker's error file (written by torch's @record and by heet's sampler), else its exit code.

    An uncaught exception before `import torch` leaves no file, only Python's exit code and no mark: a place too.
    """
    fallback = f"exit code {exit_code}"
    if exit_code < 0:
        try:
            fallback = f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            fallback = f"killed by signal {-exit_code}"
    try:
        data: Any = json.loads(Path(path).read_bytes()[:100_000]) if path else None
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict):
        early = exit_code == 1 and lived_s < EARLY_S
        if path and early and Path(path).parent.is_dir() and not Path(path + MARK).exists():
            return ErrorReport("it ended with 1 before it imported torch", "before import torch")
        return ErrorReport(fallback)
    message = data.get("message")
    inner = message if isinstance(message, dict) else {}
    text = str(inner.get("message", message))[:500]
    extra = inner.get("extraInfo")
    trace = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
    frames = _FRAME.findall(trace)
    kind = text.split(":", 1)[0]
    place = f"{kind} at {frames[-1][0]}:{frames[-1][1]}" if frames else ""
    return ErrorReport(text or fallback, place, bool(_SECONDARY.search(text)))
