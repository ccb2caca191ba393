"""Jobs under a real coordinator: sharing, handing over, its outages. Cases C35, C41 and their like."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from tests.integration.harness import Agent, Cluster
from tests.integration.processes import wait_until

SLOW = 90.0
IDLE = ["--no-group"]
FAST = ("--cooldown-s=0", "--ttl-s=2", "--recovery-window-s=3", "--rescale-up-s=1", "--rescale-down-s=1")


@pytest.fixture
def pool(lab: Cluster, tmp_path: Path) -> dict[str, str]:
    """Three hosts with one device each, as an inventory."""
    file = tmp_path / "inventory.toml"
    hosts = "".join(f'[hosts.{h}]\ngpus = [{{model = "T4", memory_mib = 15360, count = 1}}]\n' for h in "abc")
    file.write_text(hosts)
    return {"HEET_INVENTORY": str(file)}


def start(lab: Cluster, job: str, hosts: str, env: dict[str, str], *flags: str, **more: object) -> list[Agent]:
    return [
        lab.torchrun(host=h, job=job, nnodes="1:3", args=[*IDLE, *flags], env=env, **more)  # type: ignore[arg-type]
        for h in hosts
    ]


def held(lab: Cluster, job: str) -> dict[int, tuple[str, float]]:
    """Host and first sign of life of every worker of a job, by pid."""
    return {e.pid: (e.host, e.t) for e in lab.events(job, "START")}


def last_sign(lab: Cluster, job: str, pid: int) -> float:
    return max(e.t for e in lab.events(job) if e.pid == pid)


def test_a_second_job_gets_its_share_and_no_device_has_two_workers_at_once(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FAST)
    start(lab, "one", "abc", pool)
    lab.wait_step("one", world=3, timeout_s=SLOW)
    start(lab, "two", "abc", pool)
    lab.wait_event("two", "STEP", timeout_s=SLOW)
    began = time.monotonic()
    lab.wait_event("one", "STEP", after=began, timeout_s=SLOW)
    spans = [
        (host, first, last_sign(lab, job, pid))
        for job in ("one", "two")
        for pid, (host, first) in held(lab, job).items()
    ]
    for host in "abc":
        mine = sorted((first, last) for h, first, last in spans if h == host)
        for (_, ended), (begun, _) in itertools.pairwise(mine):
            assert ended <= begun, f"two workers at once on {host}: {mine}"


def test_a_finished_jobs_devices_go_to_the_other(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FAST)
    first = start(lab, "one", "abc", pool, "--steps=40", "--step-s=0.1")
    start(lab, "two", "abc", pool)
    assert [a.wait(SLOW) for a in first] == [0, 0, 0], first[0].tail()
    lab.wait_step("two", world=3, timeout_s=SLOW)


def test_c35_training_goes_on_without_a_coordinator_and_a_new_one_adopts_it(lab: Cluster, pool: dict[str, str]):
    coordinator = lab.start_coordinator(*FAST)
    a, b = start(lab, "j", "ab", pool)
    lab.wait_step("j", world=2, timeout_s=SLOW)
    coordinator.kill()
    gone = time.monotonic()
    killed = b.crash_now()
    lab.wait_step("j", world=1, after=killed + 1, timeout_s=SLOW)
    wait_until(lambda: time.monotonic() > gone + 6, SLOW, "the leader's lease is over", poll_s=0.5)
    starts = len(lab.events("j", "START"))
    lab.start_coordinator(*FAST)
    at = time.monotonic()
    start(lab, "j", "c", pool)
    lab.wait_step("j", world=2, after=at, timeout_s=SLOW)
    assert len(lab.events("j", "START")) == starts + 2, "the new coordinator changed nothing but the join"
    assert a.alive


def test_self_formed_jobs_are_adopted_by_the_first_coordinator_ever(lab: Cluster, pool: dict[str, str]):
    a, b = start(lab, "j", "ab", pool)
    lab.wait_step("j", world=2, timeout_s=SLOW)
    starts = len(lab.events("j", "START"))
    lab.start_coordinator(*FAST)
    at = time.monotonic()
    start(lab, "k", "c", pool)
    lab.wait_step("k", world=1, after=at, timeout_s=SLOW)
    assert len(lab.events("j", "START")) == starts
    assert a.alive
    assert b.alive


def test_c41_a_planned_shrink_waits_for_a_slow_checkpoint(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FAST)
    start(lab, "one", "abc", pool, "--save-s=8")
    lab.wait_step("one", world=3, timeout_s=SLOW)
    start(lab, "two", "abc", pool)
    lab.wait_event("two", "STEP", timeout_s=SLOW)
    saving, saved = lab.events("one", "SAVING"), lab.events("one", "SAVED")
    assert saving
    assert {e.pid for e in saved} == {e.pid for e in saving}, "nobody was killed while it saved"
    assert min(e.t for e in lab.events("two", "START")) > min(e.t for e in saved)


def test_a_rigid_job_takes_all_it_asked_for_or_waits_with_a_reason(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FAST)
    waiting = lab.torchrun(host="a", job="r", nnodes="2", args=IDLE, env=pool)
    wait_until(lambda: "waiting:" in waiting.output, SLOW, "a reason is given")
    lab.torchrun(host="b", job="r", nnodes="2", args=IDLE, env=pool)
    lab.wait_step("r", world=2, timeout_s=SLOW)
