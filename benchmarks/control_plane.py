"""How much of a cluster one coordinator and one etcd carry: rounds among many agents, and a store full of ended jobs.

    python benchmarks/control_plane.py [--agents 1000] [--jobs 200] [--changes 200] [--ended 10000] [--json]

Agents are real members of the protocol (store, lease, watches, verdicts) with real TCPStore clients, a few hundred to a
process, but no torch agent, no workers, no device locks. Every change makes one agent leave and another come, so the
coordinator plans rounds all the time. A round's latency runs from the moment at which its allocation is seen written to
the return of its last member.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import psutil

from heet_elastic.model import (
    Account,
    Allocation,
    Cause,
    Configuration,
    Gpu,
    HostRecord,
    JobSpec,
    JobStatus,
    Member,
    Phase,
    Result,
    SampleRecord,
)
from heet_elastic.store.api import Put
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import decode, encode

ROOT = Path(__file__).resolve().parents[1]
KEYS = Keys()
PATIENCE_S = 300.0
"""Longest wait for one answer: then the benchmark ends with a sentence."""
COORDINATOR = ("--cooldown-s=0", "--settle-s=0.2", "--settle-most-s=0.5", "--log-level=warning")


class NoGuard:
    """Device locks of an agent without devices to lock."""

    held: frozenset[str] = frozenset()

    def start(self) -> None:
        """Nothing."""

    def alive(self) -> tuple[int, ...]:
        """No worker."""
        return ()

    def locked_by_others(self, _devices: Sequence[str]) -> tuple[str, ...]:
        """None."""
        return ()


class NoSamples:
    """A collector without workers."""

    def poll(self) -> bool:
        """Nothing new."""
        return False

    def steps(self) -> int:
        """No steps."""
        return 0

    def record(self, agent: str) -> SampleRecord:
        """An empty record."""
        return SampleRecord(agent, 0)

    def close(self) -> None:
        """Nothing."""


class Healthy:
    """A host whose record never changes."""

    def __init__(self, record: HostRecord) -> None:
        self.record = record

    def current(self, *_: object) -> HostRecord:
        """The record."""
        return self.record


class SmallAgent:
    """A member of the protocol and a thread that forms its rounds."""

    def __init__(
        self, store: EtcdStore, job: str, host: str, hosts: int, report: Callable[[tuple[Any, ...]], None]
    ) -> None:
        from heet_elastic.rendezvous.member import Member as ProtocolMember
        from heet_elastic.rendezvous.settings import RendezvousSettings
        from heet_elastic.rendezvous.source import MirroredWorld
        from heet_elastic.rendezvous.values import Local, ProtocolSettings

        self.agent = f"{host}-{random.getrandbits(40):010x}"
        self.report, self.ended = report, threading.Event()
        settings = RendezvousSettings("", job, 1, hosts)
        spec = JobSpec(job, job, self.agent, min_hosts=1, max_hosts=hosts, total_work=1e6)
        local = Local(self.agent, host, "127.0.0.1", os.getpid(), spec, 1, 0, asking=True)
        record = HostRecord(host, self.agent, "127.0.0.1", "boot", (Gpu(f"GPU-{host}", "T4", "T4"),))
        self.source = MirroredWorld(store, KEYS, job)
        self.source.start()
        self.member = ProtocolMember(
            settings,
            ProtocolSettings(),
            store,
            KEYS,
            self.source,
            NoGuard(),
            NoSamples(),
            Healthy(record),
            local,  # type: ignore[arg-type]
            lambda _text: None,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Take part."""
        self.member.start()
        self.thread.start()

    def leave(self) -> None:
        """Say goodbye and end."""
        self.ended.set()
        self.member.update(leaving=True)
        self.thread.join(10)
        self.member.update(clean=1 << 30)
        self.member.close()
        self.source.close()

    def _run(self) -> None:
        from heet_elastic.rendezvous.round_store import form_round
        from heet_elastic.rendezvous.values import Order, WorkerState

        member = self.member
        while not self.ended.is_set():
            with member.changed:
                target = member.target
                formed_already = target.allocation is not None and target.allocation.round <= member.local.formed
                if target.order is Order.FORM and formed_already:
                    member.changed.wait(0.05)  # the thread has not stepped since
                    continue
                if target.order not in (Order.FORM, Order.RESCALE):
                    member.changed.wait(0.5)
                    continue
            newest = target.allocation
            if target.order is Order.RESCALE:
                member.update(workers=WorkerState.NONE, asking=True, clean=newest.round if newest else 0)
                with member.changed:
                    member.changed.wait(0.2)
                continue
            assert newest is not None
            allocation = newest

            def superseded() -> bool:
                now = member.target
                newer = now.allocation is not None and now.allocation.round > allocation.round  # noqa: B023
                return newer or self.ended.is_set()

            member.update(clean=allocation.round)
            formed = form_round(allocation, self.agent, "127.0.0.1", member, superseded)
            if formed is not None:
                self.report((member.local.asked.job, allocation.round, time.monotonic()))
                self.round = formed
                member.update(
                    formed=allocation.round, workers=WorkerState.RUNNING, workers_round=allocation.round, asking=False
                )


def agents_process(endpoint: str, places: list[tuple[str, str]], hosts: int, pipe: Any, answers: Any) -> None:
    """Runs the agents of `places` (job, host); obeys ("swap", job, host) by replacing that agent."""
    threading.stack_size(256 * 1024)
    store = EtcdStore(EtcdSettings(parse_endpoints(endpoint), store_id_key=KEYS.store_id))
    running: dict[tuple[str, str], SmallAgent] = {}

    def begin(job: str, host: str) -> None:
        running[job, host] = SmallAgent(store, job, host, hosts, answers.put)
        running[job, host].start()

    for job, host in places:
        begin(job, host)
    pipe.send("ready")
    while True:
        word, *place = pipe.recv()
        if word == "end":
            break
        running.pop(tuple(place)).leave()
        begin(*place)
        pipe.send("swapped")
    answers.close()
    answers.join_thread()
    os._exit(0)


def coordinator(endpoint: str) -> subprocess.Popen[bytes]:
    """A coordinator process."""
    command = [sys.executable, "-m", "heet_elastic.cli.coordinator", "--etcd", endpoint, *COORDINATOR]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def rounds(endpoint: str, agents: int, jobs: int, changes: int, seed: int, processes: int) -> dict[str, Any]:
    """Latency of rounds among that many agents, with everything's CPU and memory."""
    rng = random.Random(seed)
    per_job = agents // jobs
    places = [(f"job{j}", f"h{j}-{i}") for j in range(jobs) for i in range(per_job)]
    context = mp.get_context("spawn")
    answers = context.Queue()
    workers = []
    leader = coordinator(endpoint)
    written: dict[tuple[str, int], tuple[float, int]] = {}
    store = EtcdStore(EtcdSettings(parse_endpoints(endpoint), store_id_key=KEYS.store_id))
    mirror = _watch_allocations(store, written)
    try:
        for p in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=agents_process, args=(endpoint, places[p::processes], per_job, theirs, answers), daemon=True
            )
            process.start()
            workers.append((ours, process))
        for pipe, _ in workers:
            _answer(pipe)
        _say(f"{len(places)} agents are there")
        _until_quiet(written, 5.0)
        begin, usage = time.monotonic(), psutil.Process(leader.pid).cpu_times()
        puts = store.read(KEYS.root).revision
        for n in range(changes):
            k = rng.randrange(len(places))
            pipe = workers[k % processes][0]
            pipe.send(("swap", *places[k]))
            _answer(pipe)
            if n % 20 == 0:
                _say(f"{n} of {changes} changes")
        _until_quiet(written, 3.0)
        took = time.monotonic() - begin
        after = psutil.Process(leader.pid)
        cpu = after.cpu_times()
        memory = after.memory_info().rss / 2**20
        revisions = store.read(KEYS.root).revision - puts
    finally:
        for pipe, process in workers:
            pipe.send(("end",))
            process.join(10)
        leader.terminate()
        leader.wait(20)
        mirror.close()
        store.close()
    latencies = _latencies(written, answers, begin)
    return {
        "rounds": len(latencies),
        "round_ms": latencies,
        "puts_per_s": round(revisions / took, 1),
        "coordinator_cpu_share": round((cpu.user + cpu.system - usage.user - usage.system) / took, 3),
        "coordinator_mb": round(memory, 1),
    }


def _answer(pipe: Any) -> None:
    """Wait for a process of agents; SystemExit when it says nothing."""
    if not pipe.poll(PATIENCE_S):
        raise SystemExit(f"a process of agents did not answer within {PATIENCE_S:g} s: fewer agents (--agents)?")
    pipe.recv()


def _watch_allocations(store: EtcdStore, written: dict[tuple[str, int], tuple[float, int]]) -> Mirror:
    mirror = Mirror(store, KEYS.jobs, KEYS)

    def look() -> None:
        now = time.monotonic()
        view, changed = mirror.drain()
        for key in changed if changed is not None else view.entries:
            name = KEYS.parse(key)
            if name is not None and name.kind == "allocation" and key in view.entries:
                allocation = decode(key, view.entries[key].value, Allocation)
                written.setdefault((name.job, allocation.round), (now, len(allocation.members)))

    mirror.listen(look)
    mirror.start()
    return mirror


def _until_quiet(written: dict[tuple[str, int], tuple[float, int]], seconds: float) -> None:
    """Until no allocation was written for that long."""
    while True:
        latest = max((t for t, _ in written.values()), default=time.monotonic())
        if time.monotonic() - latest > seconds:
            return
        time.sleep(0.2)


def _latencies(written: dict[tuple[str, int], tuple[float, int]], answers: Any, begin: float) -> list[float]:
    """Milliseconds from an allocation's write to its last member's return, for rounds that were completed."""
    returned: dict[tuple[str, int], list[float]] = {}
    while not answers.empty():
        job, round_, at = answers.get()
        returned.setdefault((job, round_), []).append(at)
    return sorted(
        1000 * (max(returned[key]) - at)
        for key, (at, members) in written.items()
        if at >= begin and len(returned.get(key, ())) == members > 0
    )


def full_store(endpoint: str, ended: int) -> dict[str, float]:
    """Size of etcd and start of a coordinator with that many ended jobs."""
    store = EtcdStore(EtcdSettings(parse_endpoints(endpoint), timeout_s=10, store_id_key=KEYS.store_id))
    for n in range(ended):
        job = f"old{n:06d}"
        members = tuple(Member(f"a{n}-{i}", f"h{i}", (f"GPU-{i}",)) for i in range(4))
        allocation = Allocation(
            7, Cause.PLAN, members, "4 x T4 on 4 hosts: it scales", 0, "i", Configuration("T4", 4, 4)
        )
        records = {
            KEYS.spec(job): JobSpec(job, f"name{n % 50}", "i", max_hosts=4),
            KEYS.allocation(job): allocation,
            KEYS.account(job): Account("i", 3600.0, 0.0, 3500.0, 100.0, 4, 9.0, 2.0, (("T4", 14000.0),)),
            KEYS.status(job): JobStatus(Phase.SUCCEEDED, "all workers ended with 0"),
            KEYS.result(job): Result("succeeded", "all workers ended with 0", "i", 7),
        }
        store.txn([], [Put(key, encode(record)) for key, record in records.items()])
        if n % 1000 == 0:
            _say(f"{n} of {ended} ended jobs written")
    begin = time.monotonic()
    leader = coordinator(endpoint)
    try:
        while KEYS.epoch not in store.read(KEYS.epoch).entries:
            if leader.poll() is not None or time.monotonic() - begin > PATIENCE_S:
                raise SystemExit(f"no coordinator leads {PATIENCE_S:g} s after its start: see what it said above")
            time.sleep(0.02)
        took = time.monotonic() - begin
        usage = psutil.Process(leader.pid).cpu_times()
        kept = _await_retention(store)
    finally:
        leader.terminate()
        leader.wait(20)
    store.compact(store.read(KEYS.epoch).revision)
    size = store.status().database_bytes / 2**20
    store.close()
    cpu_s = round(usage.user + usage.system, 2)
    return {"start_s": round(took, 2), "start_cpu_s": cpu_s, "etcd_mb": round(size, 1), "kept_jobs": kept}


def _await_retention(store: EtcdStore) -> int:
    """Jobs that are left once the coordinator has stopped forgetting."""
    deadline, left = time.monotonic() + 120, -1
    while time.monotonic() < deadline:
        now = sum(key.endswith("/spec") for key in store.read(KEYS.jobs).entries)
        if now == left:
            return now
        left = now
        time.sleep(2.0)
    return left


def _say(text: str) -> None:
    print(f"control plane: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run both parts and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--ended", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heet-control-") as folder:
        with EmbeddedEtcd(EmbeddedSettings(f"{folder}/small")) as etcd:
            small = rounds(etcd.endpoint, 8, 1, min(args.changes, 40), args.seed, 1)
        with EmbeddedEtcd(EmbeddedSettings(f"{folder}/large")) as etcd:
            large = rounds(etcd.endpoint, args.agents, args.jobs, args.changes, args.seed, args.processes)
        with EmbeddedEtcd(EmbeddedSettings(f"{folder}/ended")) as etcd:
            full = full_store(etcd.endpoint, args.ended)
    report = {
        "round_ms_p50_8": _quantile(small["round_ms"], 50),
        "round_ms_p99_1000": _quantile(large["round_ms"], 99),
        "round_ms_p50_1000": _quantile(large["round_ms"], 50),
        "rounds_8": small["rounds"],
        "rounds_1000": large["rounds"],
        "puts_per_s": large["puts_per_s"],
        "coordinator_cpu_share": large["coordinator_cpu_share"],
        "coordinator_mb": large["coordinator_mb"],
        "start_s_10000_jobs": full["start_s"],
        "start_cpu_s_10000_jobs": full["start_cpu_s"],
        "etcd_mb_10000_jobs": full["etcd_mb"],
        "kept_jobs": full["kept_jobs"],
        "agents": args.agents,
        "jobs": args.jobs,
        "ended": args.ended,
    }
    if args.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:28} {value}")


def _quantile(values: Sequence[float], percent: int) -> float | None:
    if len(values) < 2:
        return None
    return round(quantiles(values, n=100, method="inclusive")[percent - 1], 1)


if __name__ == "__main__":
    main()
