"""Submitted jobs on hosts with a heet-agent: the whole way from `heet submit` to the exit code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from heet_elastic.store.keys import Keys
from tests.integration.harness import LAB_WORKER, Cluster
from tests.integration.pool import FAST, SLOW, Pool
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


def test_a_restarted_daemon_finds_its_torchruns_and_disturbs_none(lab: Cluster):
    pool = Pool(lab, {"a": 2})
    pool.submit("j", args=["--step-s=0.1"])
    wait_until(lambda: lab.events("j", "STEP"), SLOW, pool.tails)
    before = {e.pid for e in lab.events("j", "START")}
    pool.agents["a"].kill()
    pool.start("a")
    wait_until(lambda: "runs on" in pool.agents["a"].output, SLOW, pool.tails)
    pool.await_hosts("a")
    again = time.monotonic()
    wait_until(lambda: lab.events("j", "STEP", after=again + 1), SLOW, pool.tails)
    assert {e.pid for e in lab.events("j", "START")} == before, "no worker was started anew"
    pool.agents["a"].terminate()
    assert pool.agents["a"].wait(SLOW) == 0
    assert pool.agents["a"].family() == {}, "SIGTERM of the new daemon ends what the old one had started"


def test_hang_up_ends_the_daemon_alone(lab: Cluster):
    pool = Pool(lab, {"a": 1})
    pool.submit("j", args=["--step-s=0.1"])
    wait_until(lambda: lab.events("j", "STEP"), SLOW, pool.tails)
    agent = pool.agents["a"]
    agent.popen.send_signal(signal.SIGHUP)
    assert agent.wait(SLOW) == 0
    gone = time.monotonic()
    wait_until(lambda: lab.events("j", "STEP", after=gone + 1), SLOW, pool.tails)
    pool.start("a")
    assert pool.heet("cancel", "j").returncode == 0
    assert pool.wait("j") == 7


def test_a_torchrun_that_dies_is_started_again_and_the_job_goes_on(lab: Cluster):
    pool = Pool(lab, {"a": 1})
    pool.submit("j", args=["--step-s=0.1"])
    wait_until(lambda: lab.events("j", "STEP"), SLOW, pool.tails)
    (torchrun,) = [pid for pid, line in pool.agents["a"].family().items() if "torch.distributed.run" in line]
    killed = time.monotonic()
    os.kill(torchrun, signal.SIGKILL)
    wait_until(lambda: lab.events("j", "STEP", after=killed + 1), SLOW, pool.tails)
    assert "1 in a row" in pool.agents["a"].output


def test_a_lost_host_costs_the_job_nothing_but_time(lab: Cluster):
    pool = Pool(lab, {"a": 1, "b": 1})
    pool.submit("j", "--max=1", args=["--step-s=0.1"])
    first = wait_until(lambda: lab.events("j", "STEP"), SLOW, pool.tails)[0].host
    lost = time.monotonic()
    pool.agents[first].crash()
    other = "b" if first == "a" else "a"
    # Nobody can prove that the lost host is quiet, so a person says it.
    wait_until(lambda: pool.heet("release", "j", first).returncode == 0, SLOW, pool.tails, poll_s=1)
    wait_until(lambda: lab.events("j", "STEP", after=lost + 1, host=other), SLOW, pool.tails)
    assert pool.heet("cancel", "j").returncode == 0
    assert pool.wait("j") == 7


def test_logs_come_from_the_host_that_has_them_by_rank_and_by_host_and_stay_after_a_failure(
    lab: Cluster, tmp_path: Path
):
    script = tmp_path / "talk.py"
    script.write_text(
        "import os, sys, time\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'has', os.environ['COLOUR'], flush=True)\n"
        "print('token', open(os.environ['TOKEN_FILE']).read(), 'TOKEN' in os.environ, flush=True)\n"
        "time.sleep(1)\n"
        "sys.exit('the end of the world') if os.environ['RANK'] == '1' else time.sleep(600)\n"
    )
    (tmp_path / "token").write_text("hush")
    pool = Pool(lab, {"a": 1, "b": 1})
    flags = ["--hosts=2", "--nproc=1", "--env=COLOUR=blue", f"--secret=TOKEN={tmp_path / 'token'}", f"--cwd={tmp_path}"]
    done = pool.heet("submit", "--id=j", *flags, "--follow", "--", "talk.py")
    assert done.returncode == 1, done.stderr + pool.tails()
    assert "rank 0 of 2 has blue\ntoken hush False\n" in done.stdout
    assert "heet: j failed" in done.stderr
    assert "the end of the world" in pool.heet("logs", "j", "--rank=1").stdout
    both = "".join(pool.heet("logs", "j", f"--host={h}").stdout for h in "ab")
    assert {"rank 0 of 2 has blue", "rank 1 of 2 has blue"} <= set(both.splitlines())
    assert "torchrun" in both
    assert pool.heet("logs", "j", "--rank=1", "-n1").stdout.count("\n") <= 1
    assert "ranks 0 to 1" in pool.heet("logs", "j", "--rank=7").stderr
    assert pool.heet("logs", "nothing").returncode == 2


def test_what_cannot_run_is_refused_or_ends_with_its_reason(lab: Cluster, tmp_path: Path):
    pool = Pool(lab, {"a": 2})
    refused = pool.heet("submit", "--id=big", "--min=3", "--", str(LAB_WORKER))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "needs at least 3 devices" in refused.stderr
    assert pool.heet("submit", "--id=gone", f"--cwd={tmp_path}", "--", "no.py").returncode == 2
    assert "gone" not in lab.snapshot().jobs
    done = pool.heet("submit", "--id=broken", "--python=/no/such/python", "--follow", "--", str(LAB_WORKER))
    assert done.returncode == 1, pool.tails()
    assert "/no/such/python: No such file" in done.stderr
    quick = tmp_path / "quick.py"
    quick.write_text("raise SystemExit(0)\n")
    pool.heet("submit", "--id=quick", "--", str(quick))
    assert pool.wait("quick") == 0


def test_a_job_cancelled_while_its_round_forms_ends_everywhere(lab: Cluster):
    pool = Pool(lab, {"a": 1, "b": 1})
    pool.submit("j", "--hosts=2", "--nproc=1", args=["--step-s=0.1"])
    wait_until(lambda: lab.view("j").wanted, SLOW, pool.tails)
    assert pool.heet("cancel", "j").returncode == 0
    assert pool.wait("j") == 7
    wait_until(
        lambda: not any("torch.distributed.run" in line for p in pool.agents.values() for line in p.family().values()),
        SLOW,
        pool.tails,
    )
    pool.submit("next", "--hosts=2", "--nproc=1", args=["--steps=3"])
    assert pool.wait("next") == 0


def test_a_job_submitted_while_no_coordinator_leads_waits_for_the_next_one(lab: Cluster):
    pool = Pool(lab, {"a": 1}, coordinator=False)
    first = lab.start_coordinator(*FAST)
    wait_until(lambda: lab.snapshot().leader is not None, SLOW, pool.tails)
    first.kill()
    pool.submit("j", args=["--steps=3"])
    pool.submit("j", args=["--steps=3"])
    lab.start_coordinator(*FAST)
    assert pool.wait("j") == 0
    assert {e.rank for e in lab.events("j", "DONE")} == {0}
    assert len(lab.events("j", "DONE")) == 1


def test_a_host_has_one_daemon_and_a_second_one_says_so(lab: Cluster, tmp_path: Path):
    pool = Pool(lab, {"a": 1})
    second = pool.start("a", f"--state-dir={tmp_path / 'other'}")
    assert second.wait(SLOW) == 2
    assert "host a is served already" in second.output
    third = pool.start("a")
    assert third.wait(SLOW) == 2
    assert "another heet-agent uses the state folder" in third.output


def test_two_hundred_jobs_in_a_burst_are_there_once_each_and_those_that_are_left_run(lab: Cluster, tmp_path: Path):
    pool = Pool(lab, {"a": 1})
    file = tmp_path / "sweep"
    log = lab.event_log("burst")
    line = f"--env=LAB_LOG={log} -- {LAB_WORKER} --no-group --steps=1\n"
    # All but two are too wide for what is there now: they wait for further hosts.
    file.write_text(
        "".join(f"--id=j{n:03d} {'--max=1' if n < 2 else '--min=2 --unchecked'} {line}" for n in range(200))
    )
    for _ in range(2):  # the second time settles what an interruption might have left
        done = pool.heet("sweep", str(file))
        assert done.stdout.split() == [f"j{n:03d}" for n in range(200)], done.stderr
    assert len(lab.snapshot().jobs) == 200
    assert [pool.wait(j) for j in ("j000", "j001")] == [0, 0]
    assert len(lab.events("burst", "DONE")) == 2
    wait_until(lambda: lab.view("j199").status is not None, SLOW, pool.tails)


def test_the_command_of_a_running_job_outlives_an_emptied_etcd(lab: Cluster):
    pool = Pool(lab, {"a": 1})
    pool.submit("j", args=["--step-s=0.1"])
    wait_until(lambda: lab.events("j", "STEP"), SLOW, pool.tails)
    workers = {e.pid for e in lab.events("j", "START")}
    lab.etcd.wipe()
    lab.etcd.start()
    key = Keys().command("j")

    def restored() -> bool:
        with lab.store() as store:
            return key in store.read(key).entries

    wait_until(restored, SLOW, pool.tails)
    wait_until(lambda: (s := lab.view("j").spec) is not None and s.record.submitted, SLOW, pool.tails)
    wait_until(lambda: lab.snapshot().leader is not None, SLOW, pool.tails)
    assert pool.heet("cancel", "j").returncode == 0
    assert pool.wait("j") == 7
    assert {e.pid for e in lab.events("j", "START")} == workers, "no worker was started anew"
