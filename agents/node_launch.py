"""Becomes a torchrun that its heet-agent can find again. Started as a script, by path, with the standard library alone.

    python -I -S node_launch.py FOLDER CWD PROGRAM ARGUMENT...

Takes the lock of the run's folder first and writes (pid, start time, boot id) into it, then turns into the program,
which keeps the lock open: while it is held, the torchrun of this job lives, and no second one can start, whichever
daemon tries. Output goes to FOLDER/pipes/torchrun. The program also keeps every pipe of the folder open for reading, so
that no worker dies of a broken pipe when the process that writes the logs is replaced.
Ends with 75 when another torchrun of this run lives, with 72 when CWD or PROGRAM cannot be used (said in the log).
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

TAKEN, UNUSABLE = 75, 72
PATIENCE_S = 1.0


def start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot; with the boot id, it tells apart processes that share a number."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


def boot_id() -> str:
    """This boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def take(path: Path) -> None:
    """Hold the run's lock until the program ends; somebody who merely looks at it delays us by moments."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                sys.exit(TAKEN)
            time.sleep(0.02)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {start_time(os.getpid())} {boot_id()}\n".encode(), 0)
    os.set_inheritable(lock, True)


def main(folder: Path, cwd: str, command: list[str]) -> None:
    """Lock, open the pipes, become the program."""
    take(folder / "lock")
    for pipe in (folder / "pipes").iterdir():
        kept = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        os.set_inheritable(kept, True)
    output = os.open(folder / "pipes" / "torchrun", os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    try:
        os.chdir(cwd)
        os.execv(command[0], command)  # noqa: S606 (no shell on purpose)
    except OSError as e:
        what = f"program {command[0]}" if Path(cwd).is_dir() else f"folder {cwd}"
        os.write(2, f"heet: this host cannot start the job: {what}: {e.strerror}\n".encode())
        os._exit(UNUSABLE)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
