"""Which GPUs must not be granted now, and why: watched while the host runs.

A child process keeps NVML open and reports every few seconds (`heet_elastic.agents.nvml_child watch`). A reason
excludes a GPU from new grants; workers that run on it are left alone. What counts, and for how long, is in `judge`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from heet_elastic.agents import locks, probe
from heet_elastic.agents.facts import GpuFacts, Snapshot, Usage
from heet_elastic.model import Gpu, HostRecord

CRITICAL_XIDS: Mapping[int, str] = {
    48: "double-bit memory error",
    62: "internal micro-controller halt",
    64: "row remapping failed to be recorded",
    74: "NVLink error",
    79: "fallen off the bus",
    95: "uncontained memory error",
    119: "GPU system processor timed out",
    120: "GPU system processor error",
}
"""Xids that say that the hardware or its firmware is in trouble until a reset (NVIDIA, "Xid Errors"). Others, such as
13 and 31, are what faulty programs cause."""

IN_USE = "in use by "
"""How the reason of a GPU with a foreign process begins: it passes, other findings of a probe stay."""

_SLOWED = 0x08 | 0x40 | 0x80  # hardware slowdown, hardware thermal slowdown, power brake
_LOOKS_FOREIGN = 2  # a process that has just ended is listed for a moment
_LOOKS_SLOWED = 3
_SLOWED_FOR_S = 300.0  # a GPU that is spared cools down: without a pause it would come and go


@dataclass(frozen=True, slots=True)
class History:
    """What was seen of one GPU before: looks in a row with a foreign process or slowed down, and slowed until when."""

    foreign: int = 0
    slowed: int = 0
    slowed_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What one GPU is doing, and why it must not be granted (None = it may)."""

    uuid: str
    usage: Usage = field(default_factory=Usage)
    reason: str | None = None


def judge(now: float, gpu: GpuFacts, foreign: str | None, before: History) -> tuple[str | None, History]:
    """The reason against granting this GPU, and what to remember. `foreign`: who computes on it, if nobody of heet.

    Lost, memory errors that need a reset, a critical Xid: at once. A foreign process: when two looks in a row find one.
    Slowed down by heat or power: when three do, and then for five minutes after the last one.
    """
    usage = gpu.usage
    slowed = before.slowed + 1 if (usage.throttle or 0) & _SLOWED else 0
    until = now + _SLOWED_FOR_S if slowed >= _LOOKS_SLOWED else before.slowed_until
    after = History(before.foreign + 1 if foreign else 0, slowed, until)
    if gpu.lost is not None:
        return f"NVML has lost it ({gpu.lost})", after
    reason = _damage(usage)
    if reason is None and foreign and after.foreign >= _LOOKS_FOREIGN:
        reason = IN_USE + foreign
    if reason is None and now < until:
        at = "" if usage.temperature_c is None else f", at {usage.temperature_c} C now"
        reason = f"the hardware slows it down because of heat or power{at}"
    return reason, after


def _damage(usage: Usage) -> str | None:
    for xid in usage.xids:
        if xid in CRITICAL_XIDS:
            return f"Xid {xid} ({CRITICAL_XIDS[xid]}): reset the GPU or reboot"
    if usage.ecc_uncorrected:
        return f"{usage.ecc_uncorrected} uncorrectable memory errors since the driver started: reset the GPU or reboot"
    pending, failed = usage.remap or (False, False)
    if failed:
        return "a memory row could not be remapped: the card needs service"
    if pending or usage.retirement_pending:
        return "faulty memory waits to be taken out of use: reset the GPU or reboot"
    return None


def foreign_process(gpu: GpuFacts, held: bool, locked: bool, own: Callable[[], Collection[int]]) -> str | None:
    """Who computes on this GPU without holding its lock; None = nobody, or it cannot be known.

    held: this agent holds the lock, then every process but `own()` is foreign, as far as it can be seen from here
    (NVML may count processes as the host does, and this may be a container). locked: another agent of heet holds it,
    whose workers may be there.
    """
    if locked or not gpu.usage.processes:
        return None
    mine = frozenset(own()) if held else frozenset()
    for pid, _ in gpu.usage.processes:
        name = _process_name(pid)
        if pid in mine or (held and name is None) or (name or "").startswith("nvidia-cuda-mps"):
            continue
        return f"pid {pid} ({name})" if name else f"a process that cannot be seen from here (pid {pid})"
    return None


def _process_name(pid: int) -> str | None:
    """ "python of alice", or None where the process cannot be seen."""
    folder = Path(f"/proc/{pid}")
    try:
        name = folder.joinpath("comm").read_text(errors="replace").strip()
        user = folder.stat().st_uid
    except OSError:
        return None
    with contextlib.suppress(KeyError):
        return f"{name} of {pwd.getpwuid(user).pw_name}"
    return f"{name} of user {user}"


class HostMonitor:
    """Keeps a host's record up to date with its GPUs' health, by one thread and one child. Made by `monitor_host`.

    No I/O when made. `watching`: whether the devices are GPUs that NVML knows; else the record stays as it is.
    `interval_s`: time between looks. `patience_s`: how long the driver may stay silent.
    """

    def __init__(
        self,
        record: HostRecord,
        lock_dir: Path,
        *,
        watching: bool = True,
        interval_s: float = 5.0,
        patience_s: float = 30.0,
    ) -> None:
        self._record = record
        self._lock_dir = lock_dir
        self._watching = watching
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._mutex = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._look: Snapshot | None = None
        self._looks = 0
        self._seen_at = 0.0
        self._judged = 0
        self._history: dict[str, History] = {}
        self._conditions: dict[str, Condition] = {}
        self._in_use_at_start = {g.uuid for g in record.gpus if (g.unusable or "").startswith(IN_USE)}

    def start(self) -> None:
        """Begin to watch."""
        if self._thread is None and self._watching:
            self._seen_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="heet-health", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End child and thread."""
        self._ending.set()
        with self._mutex:
            child = self._child
        if child is not None:
            with contextlib.suppress(OSError):
                child.kill()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    @property
    def looks(self) -> int:
        """How many reports have come in."""
        with self._mutex:
            return self._looks

    def current(self, held: Collection[str] = (), own: Callable[[], Collection[int]] = tuple) -> HostRecord:
        """The record as of now. Equal to the one before unless something changed.

        held: devices whose locks this agent holds. own: its workers' processes (asked only if there is need to).
        """
        if self._thread is None:
            return self._record
        with self._mutex:
            look, number, silent_s = self._look, self._looks, time.monotonic() - self._seen_at
        if look is None and silent_s <= self._patience_s:
            return self._record
        if silent_s > self._patience_s:
            return self._all(f"the NVIDIA driver has not answered for {self._patience_s:g} s")
        assert look is not None
        if look.failure is not None:
            return self._all(look.failure)
        if number != self._judged:
            self._judged = number
            self._judge(look, held, own)
        gpus = tuple(self._with_reason(g, self._reason(g)) for g in self._record.gpus)
        return replace(self._record, gpus=gpus)

    def conditions(self) -> tuple[Condition, ...]:
        """What every watched GPU was doing when `current` last looked."""
        return tuple(self._conditions.values())

    def _judge(self, look: Snapshot, held: Collection[str], own: Callable[[], Collection[int]]) -> None:
        offered = {g.uuid for g in self._record.gpus}
        for gpu in look.gpus:
            if gpu.uuid is None or gpu.uuid not in offered:
                continue
            mine = gpu.uuid in held
            locked = not mine and bool(gpu.usage.processes) and locks.is_taken(self._lock_dir, gpu.uuid)
            foreign = foreign_process(gpu, mine, locked, own)
            before = self._history.get(gpu.uuid) or History(foreign=int(gpu.uuid in self._in_use_at_start))
            reason, self._history[gpu.uuid] = judge(time.monotonic(), gpu, foreign, before)
            self._conditions[gpu.uuid] = Condition(gpu.uuid, gpu.usage, reason)
        seen = {g.uuid for g in look.gpus}
        for uuid in [u for u in offered if u.startswith("GPU-") and u not in seen]:
            self._conditions[uuid] = Condition(uuid, reason="NVML does not list it any more")

    def _reason(self, gpu: Gpu) -> str | None:
        condition = self._conditions.get(gpu.uuid)
        return None if condition is None else condition.reason

    def _with_reason(self, gpu: Gpu, reason: str | None) -> Gpu:
        found_before = gpu.unusable is not None and not gpu.unusable.startswith(IN_USE)  # that is seen anew
        return gpu if found_before or gpu.unusable == reason else replace(gpu, unusable=reason)

    def _all(self, reason: str) -> HostRecord:
        return replace(self._record, gpus=tuple(self._with_reason(g, reason) for g in self._record.gpus))

    def _run(self) -> None:
        pause = 1.0
        while not self._ending.is_set():
            before = self.looks
            with contextlib.suppress(OSError):  # no process to be had now: silence has its own consequence
                self._follow_child()
            pause = 1.0 if self.looks > before + 1 else min(60.0, pause * 2)
            self._ending.wait(pause)

    def _follow_child(self) -> None:
        """Take one child's reports until it ends, or has been silent for too long, or we are told to end."""
        child = subprocess.Popen(
            probe.child_command("watch", str(self._interval_s)),
            env=probe.child_environment({}),
            stdin=subprocess.PIPE,  # it ends when this closes, so it never outlives us
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with self._mutex:
            self._child = child
        try:
            assert child.stdout is not None
            stream, rest, heard_at = child.stdout.fileno(), b"", time.monotonic()
            # No blocking read: a child in an uninterruptible driver call never closes its end, not even when killed.
            while not self._ending.is_set() and time.monotonic() - heard_at < self._patience_s:
                if not select.select([stream], [], [], 0.2)[0]:
                    continue
                data = os.read(stream, 1 << 16)
                if not data:
                    return
                heard_at = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(line)
        finally:
            with self._mutex:
                self._child = None
            probe.end_child(child)

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            look = msgspec.json.decode(line, type=Snapshot)
            with self._mutex:
                self._look, self._seen_at = look, time.monotonic()
                self._looks += 1
