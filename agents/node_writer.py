"""Writes what one torchrun and its workers say to files of bounded size. Started as a script, by path, stdlib alone.

    python -I -S node_writer.py FOLDER BYTES

Reads the pipes in FOLDER/pipes and writes each to FOLDER/logs/<name>@<position>.log, where position counts the bytes of
that stream before the file: a reader goes on where it stopped, whatever was rotated meanwhile. Two files a stream are
kept, together at most BYTES. It reads on when the disk is full: output is lost then, which is said in the log as soon
as there is room, but no worker waits for us. Ends when the torchrun has ended and the pipes are empty.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from pathlib import Path

CHUNK = 1 << 16
FIRST_S = 60.0
"""How long the torchrun may take to start."""


class Stream:
    """One pipe and its newest file."""

    def __init__(self, folder: Path, name: str, limit: int) -> None:
        self.pipe = os.open(folder / "pipes" / name, os.O_RDWR | os.O_NONBLOCK)
        self._logs, self._name, self._limit = folder / "logs", name, limit
        self._file, self._begin, self._size, self._lost, self._why = -1, 0, 0, 0, ""
        files = self._files()
        if files:
            self._begin = files[-1]
            self._size = self._path(self._begin).stat().st_size

    def copy(self) -> bool:
        """Move what is in the pipe to the file; False when there was nothing."""
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return False
        try:
            if self._lost:
                self._write(f"\nheet: {self._lost} bytes of output were lost: {self._why}\n".encode())
                self._lost = 0
            while data:
                data = data[self._write(data) :]
        except OSError as e:
            self._lost, self._why = self._lost + len(data), e.strerror or "the disk refuses them"
            self._close()  # opened anew next time: it may have been removed to make room
        return True

    def _write(self, data: bytes) -> int:
        if self._size >= self._limit // 2:
            self._next()
        if self._file < 0:
            self._file = os.open(self._path(self._begin), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        written = os.write(self._file, data[: max(1, self._limit // 2 - self._size)])
        self._size += written
        return written

    def _next(self) -> None:
        self._close()
        self._begin, self._size = self._begin + self._size, 0
        for begin in self._files()[:-1]:
            self._path(begin).unlink()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _path(self, begin: int) -> Path:
        return self._logs / f"{self._name}@{begin:020d}.log"

    def _files(self) -> list[int]:
        start, end = f"{self._name}@", ".log"
        names = [f.name for f in self._logs.iterdir() if f.name.startswith(start) and f.name.endswith(end)]
        return sorted(int(n[len(start) : -len(end)]) for n in names)


def free(path: Path) -> bool:
    """Whether nobody holds the lock file."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def main(folder: Path, limit: int) -> None:
    """Copy until the torchrun is gone."""
    own = os.open(folder / "writer", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    streams = {s.pipe: s for s in (Stream(folder, p.name, limit) for p in (folder / "pipes").iterdir())}
    poll = select.poll()
    for pipe in streams:
        poll.register(pipe, select.POLLIN)
    lock, seen, begun, looked = folder / "lock", False, time.monotonic(), 0.0
    while True:
        ready = poll.poll(500)
        for pipe, _ in ready:
            streams[pipe].copy()
        now = time.monotonic()
        if now - looked < 0.5:
            continue
        looked = now
        gone = free(lock)
        # What lived and died between two looks has left its number in the lock file.
        seen = seen or not gone or (lock.exists() and lock.stat().st_size > 0)
        if gone and not ready and (seen or now - begun > FIRST_S):
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
