"""The commands for people, against a live job."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.integration.harness import Cluster
from tests.integration.processes import free_port, wait_until

SLOW = 90.0
FAST = ("--cooldown-s=0", "--ttl-s=2", "--recovery-window-s=3")


def heet(lab: Cluster, *words: str, etcd: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**lab.environment(), "HEET_ETCD": etcd or lab.endpoint}
    command = [sys.executable, "-m", "heet_elastic.cli.main", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_status_jobs_hosts_and_explain_tell_of_a_running_job(lab: Cluster):
    lab.start_coordinator(*FAST)
    lab.torchrun(host="a", nnodes="1:2", args=["--train", "--step-s=0.05"], conf={"ttl_s": 2, "sample_interval_s": 1})
    lab.wait_step(world=1, timeout_s=SLOW)

    def measured() -> list[dict[str, object]]:
        jobs: list[dict[str, object]] = json.loads(heet(lab, "jobs", "--json").stdout)
        return [j for j in jobs if j["speed"]]

    job = wait_until(measured, SLOW, "a speed was measured", poll_s=1.0)[0]
    assert (job["job"], job["phase"], job["workers"], job["where"]) == ("j", "running", 1, "a:1")
    assert job["reason"]
    hosts = json.loads(heet(lab, "hosts", "--json").stdout)
    assert [(h["host"], h["held"]) for h in hosts] == [("a", {"j": 1})]
    status = heet(lab, "status")
    assert status.returncode == 0, status.stderr
    assert "leads with policy" in status.stdout
    explained = heet(lab, "explain", "j")
    assert "Job j is running:" in explained.stdout
    assert "Restarts: 0 used by failures, 0 left" in explained.stdout
    assert "measured" in explained.stdout
    details = json.loads(heet(lab, "explain", "j", "--json").stdout)
    assert any(s["measured"] for s in details["speeds"])
    assert any(s["source"] != "measured" and s["low"] < s["predicted"] < s["high"] for s in details["speeds"])


def test_a_job_is_paused_resumed_reprioritised_and_cancelled(lab: Cluster):
    lab.start_coordinator(*FAST)
    agent = lab.torchrun(host="a", nnodes="1:2", args=["--no-group"])
    lab.wait_step(world=1, timeout_s=SLOW)
    assert heet(lab, "priority", "j", "3").returncode == 0
    assert "gives its GPUs back" in heet(lab, "pause", "j").stdout
    wait_until(lambda: not agent.workers(), SLOW, "the workers are stopped")
    paused = json.loads(heet(lab, "jobs", "--json").stdout)[0]
    assert paused["workers"] == 0
    assert heet(lab, "resume", "j").returncode == 0
    wait_until(agent.workers, SLOW, "the workers are back")
    assert heet(lab, "cancel", "j").returncode == 0
    assert agent.wait(SLOW) == 7, agent.tail()
    again = heet(lab, "pause", "j")
    assert again.returncode == 2
    assert "has ended (cancelled)" in again.stderr


def test_mistakes_are_sentences_with_exit_codes(lab: Cluster):
    unknown = heet(lab, "explain", "nobody")
    assert (unknown.returncode, unknown.stderr) == (2, "heet: job 'nobody' is not known here; known are: none\n")
    away = heet(lab, "status", etcd=f"127.0.0.1:{free_port()}")
    assert away.returncode == 3
    assert "Connection refused" in away.stderr
    assert heet(lab, "priority", "j", "-1").returncode == 2
    assert "no jobs" in heet(lab, "jobs").stdout
    assert heet(lab, "nonsense").returncode == 2
