"""Torchruns of a heet-agent as processes: one a job, found again, told apart by start time, ended by name alone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heet_elastic.agents import node_logs
from heet_elastic.agents.node_runs import NOT_STARTED, Launch, Runs
from heet_elastic.errors import UsageError
from tests.integration.processes import wait_until

SLEEPER = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print('here', flush=True)
while True:
    signal.pause()
"""
LOG_BYTES = 1 << 16


def launch(job: str = "j", code: str = SLEEPER, incarnation: str = "i", **more: object) -> Launch:
    made = Launch(job, incarnation, (sys.executable, "-I", "-S", "-c", code), dict(os.environ), "/", 1)
    return replace(made, **more)  # type: ignore[arg-type]


def await_death(runs: Runs, job: str) -> None:
    wait_until(lambda: not runs.look()[job].alive, 20, "it ends")


Opener = Callable[[], Runs]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Opener]:
    """Opens one daemon after another on one state folder; whatever runs at the end is killed."""
    opened: list[Runs] = []

    def start() -> Runs:
        for old in opened:
            old.close()
        runs = Runs(tmp_path / "state", LOG_BYTES, keep=2)
        runs.open()
        opened.append(runs)
        return runs

    yield start
    last = start()
    for job in last.look():
        last.send(job, signal.SIGKILL)
        await_death(last, job)
    for runs in opened:
        for live in runs._live.values():
            for child in (live.child, live.writer):
                if child is not None:
                    child.wait(20)
        for live in runs._ending:
            wait_until(live.over, 20, "its writer ends")
        runs.close()


def here(runs: Runs, job: str = "j") -> None:
    wait_until(lambda: "here" in runs.words(job), 20, "it says so")


def test_a_torchrun_lives_until_it_is_asked_to_end_and_its_words_stay(daemons: Opener):
    runs = daemons()
    runs.start(launch())
    here(runs)
    assert runs.look()["j"].alive
    assert runs.send("j", signal.SIGTERM)
    wait_until(lambda: not runs.look()["j"].alive, 20, "it ends")
    assert runs.look()["j"].exit_code == 5
    assert not runs.send("j", signal.SIGTERM)
    runs.drop("j")
    assert runs.look() == {}
    assert "here" in runs.words("j")


def test_the_next_daemon_finds_it_by_pid_and_start_time_and_can_end_it(daemons: Opener):
    first = daemons()
    first.start(launch())
    here(first)
    identity = first.identity("j")
    second = daemons()
    run = second.look()["j"]
    assert (run.incarnation, run.alive, run.exit_code) == ("i", True, None)
    assert second.identity("j") == identity
    assert second.send("j", signal.SIGTERM)
    child = first._live["j"].child
    assert child is not None
    assert child.wait(20) == 5
    assert not second.look()["j"].alive


def test_a_second_start_of_a_living_run_takes_it_over(daemons: Opener):
    first = daemons()
    first.start(launch())
    here(first)
    identity = first.identity("j")
    second = daemons()
    second.drop("j")
    second.start(launch())
    assert second.look()["j"].alive
    assert second.identity("j") == identity


def test_two_daemons_never_share_a_state_folder(daemons: Opener, tmp_path: Path):
    daemons()
    with pytest.raises(UsageError, match="another heet-agent uses the state folder"):
        Runs(tmp_path / "state", LOG_BYTES).open()


def test_a_process_that_merely_got_the_number_is_never_signalled(daemons: Opener):
    runs = daemons()
    runs.start(launch())
    here(runs)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as stranger:
        lock = runs.folder_of("j") / "lock"
        _, started, boot = lock.read_text().split()
        kept = lock.read_text()
        lock.write_text(f"{stranger.pid} {int(started) + 1} {boot}\n")
        assert not runs.send("j", signal.SIGKILL)
        lock.write_text(f"{stranger.pid} {started} another-boot\n")
        assert not runs.send("j", signal.SIGKILL)
        lock.write_text(kept)
        assert stranger.poll() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cwd": "/nowhere/at/all"}, "folder /nowhere/at/all: No such file"),
        ({"argv": ("/no/python",)}, "program /no/py"),
    ],
)
def test_what_cannot_be_started_dies_with_a_sentence(daemons: Opener, change: dict[str, object], words: str):
    runs = daemons()
    runs.start(launch(**change))  # type: ignore[arg-type]
    wait_until(lambda: not runs.look()["j"].alive, 20, "it ends")
    wait_until(lambda: words in runs.words("j"), 20, lambda: runs.words("j"))
    assert runs.look()["j"].exit_code == 72


def test_a_folder_that_cannot_be_made_is_a_death_and_no_crash(daemons: Opener):
    runs = daemons()
    runs.folder_of("j").write_text("in the way")
    runs.start(launch())
    assert runs.look()["j"].exit_code == NOT_STARTED
    runs.folder_of("j").unlink()
    runs.drop("j")


def test_secrets_are_private_files_while_it_lives_and_gone_afterwards(daemons: Opener):
    runs = daemons()
    runs.start(launch(secrets={"TOKEN": "hush"}))
    here(runs)
    file = runs.folder_of("j") / "secrets" / "TOKEN"
    assert file.read_text() == "hush"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    said = Path(f"/proc/{runs.identity('j')[0]}")  # type: ignore[index]
    assert b"hush" not in said.joinpath("environ").read_bytes() + said.joinpath("cmdline").read_bytes()
    runs.send("j", signal.SIGTERM)
    wait_until(lambda: not runs.look()["j"].alive, 20, "it ends")
    runs.drop("j")
    assert not file.exists()


def test_logs_of_a_restart_go_on_and_those_of_another_run_begin_anew(daemons: Opener):
    runs = daemons()
    logs = runs.folder_of("j") / "logs"
    for incarnation, expected in (("i", b"x\n"), ("i", b"x\nx\n"), ("k", b"x\n")):
        runs.start(launch(code="print('x')", incarnation=incarnation))
        await_death(runs, "j")
        writer = runs._live["j"].writer
        assert writer is not None
        writer.wait(20)
        assert node_logs.read(logs, "torchrun", 0).data == expected
        runs.drop("j")


def test_only_the_newest_ended_runs_are_kept(daemons: Opener):
    runs = daemons()
    for number in range(4):
        job = f"j{number}"
        runs.start(launch(job, code="print('x')"))
        await_death(runs, job)
        writer = runs._live[job].writer
        assert writer is not None
        writer.wait(20)
        os.utime(runs.folder_of(job), (number, number))
        runs.drop(job)
    assert sorted(f.name for f in runs.folder.iterdir()) == ["j2", "j3"]


@pytest.mark.parametrize("job", ["a/b", "..", ".", "ü" * 128, "x" * 128])
def test_every_job_has_a_folder_of_its_own_inside(job: str, daemons: Opener):
    runs = daemons()
    folder = runs.folder_of(job)
    assert folder.parent == runs.folder
    assert len(folder.name.encode()) < 256
    assert folder != runs.folder_of(job[:-1] + "z")


def test_an_unreadable_run_is_left_alone(daemons: Opener):
    runs = daemons()
    for name, text in (("one", "{"), ("two", json.dumps({"job": "other"})), ("three", "[]")):
        (runs.folder / name).mkdir()
        (runs.folder / name / "run.json").write_text(text)
    assert daemons().look() == {}
