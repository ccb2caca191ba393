"""The demo's pretend cluster: three hosts held to different speeds, etcd, a coordinator, and the two jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from examples.demo.limiter import cpu_s
from heet_elastic.model import Snapshot
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.snapshot import SnapshotDecoder
from tests.integration.harness import Agent, Cluster
from tests.integration.processes import Proc, free_port

EXAMPLES = Path(__file__).resolve().parents[1]
INVENTORY = EXAMPLES / "cluster.toml"


@dataclass(frozen=True)
class PretendHost:
    """A host of cluster.toml and the share of a core that each of its workers gets."""

    name: str
    card: str
    cards: int
    share: float


HOSTS = (
    PretendHost("turing", "T4", 1, 0.26),
    PretendHost("pascal", "P100", 1, 0.12),  # 1.6 times a T4 by its datasheet: this one is throttled
    PretendHost("volta", "V100", 4, 0.22),
)

COORDINATOR_FLAGS = (
    *("--cooldown-s=6", "--rescale-up-s=5", "--rescale-down-s=3", "--interval-s=30"),
    *("--ttl-s=3", "--account-interval-s=2", "--settle-s=2", "--settle-most-s=6", "--host=demo"),
)
"""Jobs of the demo run for a minute, not for a day: waits that are right for a day are shortened."""


@dataclass(frozen=True)
class DemoJob:
    """One of the example scripts with the size that suits pretend hosts."""

    name: str
    script: str
    arguments: tuple[str, ...]
    seconds: float  # of work for one whole core


CNN = DemoJob("cnn", "train_cnn.py", ("--batch=48", "--size=12"), 36.0)
TRANSFORMER = DemoJob("transformer", "train_transformer.py", ("--batch=48", "--size=64"), 9.0)


def measure_pace(job: DemoJob, folder: Path, steps: int = 30) -> float:
    """Steps per second of processor time, which a busy machine does not stretch: `job` alone and unlimited."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / job.script), *job.arguments, f"--steps={steps}", f"--every={steps // 2}"]
    environment = {**os.environ, **alone, "MASTER_PORT": str(free_port())}
    used_s, printed = [], []
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            used_s.append(cpu_s(process.pid))
            printed.append(line)
    if process.returncode or len(used_s) != 3:
        raise RuntimeError(f"{job.script} does not train here: {''.join(printed)}")
    start, half, _ = used_s
    return (steps // 2) / (half - start)


class Stage:
    """Starts what the story needs, looks at the store as `heet status` does, and ends everything on exit."""

    def __init__(self, folder: Path, paces: Mapping[str, float]) -> None:
        self.lab = lab = Cluster(folder, conf={"ttl_s": 3, "sample_interval_s": 1, "stop_grace_s": 15})
        self.paces = paces
        self.agents: list[Agent] = []
        self._open = ExitStack()
        lab.etcd.start()
        store = self._open.enter_context(lab.store())
        self._mirror = self._open.enter_context(closing(Mirror(store, Keys().root, Keys())))
        self._mirror.start()
        self._decoder = SnapshotDecoder(Keys())
        self.coordinator: Proc = lab.start_coordinator(*COORDINATOR_FLAGS)
        shares = [f"{h.name}={h.share}" for h in HOSTS]
        limiter = [sys.executable, str(EXAMPLES / "demo" / "limiter.py"), "--mark", lab.mark]
        self.limiter = lab.start("limiter", [*limiter, *shares])

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open.close()
        self.lab.shut_down()

    def snapshot(self) -> Snapshot:
        """What the store says now."""
        return self._decoder.decode(*self._mirror.drain()).snapshot

    def steps(self, job: DemoJob) -> int:
        """Steps that give `job` its seconds of work on this machine."""
        return round(job.seconds * self.paces[job.name])

    def offer(self, job: DemoJob, *hosts: str) -> None:
        """Start a torchrun of `job` on each host."""
        steps = self.steps(job)
        for host in hosts:
            cards = next(h.cards for h in HOSTS if h.name == host)
            agent = self.lab.torchrun(
                host=host,
                job=job.name,
                nnodes=f"1:{len(HOSTS)}",
                nproc=cards,
                script=EXAMPLES / job.script,
                args=[
                    *job.arguments,
                    f"--steps={steps}",
                    f"--checkpoints={self.lab.folder / 'checkpoints' / job.name}",
                ],
                conf={"total_steps": steps},
                env={"HEET_INVENTORY": str(INVENTORY)},
            )
            self.agents.append(agent)

    def broken(self) -> str | None:
        """What has ended that should not have; None while all is well."""
        for proc in (self.coordinator, self.limiter):
            if not proc.alive:
                return f"the {proc.name} ended with {proc.popen.returncode}:\n{proc.tail(15)}"
        failed = next((a for a in self.agents if a.popen.poll() not in (None, 0)), None)
        if failed is None:
            return None
        return f"{failed.name} (job {failed.job}) ended with {failed.popen.returncode}:\n{failed.tail(15)}"
