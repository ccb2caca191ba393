"""`heet up`, `heet up --join`, `heet down`: a pool in one command, and what is left when it is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness import LAB_WORKER, Cluster
from tests.integration.pool import FAST, SLOW
from tests.integration.processes import ended_by_itself, free_port, wait_until


class Boxes:
    """Pretend boxes, each with a folder, a name and locks of its own."""

    def __init__(self, folder: Path) -> None:
        self.lab = Cluster(folder)  # never entered: its etcd stays off, `heet up` has its own
        self.folder = folder
        self.endpoint = f"127.0.0.1:{free_port()}"

    def heet(self, box: str, *words: str) -> subprocess.CompletedProcess[str]:
        home = self.folder / box
        home.mkdir(exist_ok=True)
        env = self.lab.environment(
            HEET_HOST=box,
            HEET_SLOTS="1",
            HEET_LOCK_DIR=str(home / "locks"),
            XDG_STATE_HOME=str(home),
            HEET_ETCD=self.endpoint,
            HEET_LAB_MARK=self.lab.mark,
            HEET_TTL_S="2",
        )
        return subprocess.run(
            [sys.executable, "-m", "heet_elastic.cli.main", *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=SLOW,
            cwd=self.folder,
        )

    def up(self, box: str, *words: str) -> None:
        done = self.heet(box, "up", *words, *(f"--coordinator-arg={f}" for f in FAST))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Boxes]:
    found = Boxes(tmp_path)
    yield found
    assert ended_by_itself(found.lab.mark, 10.0) == {}, "heet down leaves nothing behind"


def test_a_pool_of_two_boxes_runs_a_job_ends_and_goes_on_with_what_was_not_finished(boxes: Boxes):
    boxes.up("one", "--listen", boxes.endpoint)
    again = boxes.heet("one", "up", "--listen", boxes.endpoint)
    assert "up already" in again.stdout
    boxes.up("two", "--join", boxes.endpoint)
    hosts = json.loads(boxes.heet("one", "hosts", "--json").stdout)
    assert "two" in json.dumps(hosts)
    log, lab = boxes.lab.event_log("j"), boxes.lab
    go = boxes.folder / "go"
    flags = ["--id=j", "--hosts=2", "--nproc=1", f"--env=LAB_LOG={log}"]
    done = boxes.heet("one", "submit", *flags, "--", str(LAB_WORKER), "--no-group", "--step-s=0.1", f"--until={go}")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: lab.events("j", "STEP", world=2), SLOW, "both boxes train")
    assert boxes.heet("two", "down").stdout == "down\n"
    ended = boxes.heet("one", "down")
    assert "j is not finished" in ended.stdout
    assert ended_by_itself(lab.mark, 10.0) == {}
    before = len(lab.events("j", "START"))
    boxes.up("one", "--listen", boxes.endpoint)
    boxes.up("two", "--join", boxes.endpoint)
    wait_until(lambda: len(lab.events("j", "START")) >= before + 2, SLOW, "it goes on")
    go.touch()
    assert boxes.heet("one", "wait", "j").returncode == 0
    for box in ("two", "one"):
        assert boxes.heet(box, "down").returncode == 0
    assert "nothing of a pool" in boxes.heet("one", "down").stdout


def test_a_port_that_is_taken_is_said_and_nothing_is_left(boxes: Boxes):
    boxes.up("one", "--listen", boxes.endpoint)
    done = boxes.heet("two", "up", "--listen", boxes.endpoint)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert boxes.heet("one", "down").returncode == 0
