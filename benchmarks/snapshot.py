"""What one changed key costs in a store of 1,000 agents and 200 jobs: `python benchmarks/snapshot.py [--json]`.

Prints milliseconds of processor time for decoding everything (what a coordinator does at its start) and for one changed
key (what it does all the time), with the mirror's hint of what has changed and without; and their ratio.
"""

from __future__ import annotations

import argparse
import json
import time

from heet_elastic.model import (
    Account,
    AgentRecord,
    AgentState,
    Gpu,
    HostRecord,
    JobSpec,
    JobStatus,
    Phase,
    SampleRecord,
)
from heet_elastic.store.api import Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder

KEYS = Keys()
AGENTS, JOBS, HOSTS, ROUNDS = 1000, 200, 250, 300


def fill(store: MemoryStore) -> None:
    """Records of all agents, hosts and jobs."""
    for n in range(AGENTS):
        host, agent, job = f"host-{n % HOSTS}", f"agent-{n}", f"job-{n % JOBS}"
        gpus = tuple(Gpu(f"GPU-{host}-{i}", "V100", "Tesla V100", 16384, "7.0", "nvlink", i // 4) for i in range(8))
        records = {
            KEYS.host(host, agent): HostRecord(host, agent, "10.0.0.1", "boot", gpus),
            KEYS.agent(job, agent): AgentRecord(agent, host, "10.0.0.1", AgentState.RUNNING, 1),
            KEYS.samples(job, agent): SampleRecord(agent, 1),
        }
        store.txn([], [Put(key, encode(record)) for key, record in records.items()])
    for n in range(JOBS):
        job = f"job-{n}"
        records = {
            KEYS.spec(job): JobSpec(job, job, "i"),
            KEYS.account(job): Account(),
            KEYS.status(job): JobStatus(Phase.RUNNING, "as planned"),
        }
        store.txn([], [Put(key, encode(record)) for key, record in records.items()])


def median(times: list[float]) -> float:
    """In milliseconds."""
    return sorted(times)[len(times) // 2] * 1e3


def measure() -> dict[str, float]:
    """All figures."""
    store = MemoryStore(threads=False, store_id_key=KEYS.store_id)
    fill(store)
    mirror = Mirror(store, KEYS.root, KEYS)
    mirror.start()
    times: dict[str, list[float]] = {"everything_ms": [], "one_key_ms": [], "one_key_without_hint_ms": []}
    for _ in range(5):
        start = time.process_time()
        SnapshotDecoder(KEYS).decode(mirror.view)
        times["everything_ms"].append(time.process_time() - start)
    for name in ("one_key_ms", "one_key_without_hint_ms"):
        decoder = SnapshotDecoder(KEYS)
        decoder.decode(*mirror.drain())
        for n in range(ROUNDS):
            changed = AgentRecord("agent-7", "host-7", "10.0.0.1", AgentState.RUNNING, n)
            store.txn([], [Put(KEYS.agent("job-7", "agent-7"), encode(changed))])
            start = time.process_time()
            store.pump()
            view, keys = mirror.drain()
            decoder.decode(view, keys if name == "one_key_ms" else None)
            times[name].append(time.process_time() - start)
    figures = {name: median(values) for name, values in times.items()}
    figures["keys"] = len(mirror.view.entries)
    figures["everything_over_one_key"] = figures["everything_ms"] / figures["one_key_ms"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")


if __name__ == "__main__":
    main()
