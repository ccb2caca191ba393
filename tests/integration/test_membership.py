"""Joins, crashes, spares, signals: cases C01 to C18 and their like, with real torchruns and a real etcd.

Where no coordinator is started the agents form rounds by themselves; the rules for losing members are the same.
Deadlines are far above the measured times (docs/reliability.md): a slow machine is no failure.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from heet_elastic.store.keys import Keys
from tests.integration.harness import Agent, Cluster
from tests.integration.processes import send, wait_until

SLOW = 60.0


def live_keys(lab: Cluster) -> list[str]:
    """Keys under a lease: records of processes."""
    with lab.store() as store:
        return [e.key for e in store.read(Keys().root).entries.values() if e.lease]


def joined(lab: Cluster, *agents: Agent) -> float:
    """Wait until the job steps with as many workers as there are agents; when it did."""
    return lab.wait_step(world=len(agents), timeout_s=SLOW).t


@pytest.mark.slow
def test_c01_joins_and_crashes_in_turn_never_end_the_others(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:3")
    b = lab.torchrun(host="b", nnodes="1:3")
    joined(lab, a, b)
    masters = set()
    for n in range(5):
        start = time.monotonic()
        c = lab.torchrun(host=f"c{n}", nnodes="1:3")
        lab.wait_step(world=3, after=start, timeout_s=SLOW)
        masters |= {e.master for e in lab.events(kind="START") if e.world == 3}
        killed = c.crash_now()
        lab.wait_step(world=2, after=killed + 1, timeout_s=SLOW)
        assert a.alive
        assert b.alive
    assert len(masters) == 5, "every round has a store and port of its own"


def test_c02_one_failure_takes_exactly_one_restart_and_all_agree(lab: Cluster, tmp_path: Path):
    flags = ["--steps=12", "--step-s=0.1", "--fail-step=3", f"--fail-once={tmp_path / 'once'}"]
    agents = [lab.torchrun(host=h, nnodes="2:2", max_restarts=3, args=flags) for h in "ab"]
    assert [a.wait(SLOW * 2) for a in agents] == [0, 0], agents[0].tail()
    starts = lab.events(kind="START")
    assert sorted((e.host, e.restarts) for e in starts) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    "flags", [["--no-group"], ["--group-timeout-s=600", "--hang-step=5"]], ids=["asleep", "collective"]
)
def test_c03_a_lost_host_is_noticed_while_the_other_workers_only_wait(lab: Cluster, flags: list[str]):
    a = lab.torchrun(host="a", nnodes="1:2", args=flags if flags[0] == "--no-group" else flags[:1])
    b = lab.torchrun(host="b", nnodes="1:2", args=flags[:1], lab_args=" ".join(flags[1:]))
    joined(lab, a, b)
    killed = b.crash_now()
    lab.wait_step(world=1, after=killed, timeout_s=SLOW)


def test_c05_a_joiner_that_dies_while_the_round_forms_is_left_out(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:3", args=["--no-group"])
    joined(lab, a)
    c = lab.torchrun(host="c", nnodes="1:3", args=["--no-group"])
    wait_until(lambda: "Traceback" in c.output or lab.has_record("c"), SLOW, "c registers", poll_s=0.005)
    killed = c.crash_now()
    lab.wait_step(world=1, after=killed + 3, timeout_s=SLOW)


def test_c06_workers_end_with_a_killed_agent_and_a_new_one_works_at_once(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:2", args=["--no-group"])
    joined(lab, a)
    workers = a.workers()
    assert workers
    a.kill()
    wait_until(lambda: not a.family(), SLOW, lambda: f"workers end with their agent: {a.family()}")
    start = time.monotonic()
    lab.torchrun(host="a", nnodes="1:2", args=["--no-group"])
    lab.wait_step(world=1, after=start, timeout_s=SLOW)


def test_c07_spares_wait_without_disturbing_replace_a_loss_and_end_with_0(lab: Cluster):
    over = lab.folder / "over"
    flags = [f"--until={over}", "--step-s=0.2", "--no-group", f"--checkpoint={lab.folder / 'step'}"]
    a, b = (lab.torchrun(host=h, nnodes="2:2", args=flags) for h in "ab")
    joined(lab, a, b)
    spare = lab.torchrun(host="s", nnodes="2:2", args=flags)
    wait_until(lambda: lab.has_record("s"), SLOW, "the spare registers")
    restarts = len(lab.events(kind="START"))
    wait_until(lambda: lab.events(kind="STEP")[-1].step > 12, SLOW, "training goes on")
    assert len(lab.events(kind="START")) == restarts, "a spare restarts nobody"
    killed = b.crash_now()
    lab.wait_event(kind="STEP", host="s", after=killed, timeout_s=SLOW)
    late = lab.torchrun(host="t", nnodes="2:2", args=flags)
    wait_until(lambda: lab.has_record("t"), SLOW, "another spare registers")
    over.touch()
    assert [x.wait(SLOW) for x in (a, spare, late)] == [0, 0, 0], late.tail()


def test_c08_a_finished_member_does_not_keep_the_other_from_restarting(lab: Cluster, tmp_path: Path):
    a = lab.torchrun(host="a", nnodes="1:2", max_restarts=1, args=["--no-group"], lab_args="--steps=5")
    flags = f"--steps=40 --fail-step=30 --fail-rank=1 --fail-once={tmp_path / 'once'}"
    b = lab.torchrun(host="b", nnodes="1:2", max_restarts=1, args=["--no-group"], lab_args=flags)
    wait_until(lambda: lab.events(kind="DONE"), SLOW, "one member finishes")
    codes = [x.wait(SLOW * 2) for x in (a, b)]
    assert codes == [0, 0], b.tail()


def test_c09_signalled_members_leave_at_once_and_the_last_leaves_no_live_keys(lab: Cluster):
    agents = [lab.torchrun(host=h, nnodes="1:3") for h in "abc"]
    joined(lab, *agents)
    at = time.monotonic()
    agents[2].terminate()
    lab.wait_step(world=2, after=at, timeout_s=SLOW)
    at = time.monotonic()
    agents[1].interrupt()
    lab.wait_step(world=1, after=at, timeout_s=SLOW)
    agents[0].terminate()
    for agent in agents:
        agent.wait(SLOW)
    wait_until(lambda: not live_keys(lab), SLOW, lambda: f"no live keys are left: {live_keys(lab)}")


def test_c10_six_agents_make_one_round_or_two(lab: Cluster):
    agents = [lab.torchrun(host=h, nnodes="1:6", args=["--no-group"]) for h in "abcdef"]
    joined(lab, *agents)
    rounds = {e.master for e in lab.events(kind="START")}
    assert len(rounds) <= 2, rounds


@pytest.mark.slow
def test_c11_a_host_that_joins_and_dies_again_and_again_is_left_alone(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:2", args=["--no-group"])
    joined(lab, a)
    begin = time.monotonic()
    for _ in range(3):
        bad = lab.torchrun(host="bad", nnodes="1:2", args=["--no-group"])
        seen = time.monotonic()
        wait_until(
            lambda: lab.has_record("bad") and (lab.events(after=seen, host="bad") or time.monotonic() > seen + 12),  # noqa: B023
            SLOW,
            "bad joins or is left waiting",
        )
        bad.crash_now()
    lab.wait_step(world=1, after=time.monotonic() + 2.5, timeout_s=SLOW)
    restarts = [e for e in lab.events(kind="START", host="a") if e.t > begin]
    assert len(restarts) <= 3, f"{len(restarts)} group restarts"


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_c12_lost_and_replaced_hosts_cost_no_restart(lab: Cluster, max_restarts: int):
    a = lab.torchrun(host="a", nnodes="1:3", max_restarts=max_restarts)
    for n in range(4 if max_restarts else 2):
        start = time.monotonic()
        b = lab.torchrun(host=f"b{n}", nnodes="1:3", max_restarts=max_restarts)
        lab.wait_step(world=2, after=start, timeout_s=SLOW)
        killed = b.crash_now()
        lab.wait_step(world=1, after=killed + 1, timeout_s=SLOW)
    assert a.alive
    assert {e.restarts for e in lab.events(kind="START")} == {0}


def test_c13_a_failing_import_ends_the_job_with_the_real_error_shown(lab: Cluster):
    agents = [lab.torchrun(host=h, nnodes="2:2", max_restarts=5, args=["--fail-import"]) for h in "ab"]
    codes = [a.wait(SLOW * 2) for a in agents]
    assert all(codes)
    assert any("a_module_that_does_not_exist" in a.output for a in agents)


def test_c13_an_import_that_fails_before_torch_is_imported_ends_the_job_at_once(lab: Cluster):
    script = lab.folder / "train.py"
    script.write_text("import a_module_that_does_not_exist\nimport torch\n")
    agents = [lab.torchrun(host=h, nnodes="2:2", max_restarts=5, script=script) for h in "ab"]
    assert all(a.wait(SLOW * 2) for a in agents)
    for agent in agents:
        assert agent.output.count("No module named 'a_module_that_does_not_exist'") == 1, agent.tail()
    assert any("before it imported torch (no restart can help)" in a.output for a in agents)


def test_c17_the_rank_0_host_is_a_member_like_any_other(lab: Cluster):
    agents = {h: lab.torchrun(host=h, nnodes="1:3") for h in "abc"}
    joined(lab, *agents.values())
    zero = next(e.host for e in reversed(lab.events(kind="START")) if e.rank == 0 and e.world == 3)
    killed = agents[zero].crash_now()
    step = lab.wait_step(world=2, after=killed + 1, timeout_s=SLOW)
    assert step.host != zero


def test_c18_an_agent_that_dies_after_its_workers_finished_holds_nobody_up(lab: Cluster):
    flags = ["--no-group"]
    a = lab.torchrun(host="a", nnodes="1:2", args=flags, lab_args="--steps=3")
    b = lab.torchrun(host="b", nnodes="1:2", args=flags, lab_args="--steps=30")
    wait_until(lambda: lab.events(kind="DONE", host="a"), SLOW, "a's worker finishes")
    a.crash_now()
    assert b.wait(SLOW) == 0, b.tail()


def test_c33_a_stopped_agent_rejoins_as_a_fresh_member(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:2")
    b = lab.torchrun(host="b", nnodes="1:2")
    joined(lab, a, b)
    at = time.monotonic()
    b.freeze_all()
    lab.wait_step(world=1, after=at + 1, timeout_s=SLOW)
    at = time.monotonic()
    b.thaw()
    fresh = lab.wait_event(kind="START", world=2, after=at, timeout_s=SLOW)
    lab.wait_step(world=2, after=fresh.t, timeout_s=SLOW)
    ranks = [e.rank for e in lab.events(kind="START", after=at)]
    assert sorted(ranks[-2:]) == [0, 1]


def test_c40_survivors_of_a_crash_restart_though_one_worker_is_stopped(lab: Cluster):
    agents = {h: lab.torchrun(host=h, nnodes="1:3", conf={"ttl_s": 2, "lost_peer_grace_s": 1}) for h in "abc"}
    joined(lab, *agents.values())
    hung = agents["b"].workers()
    send(hung, signal.SIGSTOP)
    killed = agents["c"].crash_now()
    lab.wait_step(world=2, after=killed + 1, timeout_s=SLOW)
