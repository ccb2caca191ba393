"""The processes that `heet up` has started on this box: remembered by pid and start time, ended in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from heet_elastic.agents.node_launch import start_time
from heet_elastic.errors import HeetError

END_S = 150.0
"""Longest wait for workers that save: their grace, what torch takes after it, and what killing takes."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the pool on this box."""

    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether this very process runs (a zombie does not)."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
            return state != b"Z" and start_time(self.pid) == self.started
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Box:
    """What runs here, as remembered in `up.json`."""

    endpoint: str
    processes: tuple[Process, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Box | None:
        """The box of this folder; None where nothing was started, or none of it lives."""
        try:
            said = json.loads((folder / "up.json").read_text())
            box = cls(said["endpoint"], tuple(Process(**p) for p in said["processes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return box if any(p.alive for p in box.processes) else None

    def write(self, folder: Path) -> None:
        """Remember it."""
        fresh = folder / "up.json.new"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(folder / "up.json")


def start(box: Box, place: Path, name: str, words: Sequence[str]) -> Box:
    """Start heet-<name> in a session of its own, so that it outlives this command and its terminal."""
    state = ["--state-dir", str(place / "agent")] if name == "agent" else []
    with (place / f"{name}.log").open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", f"heet_elastic.cli.{name}", *state, *words],
            # A HEET_ETCD of the shell is that of the last pool, and would keep the coordinator from having its own.
            env={k: v for k, v in os.environ.items() if k not in ("HEET_ETCD", "HEET_LISTEN", "HEET_DATA_DIR")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _children.append(child)
    box = Box(box.endpoint, (*box.processes, Process(name, child.pid, start_time(child.pid))))
    box.write(place)
    return box


_children: list[subprocess.Popen[bytes]] = []


def check(box: Box, place: Path) -> None:
    """HeetError with the last words of a process that has ended."""
    for child in _children:
        child.poll()
    for process in box.processes:
        if not process.alive:
            log = place / f"{process.name}.log"
            text = log.read_text(errors="replace") if log.exists() else ""
            raise HeetError(f"heet-{process.name} ended while starting: {last_words(text)} (log: {log})")


def last_words(text: str) -> str:
    """The last line of a log that says something; a frame around it is left out."""
    lines = (line.strip(" \t│") for line in reversed(text.splitlines()))
    return next((line for line in lines if any(c.isalnum() for c in line)), "it said nothing")


def end(box: Box, tell: Callable[[str], None]) -> None:
    """End the agents first, whose workers may save, then the coordinator with its etcd."""
    for process in sorted(box.processes, key=lambda p: p.name != "agent"):
        if not process.alive:
            continue
        tell(f"heet-{process.name} ends")
        _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while process.alive and time.monotonic() < deadline:
            for child in _children:
                child.poll()
            time.sleep(0.05)
        if process.alive:
            _signal(process, signal.SIGKILL)


def _signal(process: Process, signum: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if process.alive:
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
