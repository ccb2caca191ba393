"""The helpers of this folder, tried on torch's own rendezvous: a check that cannot fail would hide what it guards."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.integration.etcd import Etcd
from tests.integration.harness import Agent, Cluster
from tests.integration.processes import free_port, marked, wait_until


def stock(lab: Cluster, *args: str, nproc: int = 1, max_restarts: int = 0) -> Agent:
    endpoint = f"127.0.0.1:{free_port()}"
    return lab.torchrun(
        host="a", nnodes="1", nproc=nproc, backend="c10d", endpoint=endpoint, args=args, max_restarts=max_restarts
    )


def test_a_worker_reports_start_steps_and_done(tmp_path: Path):
    with Cluster(tmp_path) as lab:
        agent = stock(lab, "--steps=2", "--step-s=0.01", nproc=2)
        assert agent.wait(60) == 0, agent.tail()
        assert sorted(e.rank for e in lab.events(kind="DONE")) == [0, 1]
        assert [e.step for e in lab.events(kind="STEP", rank=1, world=2)] == [0, 1]
        assert {e.host for e in lab.events()} == {"a"}


def test_a_worker_fails_at_the_step_it_was_told_and_only_once(tmp_path: Path):
    with Cluster(tmp_path) as lab:
        flags = ["--steps=3", "--step-s=0.01", "--fail-step=1", f"--fail-once={tmp_path / 'failed'}"]
        agent = stock(lab, *flags, max_restarts=1)
        assert agent.wait(60) == 0, agent.tail()
        assert len(lab.events(kind="FAIL")) == 1
        assert [e.restarts for e in lab.events(kind="START")] == [0, 1]


def test_a_crash_ends_a_host_with_its_workers(tmp_path: Path):
    with Cluster(tmp_path) as lab:
        agent = stock(lab, "--no-group", nproc=2)
        lab.wait_step(world=2, timeout_s=60)
        assert len(agent.workers()) == 2
        agent.crash_now()
        assert agent.popen.returncode == -signal.SIGKILL
        assert agent.family() == {}


def test_workers_that_outlive_their_torchrun_fail_the_test(tmp_path: Path):
    lab = Cluster(tmp_path)
    lab.etcd.start()
    agent = stock(lab, "--no-group")
    lab.wait_step(world=1, timeout_s=60)
    agent.kill()
    with pytest.raises(AssertionError, match=r"processes outlive .*lab_worker"):
        lab.__exit__(None, None, None)
    assert marked(lab.mark) == {}


def test_a_wait_that_fails_says_what_was_waited_for(tmp_path: Path):
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: the moon"):
        wait_until(lambda: False, 0.1, "the moon")
    assert time.monotonic() - start >= 0.1


def test_etcd_comes_back_on_its_port_after_kill_freeze_and_loss_of_data(tmp_path: Path):
    etcd = Etcd(tmp_path)
    with etcd:
        endpoint = etcd.endpoint
        etcd.freeze()
        assert not etcd.healthy()
        etcd.thaw()
        wait_until(etcd.healthy, 10, "etcd answers after SIGCONT")
        etcd.kill()
        assert not etcd.healthy()
        etcd.start()
        etcd.wipe()
        etcd.start()
        assert (etcd.healthy(), etcd.endpoint) == (True, endpoint)


def test_an_empty_store_reads_as_an_empty_snapshot(lab: Cluster):
    assert lab.snapshot().jobs == {}
    assert lab.view("j").spec is None
