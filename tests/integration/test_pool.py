"""Submitted jobs on hosts with a heet-agent: the whole way from `heet submit` to the exit code."""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.harness import Cluster
from tests.integration.pool import SLOW, Pool
from tests.integration.processes import wait_until


def test_five_jobs_on_three_agents_end_as_they_should_though_one_is_cancelled_and_an_agent_is_killed(
    lab: Cluster, tmp_path: Path
):
    pool = Pool(lab, {"a": 2, "b": 2, "c": 2})
    go = tmp_path / "go"
    until = [f"--until={go}", "--step-s=0.1"]
    pool.submit("elastic", "--min=1", "--max=4", args=until)
    pool.submit("pair", "--hosts=2", "--nproc=1", args=until)
    pool.submit("single", "--max=1", args=["--steps=30", "--step-s=0.1"])
    pool.submit("fails", "--max=1", args=["--fail-step=5", "--step-s=0.1"])
    pool.submit("endless", "--min=1", args=["--step-s=0.1"])
    wait_until(lambda: lab.events("elastic", "STEP") and lab.events("pair", "STEP"), SLOW, pool.tails)
    assert pool.heet("cancel", "endless").returncode == 0
    killed = time.monotonic()
    pool.agents["a"].kill()
    wait_until(lambda: lab.events("elastic", "STEP", after=killed + 3), SLOW, pool.tails)
    go.touch()
    codes = {job: pool.wait(job) for job in ("elastic", "pair", "single", "fails", "endless")}
    assert codes == {"elastic": 0, "pair": 0, "single": 0, "fails": 1, "endless": 7}, pool.tails()
