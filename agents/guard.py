"""Device locks of one agent and the reaper that keeps them until the agent's workers are gone.

Invariant: a device that this agent holds is freed only when no process of its workers lives, whether the agent frees it
(`release` refuses otherwise) or dies (the reaper has copies of the locks and ends the workers first). A dead reaper is
replaced before anything else happens, and gets the whole state again.
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from heet_elastic.agents import locks, reaper
from heet_elastic.agents.locks import Busy, Held
from heet_elastic.errors import HeetError

__all__ = ["MARKER", "Busy", "DeviceGuard"]

MARKER = "HEET_GUARD"
"""Environment variable that ties a worker to its guard, see `DeviceGuard.marker`."""

_READY_S = 20.0
_SEND_S = 5.0
_POLL_S = 0.05
_log = logging.getLogger(__name__)
_guards: weakref.WeakSet[DeviceGuard] = weakref.WeakSet()


class DeviceGuard:
    """Locks, workers and reaper of one agent process. Safe to use from several threads; does no I/O when made.

    `owner` is written into the lock files for people: "job x, agent y, pid z".
    """

    def __init__(self, lock_dir: Path, owner: str) -> None:
        self._folder = lock_dir
        self._owner = owner
        self._mutex = threading.RLock()
        self._held: dict[str, Held] = {}
        self._workers = reaper.Watchlist()
        self._reaper: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._token = secrets.token_hex(8)

    def start(self) -> None:
        """Have a living reaper: start it, or replace a dead one. Cheap when it lives: call it as often as you like.

        Raises UsageError when the lock folder cannot be used, HeetError when no process can be started.
        """
        with self._mutex:
            if self._reaper is not None and self._reaper.poll() is None:
                return
            if self._reaper is None:
                locks.prepare(self._folder)
                _close_after_fork(self)
            else:
                _log.warning("the reaper (pid %d) ended with %s: replaced", self._reaper.pid, self._reaper.returncode)
            self._spawn()

    def close(self) -> None:
        """Give everything back and end the reaper, if no worker lives. Kills nothing.

        With living workers nothing is freed: the reaper ends them when this process ends.
        """
        with self._mutex:
            if self.alive():
                _log.warning("workers still live: their devices stay locked until this process has ended")
                return
            self.release()
            if self._socket is None or self._reaper is None:
                return
            self._send({"op": "end"})
            self._socket.close()
            self._socket = None
            try:
                self._reaper.wait(_SEND_S)
            except subprocess.TimeoutExpired:
                self._reaper.kill()
                self._reaper.wait()
            self._reaper = None

    @property
    def held(self) -> frozenset[str]:
        """Devices whose locks this agent holds."""
        with self._mutex:
            return frozenset(self._held)

    def acquire(self, devices: Sequence[str], timeout_s: float, give_up: Callable[[], bool]) -> tuple[Busy, ...]:
        """Lock all of `devices` or none of those not held yet. () = all are held.

        Tries until `timeout_s` has passed or `give_up()` is true (asked at least every 50 ms), then returns what was
        busy at the last try. Devices held already stay held in any case.
        """
        self.start()
        deadline = time.monotonic() + timeout_s
        while True:
            with self._mutex:
                busy = self._try_all(devices)
            left = deadline - time.monotonic()
            if not busy or left <= 0 or give_up():
                return busy
            # Uneven pauses: two agents that want overlapping sets do not keep step.
            time.sleep(min(left, random.uniform(0.5, 1.0) * _POLL_S))

    def release(self, keep: Collection[str] = ()) -> None:
        """Free the locks that are not in `keep`. RuntimeError when there are such and a worker still lives."""
        with self._mutex:
            going = [device for device in self._held if device not in keep]
            if not going:
                return
            living = self.alive()
            if living:
                raise RuntimeError(f"devices {going} are not free: workers {list(living)} still live")
            for device in going:
                locks.free(self._held.pop(device))
            self._tell({"op": "free", "devices": going})

    def locked_by_others(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Those of `devices` that somebody else holds now. Keeps nothing, creates nothing."""
        held = self.held
        return tuple(d for d in devices if d not in held and locks.is_taken(self._folder, d))

    @property
    def marker(self) -> tuple[str, str]:
        """Environment variable (name, value) to start workers with.

        The reaper also ends processes that carry it, so an agent that is killed between the start of its workers and
        `watch` leaves nothing behind. Optional: without it that moment stays open.
        """
        return MARKER, self._token

    def watch(self, pids: Iterable[int]) -> None:
        """These workers have started: leaders of their own sessions or groups, or children in the agent's own group.

        Call it at once after their start. What they fork belongs to them, unless it leaves their session (a child of a
        worker in the agent's group is followed wherever it goes, once it has been seen).
        """
        with self._mutex:
            self.start()
            new = [w for w in map(reaper.classify, pids) if w is not None]
            for watched in new:
                self._workers.add(watched)
            if new:
                self._tell({"op": "watch", "workers": new})

    def alive(self) -> tuple[int, ...]:
        """Process ids that are left of the watched workers, in order; () = all are gone (zombies are).

        Reads the process table (some 10 us a process of the host): poll it while stopping, not while training.
        """
        with self._mutex:
            before = {w.pid for w in self._workers}
            living = sorted(p.pid for p in self._workers.members())
            gone = before - {w.pid for w in self._workers}
            if gone:
                self._tell({"op": "forget", "pids": sorted(gone)})
            return tuple(living)

    def kill(self, signum: int) -> None:
        """Send a signal to every process of the watched workers, group by group; never to the agent's own group."""
        with self._mutex:
            self._workers.kill(signum, os.getpgrp())

    def _try_all(self, devices: Sequence[str]) -> tuple[Busy, ...]:
        new: list[Held] = []
        busy: list[Busy] = []
        # One order for everybody: of two agents that want the same devices one gets through.
        for device in sorted(set(devices) - self._held.keys()):
            result = locks.take(self._folder, device, self._owner)
            if isinstance(result, Busy):
                busy.append(result)
                if len(busy) == 1:
                    for held in new:
                        locks.free(held)
            elif busy:
                locks.free(result)  # tried only to name every busy device
            else:
                new.append(result)
        if busy:
            return tuple(busy)
        self._held.update((held.device, held) for held in new)
        if new:
            self._hand_over(new)
        return ()

    def _hand_over(self, new: Sequence[Held]) -> None:
        for at in range(0, len(new), reaper.MAX_DESCRIPTORS):
            part = new[at : at + reaper.MAX_DESCRIPTORS]
            self._tell({"op": "hold", "devices": [h.device for h in part]}, [h.descriptor for h in part])

    def _tell(self, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a change to the reaper. If it is gone, a new one gets the state, which holds the change already."""
        if self._socket is None:
            return
        if not self._send(message, descriptors):
            if self._reaper is not None:
                self._reaper.kill()  # it may be stopped or stuck; the locks are ours as well
                self._reaper.wait()
            self.start()

    def _send(self, message: dict[str, object], descriptors: Sequence[int] = ()) -> bool:
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
        except OSError:
            return False
        return True

    def _spawn(self) -> None:
        if self._socket is not None:
            self._socket.close()
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                # Its own session: no Ctrl-C, no hang-up, no signal to the agent's group reaches it. No streams: it must
                # not keep the pipe of a dead agent open.
                self._reaper = subprocess.Popen(
                    [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as e:
                own.close()
                raise HeetError(f"the reaper of this agent cannot be started: {e}") from e
        self._socket = own
        own.settimeout(_READY_S)
        try:
            ready = own.recv(reaper.MAX_MESSAGE_BYTES)
        except OSError:
            ready = b""
        own.settimeout(_SEND_S)
        if not ready:
            self._reaper.kill()
            raise HeetError(f"the reaper of this agent did not start: exit code {self._reaper.wait()}")
        self._send({"op": "agent", "group": os.getpgrp(), "marker": f"{MARKER}={self._token}"})
        self._hand_over(tuple(self._held.values()))
        if len(self._workers):
            self._send({"op": "watch", "workers": list(self._workers)})

    def _drop_after_fork(self) -> None:
        """In a forked child: let go of the copies, so that neither locks nor the agent's end outlive the agent."""
        for held in self._held.values():
            os.close(held.descriptor)
        if self._socket is not None:
            self._socket.close()
        if self._reaper is not None:
            self._reaper.returncode = 0  # not this process's child: nothing to wait for
        self._held, self._socket, self._reaper = {}, None, None
        self._workers = reaper.Watchlist()
        self._mutex = threading.RLock()  # another thread may have held it at the fork


def _close_after_fork(guard: DeviceGuard) -> None:
    """Close the guard's descriptors in children that are forked without exec (multiprocessing's "fork")."""
    if not _hook_installed:
        os.register_at_fork(after_in_child=_forked)
        _hook_installed.append(True)
    _guards.add(guard)


_hook_installed: list[bool] = []


def _forked() -> None:
    for guard in tuple(_guards):
        guard._drop_after_fork()
    _guards.clear()
