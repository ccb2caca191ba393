"""How long a change of membership takes: torch's c10d rendezvous and heet side by side, same worker, same machine.

    python benchmarks/rendezvous.py [--json] [--only heet] [--case join_s]

Every pretend host is a torchrun process of one worker that all-reduces every 0.2 s. Times run from the event (process
start, SIGKILL of a host, SIGTERM) to the first training step with the new world size; after a kill a step counts from
one second on, since one may have been on its way. `died`: the agents exited. null: not within 120 s. Every torchrun
gets --max-restarts=3: with fewer, torch's own backends end the job at the first lost peer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.integration.harness import Agent, Cluster, Event
from tests.integration.processes import free_port

LIMIT_S = 120.0
Outcome = float | Literal["died"] | None


@dataclass(frozen=True)
class Contender:
    """A rendezvous backend as its users start it."""

    backend: str
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self, lab: Cluster, host: str, endpoint: str) -> Agent:
        """One torchrun of the job on a pretend host."""
        return lab.torchrun(
            host=host, nnodes="1:3", backend=self.backend, endpoint=endpoint, env=self.env, max_restarts=3
        )


CONTENDERS = {
    "heet": Contender("heet"),
    "c10d": Contender("c10d"),
    "c10d_unshared": Contender("c10d", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


@dataclass
class Job:
    """A job of one contender in a cluster of its own."""

    lab: Cluster
    contender: Contender
    endpoint: str
    agents: dict[str, Agent] = field(default_factory=dict)

    def add(self, host: str) -> float:
        """Start a host; the time right before."""
        at = time.monotonic()
        self.agents[host] = self.contender.start(self.lab, host, self.endpoint)
        return at

    def settle(self, world: int) -> None:
        """Wait until the job trains at this size (the slowest stock start takes 35 s)."""
        self.lab.wait_step(world=world, timeout_s=LIMIT_S)

    def recovery(self, since: float, world: int, grace_s: float = 0.0) -> Outcome:
        """Seconds from `since` to the first step at this size; "died" when every agent that should live has ended."""
        while time.monotonic() - since < LIMIT_S:
            steps: list[Event] = self.lab.events(kind="STEP", after=since + grace_s, world=world)
            if steps:
                return round(steps[0].t - since, 2)
            if not any(a.alive for a in self.agents.values()):
                return "died"
            time.sleep(0.05)
        return None


def first_step_below_max(job: Job) -> Outcome:
    """One host of 1:3 is there: from its process start to its first step."""
    return job.recovery(job.add("a"), world=1)


def join(job: Job) -> Outcome:
    """A third host joins two that train: from its process start to the first step of three."""
    for host in ("a", "b"):
        job.add(host)
    job.settle(2)
    return job.recovery(job.add("c"), world=3)


def crash(job: Job) -> Outcome:
    """One of three hosts loses power (not the one that c10d's store is on)."""
    for host in ("a", "b", "c"):
        job.add(host)
    job.settle(3)
    since = job.agents.pop("c").crash_now()
    return job.recovery(since, world=2, grace_s=1.0)


def sigterm(job: Job) -> Outcome:
    """One of three hosts is told to leave."""
    for host in ("a", "b", "c"):
        job.add(host)
    job.settle(3)
    since = time.monotonic()
    job.agents.pop("c").terminate()
    return job.recovery(since, world=2, grace_s=1.0)


CASES: dict[str, Callable[[Job], Outcome]] = {
    "first_step_below_max_s": first_step_below_max,
    "join_s": join,
    "crash_s": crash,
    "sigterm_s": sigterm,
}


@contextlib.contextmanager
def fresh_job(contender: Contender):
    """A cluster with nothing in it yet, taken down without complaint (the stock backends leave workers behind)."""
    with tempfile.TemporaryDirectory(prefix="heet-rendezvous-") as folder:
        lab = Cluster(Path(folder))
        try:
            endpoint = f"127.0.0.1:{free_port()}"
            if contender.backend == "heet":
                lab.etcd.start()
                endpoint = lab.endpoint
                lab.start_coordinator()
            yield Job(lab, contender, endpoint)
        finally:
            for proc in lab.procs:
                proc.end(grace_s=2.0)
            lab.shut_down()


def measure(name: str, cases: list[str]) -> dict[str, Outcome]:
    """All cases of one contender, one after another."""
    figures = {}
    for case in cases:
        print(f"{name}: {case} ...", end=" ", file=sys.stderr, flush=True)
        with fresh_job(CONTENDERS[name]) as job:
            figures[case] = CASES[case](job)
        print(figures[case], file=sys.stderr, flush=True)
    return figures


def table(figures: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The figures for people."""
    rows = sorted({case for row in figures.values() for case in row})
    lines = [f"{'':24}" + "".join(f"{name:>16}" for name in figures)]
    for case in rows:
        cells = [row.get(case, "-") for row in figures.values()]
        lines.append(f"{case:24}" + "".join(f"{'> 120' if cell is None else cell:>16}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--only", action="append", choices=CONTENDERS, help="this backend alone (may be repeated)")
    parser.add_argument("--case", action="append", choices=CASES, help="this case alone (may be repeated)")
    args = parser.parse_args()
    figures = {name: measure(name, args.case or list(CASES)) for name in args.only or CONTENDERS}
    print(json.dumps(figures, indent=2) if args.json else table(figures))


if __name__ == "__main__":
    main()
