"""Make pretend hosts of different speed on one machine: hold each worker to a share of a core.

    python limiter.py --mark MARK fast=0.4 slow=0.1

A worker that has used more processor time than its share is stopped (SIGSTOP) until it is due again (SIGCONT), as a
slower processor would have made it wait; waiting for other workers costs it nothing. What is limited is found by its
environment: `HEET_LAB_MARK` starts with MARK, `HEET_HOST` names the host, `LOCAL_RANK` makes it a worker. A worker is
free until its process group exists (gloo's threads do): importing torch is no training.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.01
SCAN_S = 0.25
BURST_S = 0.04
"""Most processor time that a waiting worker saves up."""


def worker_hosts(mark: str) -> dict[int, str]:
    """Pid -> pretend host of every worker with that mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile
            lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            env = dict(line.split("=", 1) for line in lines if "=" in line)
            if env.get("HEET_LAB_MARK", "").startswith(mark) and "LOCAL_RANK" in env and "HEET_HOST" in env:
                found[int(folder.name)] = env["HEET_HOST"]
    return found


def trains(pid: int) -> bool:
    """Whether the process has joined a gloo process group."""
    with contextlib.suppress(OSError):
        return any("gloo" in (task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir())
    return False


def cpu_s(pid: int) -> float:
    """Processor time of a process with all its threads, to the nanosecond; OSError when it has ended."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) names


@dataclass
class Worker:
    """Account of one limited process: what it may still use before it is stopped."""

    pid: int
    share: float
    seen_cpu_s: float
    credit_s: float = 0.0
    stopped: bool = False

    def settle(self, passed_s: float) -> None:
        """Book `passed_s` of wall time and what was used in it, then stop or continue. OSError when it has ended."""
        cpu = cpu_s(self.pid)
        used, self.seen_cpu_s = cpu - self.seen_cpu_s, cpu
        self.credit_s = min(self.credit_s + self.share * passed_s, BURST_S) - used
        if self.stopped != (self.credit_s < 0):
            self.stopped = not self.stopped
            os.kill(self.pid, signal.SIGSTOP if self.stopped else signal.SIGCONT)


def limit(mark: str, shares: Mapping[str, float]) -> None:
    """Hold workers to their shares until our parent has ended or we are told to stop; then let all go on."""
    workers: dict[int, Worker] = {}
    parent, scanned, now = os.getppid(), 0.0, time.monotonic()
    try:
        while os.getppid() == parent:
            passed_s, now = time.monotonic() - now, time.monotonic()
            if now - scanned > SCAN_S:
                scanned = now
                for pid, host in worker_hosts(mark).items():
                    if pid not in workers and host in shares and trains(pid):
                        with contextlib.suppress(OSError):
                            workers[pid] = Worker(pid, shares[host], cpu_s(pid))
            for worker in list(workers.values()):
                try:
                    worker.settle(passed_s)
                except OSError:
                    del workers[worker.pid]
            time.sleep(TICK_S)
    finally:
        for worker in workers.values():
            with contextlib.suppress(OSError):
                os.kill(worker.pid, signal.SIGCONT)


def main() -> None:
    """Read the arguments and limit until the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mark", required=True)
    parser.add_argument("shares", nargs="+", metavar="HOST=SHARE")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    limit(args.mark, {host: float(share) for host, share in (s.split("=") for s in args.shares)})


if __name__ == "__main__":
    main()
