"""Runs unmodified scripts as workers of a stand-in agent: this process opens the collector and is their parent.

Torch itself starts the sampler in them, through the entry point that the project announces.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heet_elastic.agents.collector import Collector
from heet_elastic.model import Configuration, SampleRecord
from tests.checkout import ROOT, announce_entry_points
from tests.integration.processes import crowding, free_port

ONE_TYPE = "cpu"


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    record: SampleRecord
    outputs: tuple[str, ...]
    codes: tuple[int, ...]
    skipped: int

    @property
    def output(self) -> str:
        """Of worker 0."""
        return self.outputs[0]

    def check(self) -> SampleRecord:
        """The record; AssertionError with the output when a worker failed or a sampler stopped."""
        assert self.codes == (0,) * len(self.codes), "\n".join(self.outputs)
        assert not any("stopped" in p for p in self.record.problems), self.record.problems
        return self.record


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a torchrun worker has besides the sampler's variables."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEET_")}
    paths = [str(ROOT), *announce_entry_points(folder / "entry")]
    return {**env, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", **(extra or {})}


def run(
    folder: Path,
    script: str,
    workers: int = 1,
    extra: Mapping[str, str] | None = None,
    rounds: int = 1,
    timeout_s: float = 240,
    python: tuple[str, ...] = (),
    sampled: bool = True,
) -> Outcome:
    """Run `script` (Python source) in `workers` processes, `rounds` times, each a round of its own."""
    path = folder / "train.py"
    path.write_text(script)
    collector = Collector()
    opened = collector.open()
    try:
        for round_ in range(1, rounds + 1):
            configuration = Configuration(ONE_TYPE, workers, 1)
            env = {
                **environment(folder, extra),
                **opened,
                **collector.round_environment(round_, configuration, workers),
            }
            if not sampled:
                env = environment(folder, extra)
            outputs, codes = _round(collector, folder, [sys.executable, *python, str(path)], env, workers, timeout_s)
            if any(codes):
                break
        return Outcome(collector.record("agent"), outputs, codes, collector.skipped)
    finally:
        collector.close()


def _round(
    collector: Collector, folder: Path, command: list[str], env: Mapping[str, str], workers: int, timeout_s: float
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    port = str(free_port())
    logs = [folder / f"worker{rank}.log" for rank in range(workers)]
    processes = []
    for rank, log in enumerate(logs):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers)}
        with log.open("wb") as out:
            processes.append(
                subprocess.Popen(
                    command,
                    env={**env, **ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
    begun = time.monotonic()
    try:
        while any(p.poll() is None for p in processes):
            collector.poll()
            assert time.monotonic() - begun < timeout_s * crowding(), "\n".join(
                log.read_text(errors="replace") for log in logs
            )
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    collector.poll()
    return tuple(log.read_text(errors="replace") for log in logs), tuple(p.returncode for p in processes)
