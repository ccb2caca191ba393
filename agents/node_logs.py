"""Reading the logs that `node_writer` writes: by stream and position, bounded, whatever is rotated meanwhile."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1 << 20
"""Largest answer to one read."""

_FILE = re.compile(r"(?P<stream>torchrun|[0-9]{1,4})@(?P<begin>[0-9]{20})\.log")


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a stream. begin: position of its first byte, which is above what was asked for where that is gone.

    end: position after its last byte; size: of the whole stream so far.
    """

    data: bytes
    begin: int
    end: int
    size: int


def streams(logs: Path) -> tuple[str, ...]:
    """Names of the streams that have a log: "torchrun", then local ranks in order."""
    found = {stream for stream, _, _ in _files(logs)}
    return tuple(sorted(found, key=lambda s: (s != "torchrun", int(s) if s.isdigit() else 0)))


def read(logs: Path, stream: str, position: int, most: int = MOST_BYTES) -> Piece:
    """Bytes of a stream from `position` on; a negative one counts from the end. Empty where there is nothing new."""
    files = [(begin, path) for name, begin, path in _files(logs) if name == stream]
    if not files:
        return Piece(b"", 0, 0, 0)
    size = files[-1][0] + _size(files[-1][1])
    wanted = size + position if position < 0 else position
    at = begin = max(min(wanted, size), files[0][0])
    parts: list[bytes] = []
    left = min(most, MOST_BYTES)
    for start, path in files:
        if left <= 0 or at < start or at >= start + _size(path):
            continue
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(at - start)
            data = file.read(left)
            parts.append(data)
            at, left = at + len(data), left - len(data)
    return Piece(b"".join(parts), begin, at, size)


def last_words(logs: Path, stream: str, most: int = 600) -> str:
    """The end of a stream as text, whole lines where there is one."""
    text = read(logs, stream, -4 * most, 4 * most).data.decode(errors="replace").strip()
    if len(text) <= most:
        return text
    return text[-most:].partition("\n")[2] or text[-most:]


def _files(logs: Path) -> list[tuple[str, int, Path]]:
    found = []
    with contextlib.suppress(OSError):
        for path in logs.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is not None:
                found.append((match["stream"], int(match["begin"]), path))
    return sorted(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
