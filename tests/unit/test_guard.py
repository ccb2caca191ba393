"""Device locks, workers and the reaper, with real processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heet_elastic.agents import locks, reaper
from heet_elastic.agents.guard import DeviceGuard
from tests.integration.processes import wait_until

DEADLINE_S = 20.0

AGENT = """
import json, multiprocessing, os, signal, subprocess, sys, time
from pathlib import Path
from heet_elastic.agents.guard import DeviceGuard
from tests.integration.processes import wait_until

WORKER = '''
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN);"
                          "print(1, flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
'''

def forked(pipe):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pipe.send(child.pid)
    time.sleep(600)

guard = DeviceGuard(Path(sys.argv[1]), "job x, agent a")
started = []

def acquire(devices, timeout_s):
    return [[b.device, b.holder] for b in guard.acquire(devices, timeout_s, lambda: False)]

def worker(mark, inherit):
    environment = dict(os.environ, **({guard.marker[0]: guard.marker[1]} if mark else {}))
    process = subprocess.Popen([sys.executable, "-S", "-c", WORKER], stdout=subprocess.PIPE, start_new_session=True,
                               env=environment, close_fds=not inherit)
    started.append(process)
    return [process.pid, int(process.stdout.readline())]

def fork():
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=forked, args=(there,))
    process.start()
    started.append(process)
    return [process.pid, here.recv()]

def watch(pids): guard.watch(pids)
def alive(): return list(guard.alive())
def kill(signum): guard.kill(signum)
def start(): guard.start()
def close(): guard.close()
def held(): return sorted(guard.held)
def reaper(): return guard._reaper.pid if guard._reaper else None

def release(keep):
    try:
        guard.release(keep)
    except RuntimeError as e:
        return str(e)

for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
"""


class Agent:
    """An agent process that does as it is told, one call a line."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.orders, self.answers = self.process.stdin, self.process.stdout
        self.pids = [self.process.pid]

    def __getattr__(self, name: str):
        def call(*arguments):
            print(json.dumps([name, *arguments]), file=self.orders, flush=True)
            answer = json.loads(self.answers.readline())
            if name in ("worker", "fork"):
                self.pids += answer
            if name == "reaper" and answer:
                self.pids.append(answer)
            return answer

        return call

    def kill(self, signum: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, signum)
        self.process.wait(DEADLINE_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.__getattr__("reaper")()
            self.process.kill()
        self.process.wait()
        self.orders.close()
        self.answers.close()
        for pid in self.pids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path / "locks")
    yield agent
    agent.end()


@pytest.fixture
def guard(tmp_path):
    guard = DeviceGuard(tmp_path / "locks", "job y, agent b")
    yield guard
    guard.kill(signal.SIGKILL)
    wait_for(lambda: not guard.alive())
    guard.close()


def wait_for(condition) -> None:
    wait_until(condition, DEADLINE_S, "the condition comes true", poll_s=0.01)


def process(pid: int) -> reaper.Process:
    found = reaper.read_process(pid)
    assert found is not None
    return found


def living(pids) -> list[int]:
    processes = [reaper.read_process(pid) for pid in pids]
    return [p.pid for p in processes if p is not None and p.alive]


def free(folder: Path, device: str) -> bool:
    return not locks.is_taken(folder, device)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], start_new_session=True)


def shell(script: str) -> tuple[subprocess.Popen[str], str]:
    """A shell in a session of its own, and the first line that it printed."""
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


def test_an_agent_killed_takes_workers_that_ignore_sigterm_and_their_children_with_it(agent, tmp_path):
    assert agent.acquire(["GPU-1"], 0) == []
    workers = agent.worker(False, False) + agent.worker(False, False)
    agent.watch(workers[::2])
    agent.kill()
    wait_for(lambda: free(tmp_path / "locks", "GPU-1"))
    assert living(workers) == []  # never free before they are gone


def test_a_killed_reaper_is_replaced_and_nothing_is_lost(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    workers = agent.worker(False, False)
    agent.watch(workers[:1])
    first = agent.reaper()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not living([first]))
    assert not free(tmp_path / "locks", "GPU-1")
    assert living(workers) == workers
    agent.start()
    second = agent.reaper()
    assert second != first
    os.kill(second, signal.SIGSTOP)  # whoever holds the lock now, it is not the agent
    agent.kill()
    assert not free(tmp_path / "locks", "GPU-1")
    os.kill(second, signal.SIGCONT)
    wait_for(lambda: free(tmp_path / "locks", "GPU-1"))
    assert living(workers) == []


def test_a_reaper_that_dies_unnoticed_is_replaced_when_workers_start(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    first = agent.reaper()
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not living([first]))
    workers = agent.worker(False, False)
    agent.watch(workers[:1])
    agent.kill()
    wait_for(lambda: not living(workers) and free(tmp_path / "locks", "GPU-1"))


def test_the_reaper_ignores_what_a_terminal_and_a_shutdown_send(agent):
    agent.start()
    pid = agent.reaper()
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert ignored & 1 << (signum - 1)
        os.kill(pid, signum)
    agent.start()
    assert agent.reaper() == pid
    assert process(pid).session == process(pid).group == pid


def test_workers_started_but_not_yet_watched_end_by_their_marker(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    workers = agent.worker(True, False)
    agent.kill()
    wait_for(lambda: not living(workers) and free(tmp_path / "locks", "GPU-1"))


def test_workers_inherit_neither_locks_nor_the_reapers_socket(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    sockets = {fd for fd in links(agent.process.pid) if fd.startswith("socket:")}
    assert sockets
    for pid in (agent.worker(False, True)[0], agent.fork()[0]):
        inherited = set(links(pid))
        assert not inherited & sockets
        assert not any(str(tmp_path / "locks") in fd for fd in inherited)


def links(pid: int) -> list[str]:
    return [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]


def test_a_forked_child_of_the_agent_does_not_hide_its_end(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    bystanders = agent.fork()
    agent.kill()
    wait_for(lambda: free(tmp_path / "locks", "GPU-1"))
    assert living(bystanders) == bystanders


def test_workers_in_the_agents_own_group_end_by_their_tree_and_the_agent_lives(agent):
    workers = agent.fork()  # the second left its parent's session
    agent.watch(workers[:1])
    assert agent.alive() == sorted(workers)
    agent.__getattr__("kill")(signal.SIGKILL)
    wait_for(lambda: agent.alive() == [])
    assert living(workers) == []
    assert agent.held() == []


def test_an_agent_killed_takes_workers_in_its_own_group_with_it(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    workers = agent.fork()
    agent.watch(workers[:1])
    agent.kill()
    wait_for(lambda: free(tmp_path / "locks", "GPU-1"))
    assert living(workers) == []


def test_devices_are_not_released_while_a_worker_lives(guard):
    guard.acquire(["GPU-1", "GPU-2"], 0, lambda: False)
    worker = sleeper()
    guard.watch([worker.pid])
    with pytest.raises(RuntimeError, match=f"'GPU-1'.*{worker.pid}"):
        guard.release(keep=["GPU-2"])
    guard.release(keep=["GPU-1", "GPU-2"])  # nothing to free, nothing to refuse
    assert guard.held == {"GPU-1", "GPU-2"}
    worker.kill()
    wait_for(lambda: not guard.alive())  # a zombie is gone
    assert worker.returncode is None
    guard.release(keep=["GPU-2"])
    assert guard.held == {"GPU-2"}
    worker.wait()


def test_a_lock_of_another_process_is_busy_with_its_holder_until_that_process_frees_it(agent, guard):
    assert agent.acquire(["GPU-1"], 0) == []
    (busy,) = guard.acquire(["GPU-0", "GPU-1"], 0, lambda: False)
    assert busy.device == "GPU-1"
    assert busy.holder == f"pid {agent.process.pid} (job x, agent a)"
    assert guard.held == frozenset()  # all or nothing
    assert agent.acquire(["GPU-0"], 0) == []
    assert guard.locked_by_others(["GPU-0", "GPU-1", "GPU-7"]) == ("GPU-0", "GPU-1")
    agent.release([])
    assert guard.acquire(["GPU-0", "GPU-1"], DEADLINE_S, lambda: False) == ()
    assert guard.locked_by_others(["GPU-0", "GPU-1"]) == ()


def test_every_busy_device_is_named(agent, guard):
    agent.acquire(["GPU-1", "GPU-3"], 0)
    assert [b.device for b in guard.acquire(["GPU-1", "GPU-2", "GPU-3"], 0, lambda: False)] == ["GPU-1", "GPU-3"]


def test_the_wait_for_a_lock_ends_when_told_to_give_up(agent, guard):
    agent.acquire(["GPU-1"], 0)
    asked = itertools.count(1)
    busy = guard.acquire(["GPU-1"], DEADLINE_S * 100, lambda: next(asked) == 3)
    assert [b.device for b in busy] == ["GPU-1"]
    assert next(asked) == 4


def test_a_lock_appears_when_the_dead_agents_workers_have_ended(agent, guard):
    agent.acquire(["GPU-1"], 0)
    agent.watch(agent.worker(False, False)[:1])
    agent.kill()
    assert guard.acquire(["GPU-1"], DEADLINE_S, lambda: False) == ()


def test_devices_held_already_stay_held_when_more_cannot_be_had(agent, guard):
    assert guard.acquire(["GPU-0"], 0, lambda: False) == ()
    agent.acquire(["GPU-1"], 0)
    assert guard.acquire(["GPU-0", "GPU-1"], 0, lambda: False) != ()
    assert guard.held == {"GPU-0"}


def test_closing_ends_the_reaper_and_frees_everything(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    pid = agent.reaper()
    agent.close()
    assert living([pid]) == []
    assert free(tmp_path / "locks", "GPU-1")
    assert agent.acquire(["GPU-1"], 0) == []  # and it can be used again


def test_closing_kills_nothing_and_the_end_of_the_agent_does(agent, tmp_path):
    agent.acquire(["GPU-1"], 0)
    workers = agent.worker(False, False)
    agent.watch(workers[:1])
    agent.close()
    assert living(workers) == workers
    assert not free(tmp_path / "locks", "GPU-1")
    agent.orders.close()  # it ends by itself
    wait_for(lambda: free(tmp_path / "locks", "GPU-1"))
    assert living(workers) == []


def test_signals_reach_every_group_of_a_workers_session(guard):
    script = "set -m; sleep 600 & sleep 600 & echo ready; wait"  # job control: each in a group of its own
    worker, _ = shell(script)
    guard.watch([worker.pid])
    assert len(guard.alive()) == 3
    guard.kill(signal.SIGTERM)
    wait_for(lambda: not guard.alive())
    worker.wait()


def test_what_a_dead_worker_left_behind_is_found_when_it_is_watched_too_late(guard):
    worker, child = shell("sleep 600 & echo $!")
    worker.wait()
    guard.watch([worker.pid])
    assert guard.alive() == (int(child),)


def test_a_worker_that_is_gone_altogether_is_not_watched(guard):
    worker = sleeper()
    worker.kill()
    worker.wait()
    guard.watch([worker.pid])
    assert guard.alive() == ()


def test_a_process_id_used_again_is_not_taken_for_a_worker():
    other = sleeper()
    try:
        start = process(other.pid).start
        for kind in ("session", "group", "tree"):
            workers = reaper.Watchlist()
            workers.add(reaper.Watched(other.pid, kind, start + 1))
            workers.kill(signal.SIGKILL, spare=0)
            assert workers.members() == []
            assert len(workers) == 0  # and it is forgotten
        reaper.send_signal(reaper.Process(other.pid, 1, 1, 1, start + 1, True), signal.SIGKILL)
        assert living([other.pid])
    finally:
        other.kill()
        other.wait()


def test_a_process_with_an_odd_name_is_read_right(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    odd = subprocess.Popen([program, "600"], start_new_session=True)
    try:
        wait_for(lambda: Path(f"/proc/{odd.pid}/comm").read_text().startswith("a) R"))
        found = process(odd.pid)
        assert (found.parent, found.session, found.alive) == (os.getpid(), odd.pid, True)
    finally:
        odd.kill()
        odd.wait()
