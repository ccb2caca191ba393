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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from heet_elastic.model import AgentRecord, AgentState, Allocation, Cause, Member, Snapshot
from heet_elastic.store.api import Committed, Compare, Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder
from tests.integration.harness import Agent, Cluster, Event
from tests.integration.processes import free_port

LIMIT_S = 120.0
ROUND_MS = "round_ms_p50"
Outcome = float | Literal["died"] | None


@dataclass(frozen=True)
class Contender:
    """A rendezvous backend as its users start it."""

    backend: str
    env: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, object] = field(default_factory=dict)

    def start(self, lab: Cluster, host: str, endpoint: str) -> Agent:
        """One torchrun of the job on a pretend host."""
        return lab.torchrun(
            host=host,
            nnodes="1:3",
            backend=self.backend,
            endpoint=endpoint,
            conf=self.conf,
            env=self.env,
            max_restarts=3,
        )


CONTENDERS = {
    # What a user would say of the worker's million steps: heet changes a job that has little left only if that pays.
    "heet": Contender("heet", conf={"total_steps": 1_000_000}),
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


def round_times_ms(job: Job, rounds: int = 15) -> list[float]:
    """Decision written -> all handlers returned, of three waiting agents: we plan in the coordinator's place.

    A handler that returns puts its agent's record, so the last of those records ends the round.
    """
    hosts = ("a", "b", "c")
    for host in hosts:
        job.agents[host] = job.lab.torchrun(host=host, nnodes="1:3", args=["--no-group"], conf={"self_formed": "false"})
    keys, times = Keys(), []
    with job.lab.store() as store, contextlib.closing(Mirror(store, keys.root, keys)) as mirror:
        mirror.start()
        decoder = SnapshotDecoder(keys)
        snapshot = await_agents(mirror, decoder, 0, AgentState.WAITING)
        spec = snapshot.jobs["j"].spec
        assert spec is not None
        by_host = {a.record.host: a.record.agent for a in snapshot.jobs["j"].agents.values()}
        members = tuple(Member(by_host[h], h, (snapshot.hosts[h].gpus[0].uuid,)) for h in hosts)
        revision = 0
        for number in range(1, 2 * rounds + 1):
            chosen = members if number % 2 else ()
            plan = Allocation(number, Cause.PLAN, chosen, "benchmark", incarnation=spec.record.incarnation)
            compare = Compare(keys.allocation("j"), "mod_revision", revision)
            outcome = store.txn([compare], [Put(keys.allocation("j"), encode(plan))])
            written = time.monotonic()
            assert isinstance(outcome, Committed), outcome
            revision = outcome.revision
            await_agents(mirror, decoder, number, AgentState.RUNNING if chosen else AgentState.WAITING)
            if chosen:
                times.append(1000 * (time.monotonic() - written))
    return times


def await_agents(mirror: Mirror, decoder: SnapshotDecoder, round_: int, state: AgentState) -> Snapshot:
    """Follow the store until all three agents run this round, or are clean of it and wait."""
    deadline = time.monotonic() + 60
    agents: list[AgentRecord] = []
    while time.monotonic() < deadline:
        view = mirror.view
        snapshot = decoder.decode(view).snapshot
        agents = [a.record for a in snapshot.jobs["j"].agents.values()] if "j" in snapshot.jobs else []
        ready = [
            a for a in agents if a.state is state and (a.round if state is AgentState.RUNNING else a.clean) == round_
        ]
        if len(ready) == 3:
            return snapshot
        mirror.wait(view.revision, 1.0)
    raise AssertionError(f"agents do not reach {state} of round {round_}: {agents}")


CASES: dict[str, Callable[[Job], Outcome]] = {
    "first_step_below_max_s": first_step_below_max,
    "join_s": join,
    "crash_s": crash,
    "sigterm_s": sigterm,
}


@contextlib.contextmanager
def fresh_job(contender: Contender, coordinator: bool = True) -> Iterator[Job]:
    """A cluster with nothing in it yet, taken down without complaint (the stock backends leave workers behind)."""
    with tempfile.TemporaryDirectory(prefix="heet-rendezvous-") as folder:
        lab = Cluster(Path(folder))
        try:
            endpoint = f"127.0.0.1:{free_port()}"
            if contender.backend == "heet":
                lab.etcd.start()
                endpoint = lab.endpoint
                if coordinator:
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


def measure_rounds() -> float:
    """Median milliseconds of a round of heet."""
    print("heet: round_ms_p50 ...", end=" ", file=sys.stderr, flush=True)
    with fresh_job(CONTENDERS["heet"], coordinator=False) as job:
        times = round_times_ms(job)
    print(f"{median(times):.1f} of {len(times)} rounds, worst {max(times):.1f}", file=sys.stderr, flush=True)
    return round(median(times), 1)


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
    parser.add_argument("--case", action="append", choices=[*CASES, ROUND_MS], help="this case alone (may be repeated)")
    args = parser.parse_args()
    names = args.only or list(CONTENDERS)
    figures = {name: measure(name, [c for c in CASES if not args.case or c in args.case]) for name in names}
    if "heet" in names and (not args.case or ROUND_MS in args.case):
        figures["heet"][ROUND_MS] = measure_rounds()
    print(json.dumps(figures, indent=2) if args.json else table(figures))


if __name__ == "__main__":
    main()
