"""The reaper: a child that outlives its agent for as long as the agent's workers live, and ends them.

It holds copies of the agent's device locks and knows the agent's workers. When its socket reports the end of the agent
(however it died: the kernel closes the other end), it kills the workers with SIGKILL, again and again until none is
left, and ends; only then do the locks go free. A device is never free while one of its old workers lives.

Run as a script (`python -I -S reaper.py FD`) so that it starts in some 20 ms: stdlib only, nothing of heet imported.
The agent's side (`heet_elastic.agents.guard`) imports the process table from here.

Messages are JSON in SEQPACKET datagrams; each describes a change, the agent keeps the whole state and sends it again to
a new reaper. Lock descriptors come with `hold` as SCM_RIGHTS.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_MESSAGE_BYTES = 65536
MAX_DESCRIPTORS = 32  # of one message; the kernel allows 253
_LOOK_EVERY_S = 1.0  # leaders are looked at while the agent lives, so that a reused process id is not taken for theirs


class Process(NamedTuple):
    """A line of the process table. `start` (clock ticks since boot) tells a process from a later one of the same id."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    alive: bool  # False for a zombie: its memory, files and GPU contexts are gone already


class Watched(NamedTuple):
    """A worker as it was when it started, and how its processes are told: by its session, its group, or its children.

    `tree` is for workers that share the agent's own process group (multiprocessing), which must never be signalled.
    """

    pid: int
    kind: str  # "session", "group" or "tree"
    start: int  # 0 = it had ended already when it was looked at


def read_process(pid: int) -> Process | None:
    """The process with this id, or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  hot loop of a stdlib-only script
            line = file.read()
    except OSError:
        return None
    # The command name is in parentheses and may hold anything, also ") R 1 1".
    fields = line[line.rindex(b")") + 2 :].split()
    # The main thread of a process may have ended while others run: it looks like a zombie then, with threads.
    alive = fields[0] not in (b"Z", b"X", b"x") or int(fields[17]) > 1
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), alive)


def process_table() -> dict[int, Process]:
    """Every process that this user can see, by id."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {p.pid: p for p in found if p is not None}


def classify(pid: int) -> Watched | None:
    """How the worker `pid` has to be watched; None when nothing of it is left."""
    process = read_process(pid)
    if process is None:
        # Ended and collected already. What it left behind keeps its session and group id reserved.
        left = [p for p in process_table().values() if p.alive]
        kind = "session" if any(p.session == pid for p in left) else "group"
        return Watched(pid, kind, 0) if any(pid in (p.session, p.group) for p in left) else None
    if process.session == pid:
        return Watched(pid, "session", process.start)
    if process.group == pid:
        return Watched(pid, "group", process.start)
    return Watched(pid, "tree", process.start)


class Watchlist:
    """The workers of an agent and every process that belongs to them."""

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        self._offspring: dict[int, dict[int, int]] = {}  # of "tree": every (pid, start) ever seen below the worker

    def __len__(self) -> int:
        return len(self._watched)

    def __iter__(self) -> Iterator[Watched]:
        return iter(tuple(self._watched.values()))

    def add(self, watched: Watched) -> None:
        """Watch a worker (again)."""
        self._watched[watched.pid] = watched
        self._offspring[watched.pid] = {}

    def forget(self, pid: int) -> None:
        """Watch it no longer."""
        self._watched.pop(pid, None)
        self._offspring.pop(pid, None)

    def members(self) -> list[Process]:
        """Living processes of all workers now. Workers of which nothing is left are forgotten."""
        if not self._watched:
            return []
        found = self._scan()
        if not all(found.values()):
            # A table that is read line by line misses a process whose parent ended between two lines: look twice.
            again = self._scan()
            for pid in found:
                found[pid] = found[pid] or again[pid]
                if not found[pid]:
                    self.forget(pid)
        return list({p.pid: p for group in found.values() for p in group}.values())

    def _scan(self) -> dict[int, list[Process]]:
        table = process_table()
        return {w.pid: self._of(w, table) for w in self._watched.values()}

    def _of(self, watched: Watched, table: dict[int, Process]) -> list[Process]:
        if watched.kind == "tree":
            return self._tree(watched, table)
        leader = table.get(watched.pid)
        if leader is not None and leader.start != watched.start:
            return []  # the kernel reuses an id only when no session or group of that number is left
        at = Process._fields.index(watched.kind)
        return [p for p in table.values() if p[at] == watched.pid and p.alive]

    def _tree(self, watched: Watched, table: dict[int, Process]) -> list[Process]:
        seen = self._offspring[watched.pid]
        seen.setdefault(watched.pid, watched.start)
        children: dict[int, list[Process]] = {}
        for p in table.values():
            children.setdefault(p.parent, []).append(p)
        queue = [pid for pid, start in seen.items() if pid in table and table[pid].start == start]
        for pid in queue:  # grows while it is walked
            for child in children.get(pid, ()):
                if child.pid not in seen or seen[child.pid] != child.start:
                    seen[child.pid] = child.start
                    queue.append(child.pid)
        living = {pid: table[pid] for pid in queue if table[pid].alive}
        self._offspring[watched.pid] = {pid: p.start for pid, p in living.items()} | {watched.pid: watched.start}
        return list(living.values())

    def kill(self, signum: int, spare: int) -> None:
        """Send a signal to every process of every worker. Group `spare` (the agent's own) gets none as a group."""
        groups = set()
        trees = {w.pid for w in self._watched.values() if w.kind == "tree"}
        table = process_table()
        for watched in tuple(self._watched.values()):
            for p in self._of(watched, table):
                if watched.pid in trees or p.group == spare:
                    send_signal(p, signum)
                elif p.group > 1:
                    groups.add(p.group)
        for group in groups:  # as a group: catches what was forked since the table was read
            try:
                os.killpg(group, signum)
            except OSError:
                pass

    def leaders_changed(self) -> bool:
        """Whether a worker's first process has ended, or anything must be followed by its children. Cheap."""
        for w in self._watched.values():
            process = read_process(w.pid)
            if w.kind == "tree" or process is None or not process.alive or process.start != w.start:
                return True
        return False


def send_signal(process: Process, signum: int) -> None:
    """Signal exactly this process: the descriptor pins it while its start time is compared."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):  # before Linux 5.3, or a Python that was built there; or it has ended
        descriptor = -1
    try:
        now = read_process(process.pid)
        if now is None or now.start != process.start or process.pid <= 1:
            return
        if descriptor < 0:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(descriptor, signum)
    except OSError:
        pass
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def marked(marker: str) -> list[Process]:
    """Living processes that were started with `marker` ("NAME=value") in their environment."""
    wanted = marker.encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                if wanted not in file.read().split(b"\0"):
                    continue
        except OSError:
            continue
        process = read_process(int(name))
        if process is not None and process.alive:
            found.append(process)
    return found


class _Reaper:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._locks: dict[str, int] = {}
        self._workers = Watchlist()
        self._marker = ""
        self._spare = 0

    def run(self) -> None:
        """Follow the agent until it ends, then end its workers."""
        self._connection.send(b'{"op":"ready"}')
        while self._next():
            pass
        self._end_workers()

    def _next(self) -> bool:
        """Handle one message or look at the workers; False when the agent has ended or said goodbye."""
        timeout = _LOOK_EVERY_S if len(self._workers) else None
        ready, _, _ = select.select([self._connection], [], [], timeout)
        if not ready:
            if self._workers.leaders_changed():
                self._workers.members()
            return True
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        except ConnectionError:
            return False
        if not data:
            return False
        return self._handle(json.loads(data), descriptors)

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> bool:
        op = message["op"]
        if op == "hold":
            for device, descriptor in zip(message["devices"], descriptors, strict=True):
                self._locks[device] = descriptor
        elif op == "free":
            for device in message["devices"]:
                if device in self._locks:
                    os.close(self._locks.pop(device))
        elif op == "watch":
            for pid, kind, start in message["workers"]:
                self._workers.add(Watched(pid, kind, start))
        elif op == "forget":
            for pid in message["pids"]:
                self._workers.forget(pid)
        elif op == "agent":
            self._spare, self._marker = message["group"], message["marker"]
        elif op == "end":
            self._workers = Watchlist()
            self._marker = ""
            return False
        return True

    def _end_workers(self) -> None:
        pause = 0.01
        while True:
            left = bool(self._workers.members())
            self._workers.kill(signal.SIGKILL, self._spare)
            if self._marker:  # started just before the agent died, not told to us yet; or left its session
                late = marked(self._marker)
                left = left or bool(late)
                for process in late:
                    send_signal(process, signal.SIGKILL)
            if not left:
                return
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)  # a process in an uninterruptible call can take its time


def main() -> None:
    """Entry point of the script: FD is this end of the socket."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    _Reaper(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
