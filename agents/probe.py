"""Run the probing child: what it says, or why it says nothing. A driver that hangs or crashes costs a timeout.

A child in an uninterruptible driver call cannot be killed: it is left behind, never waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

import heet_elastic
from heet_elastic.agents.facts import Snapshot

CHILD = "heet_elastic.agents.nvml_child"
_stuck: list[subprocess.Popen[bytes]] = []


def child_command(*arguments: str) -> list[str]:
    """How the child is started. -P: the current folder must not provide its modules."""
    return [sys.executable, "-P", "-m", CHILD, *arguments]


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with `changes` (None = unset), and this very heet on the path of modules."""
    environment = dict(os.environ)
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    root = str(Path(heet_elastic.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, environment.get("PYTHONPATH", "")) if p)
    return environment


def take_snapshot(timeout_s: float) -> Snapshot:
    """A snapshot of this host's GPUs. A child that fails makes one whose `failure` says how."""
    output, failure = run_child(("snapshot",), timeout_s)
    if failure:
        return Snapshot(failure=failure)
    try:
        return msgspec.json.decode(output, type=Snapshot)
    except msgspec.MsgspecError as e:
        return Snapshot(failure=f"the probe gave no readable answer: {e}")


def cuda_order(changes: Mapping[str, str | None], timeout_s: float) -> tuple[str, ...] | None:
    """UUIDs that CUDA lists under these variables, in its own order; None when it cannot be asked."""
    output, failure = run_child(("cuda",), timeout_s, changes)
    try:
        return None if failure else msgspec.json.decode(output, type=tuple[str, ...] | None)
    except msgspec.MsgspecError:
        return None


def run_child(
    arguments: tuple[str, ...], timeout_s: float, changes: Mapping[str, str | None] | None = None
) -> tuple[bytes, str]:
    """Standard output of the child and "", or b"" and a sentence about what became of it."""
    child = subprocess.Popen(
        child_command(*arguments),
        env=child_environment(changes or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_child(child)
        return b"", f"the NVIDIA driver did not answer within {timeout_s:g} s (the probe hung and was given up)"
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return b"", f"the NVIDIA driver crashed the probe ({name})"
    if child.returncode:
        last = errors.decode(errors="replace").strip().splitlines()
        return b"", f"the probe failed: {last[-1] if last else f'exit code {child.returncode}'}"
    return output, ""


def end_child(child: subprocess.Popen[bytes]) -> None:
    """Kill a child; one that cannot be killed now is kept aside and collected whenever it ends."""
    child.kill()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        _stuck.append(child)
    _stuck[:] = [c for c in _stuck if c.poll() is None]
