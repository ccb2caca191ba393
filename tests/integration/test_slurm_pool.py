"""`examples/slurm/pool.sbatch` in a real Slurm of two nodes on this machine: submit, end before the limit, go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.integration.harness import LAB_WORKER, Cluster
from tests.integration.processes import ended_by_itself, wait_until
from tests.integration.slurm import Slurm, why_not

LONG = 180.0
MODULES = {"heet": "main", "heet-agent": "agent", "heet-coordinator": "coordinator"}

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"no Slurm: {why_not()}"),
    pytest.mark.slow,
]


class PoolInSlurm:
    """The pool script as a user of the login node runs it."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder, self.pool = slurm, folder, folder / "pool"
        self.lab = Cluster(folder)  # never entered: it lends its environment and event logs alone
        commands = folder / "bin"
        commands.mkdir()
        for name, module in MODULES.items():
            file = commands / name
            file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m heet_elastic.cli.{module} "$@"\n')
            file.chmod(0o755)
        self.env = self.lab.environment(
            PATH=f"{commands}:{os.environ['PATH']}",
            HEET_POOL=str(self.pool),
            HEET_POOL_ADDRESS="127.0.0.1",
            HEET_SLOTS="1",
            HEET_LOCK_DIR=str(folder / "locks"),
            HEET_LAB_MARK=self.lab.mark,
            HEET_TTL_S="2",
            HEET_COOLDOWN_S="0",
            SLURM_CONF=str(slurm.conf),
        )

    def sbatch(self) -> str:
        """Submit the pool to Slurm; its job id, once jobs can be submitted to the pool."""
        small = ["--nodes=2", "--gpus-per-node=0", "--cpus-per-task=1", "--time=30"]
        words = ["--parsable", f"--output={self.folder}/pool-%j.out", f"--chdir={self.folder}", *small]
        done = self.slurm.run("sbatch", *words, str(ROOT / "examples/slurm/pool.sbatch"), env=self.env)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        wait_until(lambda: (self.pool / "env").exists(), LONG, lambda: self.said(job))
        return job

    def said(self, job: str) -> str:
        """What the pool's script printed."""
        file = self.folder / f"pool-{job}.out"
        return file.read_text() if file.exists() else f"nothing\n{self.slurm.run('squeue').stdout}"

    def heet(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command on the login node, which knows the pool by its `env` file alone."""
        command = ["bash", "-c", 'source "$HEET_POOL/env"; exec heet "$@"', "heet", *words]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=LONG)

    def end_as_before_the_limit(self, job: str) -> str:
        """What `--signal=B:TERM@...` does: SIGTERM to the batch script. What it said, once it has ended."""
        self.slurm.run("scancel", "--batch", "--signal=TERM", job)
        wait_until(lambda: not self.slurm.run("squeue", "-h", "-j", job).stdout.strip(), LONG, lambda: self.said(job))
        return self.said(job)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolInSlurm]:
    (tmp_path / "slurm").mkdir()
    with Slurm(tmp_path / "slurm") as slurm:
        found = PoolInSlurm(slurm, tmp_path)
        yield found
    assert ended_by_itself(found.lab.mark, 10.0) == {}, "nothing of the pool outlives its allocation"


def test_a_pool_in_an_allocation_takes_jobs_from_the_login_node_and_goes_on_in_the_next_one(pool: PoolInSlurm):
    lab, go = pool.lab, pool.folder / "go"
    first = pool.sbatch()
    flags = ["--id=j", "--hosts=2", "--nproc=1", f"--env=LAB_LOG={lab.event_log('j')}"]
    args = ["--no-group", "--step-s=0.1", f"--until={go}", "--save-s=1"]
    submitted = pool.heet("submit", *flags, "--", str(LAB_WORKER), *args)
    assert submitted.returncode == 0, submitted.stderr
    both = {"left", "right"}
    wait_until(lambda: both == {e.host for e in lab.events("j", "STEP", world=2)}, LONG, lambda: pool.said(first))
    assert "sbatch it again to go on with: j" in pool.end_as_before_the_limit(first)
    assert len(lab.events("j", "SAVED")) == 2, "both workers could save before they were ended"
    begun = len(lab.events("j", "START"))
    second = pool.sbatch()
    wait_until(lambda: len(lab.events("j", "START")) >= begun + 2, LONG, lambda: pool.said(second))
    go.touch()
    assert pool.heet("wait", "j").returncode == 0
    assert "every job is done" in pool.end_as_before_the_limit(second)
