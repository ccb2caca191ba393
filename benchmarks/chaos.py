"""Random faults against real processes: does anything hang, get lost, run twice, or stay behind?

    python benchmarks/chaos.py --events 500 --seed 1 [--jobs 3] [--hosts 3] [--json]

Three pretend hosts, three jobs with checkpointing workers, two coordinators, one etcd. Faults: kill -9 of an agent, a
worker, a host, a coordinator, etcd; SIGSTOP and SIGCONT of agents; SIGTERM; joins; etcd's data deleted. At the end the
jobs are told to finish. Judged from the workers' own event log: every job has finished, no step was lost beyond its
last checkpoint, no device had two workers at once, no process and no live key was left. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from heet_elastic.store.keys import Keys
from tests.integration.harness import Agent, Cluster
from tests.integration.processes import Proc, send, wait_until

COORDINATOR = ("--cooldown-s=3", "--ttl-s=2", "--recovery-window-s=4", "--interval-s=30", "--exclusion-s=5")
FINISH_S = 240.0
RESTARTS = 100_000


@dataclass
class Chaos:
    """The cluster under fire and what was done to it."""

    lab: Cluster
    rng: random.Random
    jobs: list[str]
    hosts: list[str]
    events: Counter[str] = field(default_factory=Counter)
    agents: dict[tuple[str, str], Agent] = field(default_factory=dict)
    coordinators: list[Proc] = field(default_factory=list)
    frozen: dict[int, tuple[Agent, float]] = field(default_factory=dict)
    leaving: list[Agent] = field(default_factory=list)
    struck: list[tuple[float, str]] = field(default_factory=list)  # (when, job that was hit; empty = all)

    def begin(self) -> None:
        """Start everything and wait until every job steps."""
        self.coordinators = [self.lab.start_coordinator(*COORDINATOR) for _ in range(2)]
        for job in self.jobs:
            for host in self.hosts:
                self.join(job, host)
        for job in self.jobs:
            self.lab.wait_event(job, "STEP", timeout_s=180)

    def join(self, job: str, host: str) -> None:
        """A torchrun of `job` on `host`, unless one lives there."""
        known = self.agents.get((job, host))
        if known is not None and known.alive:
            return
        inventory = self.lab.folder / "inventory.toml"
        args = [f"--until={self.lab.folder / 'over'}", f"--checkpoint={self.lab.folder / job}", "--step-s=0.1"]
        self.agents[job, host] = self.lab.torchrun(
            host=host,
            job=job,
            nnodes=f"1:{len(self.hosts)}",
            args=[*args, "--group-timeout-s=30"],
            max_restarts=RESTARTS,
            conf={"ttl_s": 2, "lost_peer_grace_s": 1, "late_join_s": 60},
            env={"HEET_INVENTORY": str(inventory)},
        )

    def live(self) -> list[tuple[str, str]]:
        """Jobs and hosts with a living agent."""
        return sorted(k for k, a in self.agents.items() if a.alive)

    def fault(self) -> str:
        """Do one thing; its name. Each kind tells which job it hit ("" = all), or None where it could do nothing."""
        faults: dict[str, tuple[float, Callable[[], str | None]]] = {
            "join": (4, self._join),
            "kill worker": (3, self._kill_worker),
            "kill agent": (2, self._kill_agent),
            "crash host": (1, self._crash),
            "terminate agent": (2, self._terminate),
            "freeze agent": (2, self._freeze),
            "kill coordinator": (1.5, self._kill_coordinator),
            "kill etcd": (1, self._kill_etcd),
            "delete etcd's data": (0.5, self._wipe_etcd),
        }
        self._thaw(False)
        while True:
            name = self.rng.choices(list(faults), [w for w, _ in faults.values()])[0]
            hit = faults[name][1]()
            if hit is not None:
                self.events[name] += 1
                self.struck.append((time.monotonic(), hit))
                return name

    def _some(self) -> Agent | None:
        """An agent whose job keeps another one on another host: a job alone on a lost host waits for a person."""
        able = [(j, h) for j, h in self.live() if sum(k[0] == j for k in self.live()) > 1]
        return self.agents[self.rng.choice(able)] if able else None

    def _join(self) -> str | None:
        missing = [(j, h) for j in self.jobs for h in self.hosts if (j, h) not in self.live()]
        if not missing:
            return None
        job, host = self.rng.choice(missing)
        self.join(job, host)
        return job

    def _kill_worker(self) -> str | None:
        workers = [(pid, job) for job, host in self.live() for pid in self.agents[job, host].workers()]
        if not workers:
            return None
        pid, job = self.rng.choice(workers)
        send([pid], 9)
        return job

    def _kill_agent(self) -> str | None:
        return self._hit(Agent.kill)

    def _crash(self) -> str | None:
        return self._hit(Agent.crash_now)

    def _terminate(self) -> str | None:
        def leave(agent: Agent) -> None:
            agent.terminate()
            self.leaving.append(agent)

        return self._hit(leave)

    def _freeze(self) -> str | None:
        def freeze(agent: Agent) -> None:
            agent.freeze()
            self.frozen[agent.pid] = (agent, time.monotonic() + self.rng.uniform(0.5, 6))

        return self._hit(freeze) if len(self.frozen) < 2 else None

    def _hit(self, what: Callable[[Agent], object]) -> str | None:
        agent = self._some()
        if agent is None:
            return None
        what(agent)
        return agent.job

    def _thaw(self, all_: bool) -> None:
        for pid, (agent, until) in list(self.frozen.items()):
            if all_ or time.monotonic() > until or not agent.alive:
                if agent.alive:
                    agent.thaw()
                    self.struck.append((time.monotonic(), agent.job))
                del self.frozen[pid]

    def _kill_coordinator(self) -> str | None:
        victim = self.rng.randrange(len(self.coordinators))
        self.coordinators[victim].kill()
        self.coordinators[victim] = self.lab.start_coordinator(*COORDINATOR)
        return ""

    def _kill_etcd(self) -> str | None:
        self.lab.etcd.kill()
        self._pause(self.rng.uniform(0.2, 5))
        self.lab.etcd.start()
        return ""

    def _wipe_etcd(self) -> str | None:
        self.lab.etcd.kill()
        self.lab.etcd.wipe()
        self._pause(self.rng.uniform(0.2, 2))
        self.lab.etcd.start()
        return ""

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def finish(self) -> dict[str, list[int]]:
        """Tell the jobs to finish, with every agent back; exit codes of the agents that were alive, by job."""
        self._thaw(True)
        for agent in self.leaving:
            agent.wait(60)
        for job in self.jobs:
            for host in self.hosts:
                self.join(job, host)
        (self.lab.folder / "over").touch()
        deadline = time.monotonic() + FINISH_S
        codes: dict[str, list[int]] = {}
        for (job, _), agent in sorted(self.agents.items()):
            try:
                codes.setdefault(job, []).append(agent.wait(max(1.0, deadline - time.monotonic())))
            except AssertionError:
                codes.setdefault(job, []).append(-999)
        return codes


def gaps(lab: Cluster, job: str, struck: list[tuple[float, str]]) -> tuple[float, float]:
    """(longest time without any step of the job, longest time from a fault to a step with no other fault between).

    The first goes on for as long as faults come faster than workers can start. The second begins anew at every fault
    that hit the job or what all jobs share.
    """
    times = [e.t for e in lab.events(job, "STEP")]
    hits = [t for t, hit in struck if hit in ("", job)]
    longest = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
    last = [(b, max((t for t in hits if a < t < b), default=None)) for a, b in itertools.pairwise(times)]
    return longest, max((b - t for b, t in last if t is not None), default=0.0)


def steps_lost(lab: Cluster, job: str) -> tuple[int, int]:
    """(steps done again beyond one per restart, restarts): rank 0 keeps a checkpoint every step."""
    lost, restarts, last, pid = 0, 0, -1, None
    for event in lab.events(job, "STEP", rank=0):
        if pid is not None and event.pid != pid:
            restarts += 1
            lost += max(0, last - event.step)
        last, pid = event.step, event.pid
    return lost, restarts


def double_grants(lab: Cluster, jobs: list[str]) -> int:
    """Pairs of workers that lived at the same time on one device."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for job in jobs:
        born = {(e.host, e.pid): e for e in lab.events(job, "START")}
        last: dict[tuple[str, int], float] = {}
        for event in lab.events(job):
            last[event.host, event.pid] = event.t
        for key, start in born.items():
            spans.setdefault((start.host, start.device), []).append((start.t, last[key]))
    return sum(
        sum(1 for (_, ended), (begun, _) in itertools.pairwise(sorted(s)) if begun < ended) for s in spans.values()
    )


def live_keys(lab: Cluster) -> list[str]:
    """Keys of agents that are still under a lease."""
    with lab.store() as store:
        entries = store.read(Keys().root).entries.values()
        return [e.key for e in entries if e.lease and ("/agents/" in e.key or "/hosts/" in e.key)]


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole run; the report."""
    hosts = [f"h{i}" for i in range(args.hosts)]
    lines = [f'[hosts.{h}]\ngpus = [{{model = "T4", memory_mib = 15360, count = {args.devices}}}]\n' for h in hosts]
    (folder / "inventory.toml").write_text("".join(lines))
    lab = Cluster(folder)
    lab.etcd.start()
    chaos = Chaos(lab, random.Random(args.seed), [f"job{i}" for i in range(args.jobs)], hosts)
    orphans: dict[int, str] = {}
    try:
        chaos.begin()
        for n in range(args.events):
            name = chaos.fault()
            print(f"\r{n + 1}/{args.events} {name:20}", end="", file=sys.stderr, flush=True)
            chaos._pause(chaos.rng.uniform(0.3, args.pause_s))
        print("\nfinishing", file=sys.stderr)
        codes = chaos.finish()
        wait_until(lambda: not live_keys(lab), 30, lambda: f"no live keys are left: {live_keys(lab)}")
    finally:
        orphans = lab.shut_down()
        for pid, line in orphans.items():
            print(f"outlived its torchrun: {pid} {line}", file=sys.stderr)
        if args.keep:
            print(f"logs: {folder}", file=sys.stderr)
    lost = {job: steps_lost(lab, job) for job in chaos.jobs}
    silent = [gaps(lab, job, chaos.struck) for job in chaos.jobs]
    return {
        "events": args.events,
        "by_kind": dict(chaos.events),
        "seed": args.seed,
        "hung_jobs": sum(any(c == -999 for c in cs) for cs in codes.values()),
        "lost_jobs": sum(any(c not in (0, -999) for c in cs) for cs in codes.values()),
        "exit_codes": codes,
        "double_grants": double_grants(lab, chaos.jobs),
        "orphans": len(orphans),
        "worst_recovery_s": round(max(longest for longest, _ in silent), 2),
        "worst_recovery_after_the_last_fault_s": round(max(after for _, after in silent), 2),
        "steps_lost_beyond_checkpoint": sum(n for n, _ in lost.values()),
        "restarts": sum(n for _, n in lost.values()),
    }


def main() -> int:
    """Print the report; 1 when something must not have happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--devices", type=int, default=2, help="pretend GPUs per host")
    parser.add_argument("--pause-s", type=float, default=3.0, help="longest pause between faults")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    args = parser.parse_args()
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        report = run(args, args.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="heet-chaos-") as folder:
            report = run(args, Path(folder))
    if args.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:30} {value}")
    bad = ("hung_jobs", "lost_jobs", "double_grants", "orphans", "steps_lost_beyond_checkpoint")
    return int(any(report[name] for name in bad))


if __name__ == "__main__":
    sys.exit(main())
