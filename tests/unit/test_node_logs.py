"""Logs of submitted jobs: bounded, readable while they rotate, lost rather than in anybody's way; read with a token."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heet_elastic.agents import node_api, node_logs, node_writer
from heet_elastic.agents.node_records import NodeRecord
from heet_elastic.errors import HeetError
from tests.integration.processes import wait_until

LIMIT = 1 << 16


class Desk:
    """A run's folder with one pipe, a writer, and this test in the place of a torchrun."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, folder / "logs"
        for name in ("pipes", "logs"):
            (folder / name).mkdir()
        os.mkfifo(folder / "pipes" / "0")
        self.lock = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
                "f.write('1 2 3'); f.flush(); print('held', flush=True); sys.stdin.read()",
                str(folder / "lock"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.lock.stdout is not None
        assert self.lock.stdout.readline() == b"held\n"
        self.pipe = os.open(folder / "pipes" / "0", os.O_RDWR)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-I", "-S", node_writer.__file__, str(self.folder), str(LIMIT)]
        self.writer = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def say(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.pipe, data) :]

    def end(self) -> None:
        """The torchrun ends; the writer follows."""
        with self.lock as process:
            assert process.stdin is not None
            process.stdin.close()
        assert self.writer.wait(20) == 0

    def close(self) -> None:
        with self.lock as process:
            process.kill()
        self.writer.kill()
        self.writer.wait()
        os.close(self.pipe)

    def size(self) -> int:
        return node_logs.read(self.logs, "0", 0).size

    def disk(self) -> int:
        return sum(f.stat().st_size for f in self.logs.iterdir())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    found = Desk(tmp_path)
    yield found
    found.close()


def test_what_is_said_is_in_the_log_when_the_torchrun_has_ended(desk: Desk):
    desk.say(b"one\ntwo\n")
    desk.end()
    assert node_logs.read(desk.logs, "0", 0).data == b"one\ntwo\n"
    assert node_logs.streams(desk.logs) == ("0",)
    assert node_logs.last_words(desk.logs, "0", 4) == "two"


def test_old_text_goes_and_positions_stay_true(desk: Desk):
    lines = b"".join(b"%07d\n" % i for i in range(40_000))
    desk.say(lines)
    desk.end()
    assert len(lines) > 4 * LIMIT
    assert desk.disk() <= LIMIT
    piece = node_logs.read(desk.logs, "0", 0)
    assert piece.size == piece.end == len(lines)
    assert piece.data == lines[piece.begin :]
    assert node_logs.read(desk.logs, "0", -8).data == b"0039999\n"
    assert node_logs.read(desk.logs, "0", len(lines)).data == b""
    assert len(node_logs.read(desk.logs, "0", -100, 10).data) == 10


def test_a_replaced_writer_goes_on_where_the_old_one_was(desk: Desk):
    desk.say(b"before\n")
    wait_until(lambda: desk.size() == 7, 20, "it is written")
    desk.writer.kill()
    desk.writer.wait()
    desk.say(b"between\n")
    desk.start()
    desk.say(b"after\n")
    desk.end()
    assert node_logs.read(desk.logs, "0", 0).data == b"before\nbetween\nafter\n"


def test_a_full_disk_costs_output_and_stops_nobody_and_is_said_afterwards(desk: Desk):
    full = desk.logs / f"0@{0:020d}.log"
    full.symlink_to("/dev/full")
    desk.say(b"x" * (1 << 20))  # far more than a pipe holds: it would block if nobody read on
    wait_until(lambda: select.select([desk.pipe], [], [], 0)[0] == [], 20, "everything is read")
    full.unlink()
    desk.say(b"room again\n")
    desk.end()
    text = node_logs.read(desk.logs, "0", 0).data
    assert b"bytes of output were lost: No space left on device" in text
    assert text.endswith(b"room again\n")


def test_lost_output_is_said_once_there_is_room(tmp_path: Path):
    for name in ("pipes", "logs"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipes" / "0")
    file = tmp_path / "logs" / f"0@{0:020d}.log"
    file.symlink_to("/dev/full")
    stream = node_writer.Stream(tmp_path, "0", LIMIT)
    os.write(stream.pipe, b"lost")
    assert stream.copy()
    file.unlink()
    os.write(stream.pipe, b"kept\n")
    assert stream.copy()
    assert stream.copy() is False
    os.close(stream.pipe)
    text = file.read_bytes()
    assert text == b"\nheet: 4 bytes of output were lost: No space left on device\nkept\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeRecord]:
    logs = tmp_path / "j" / "logs"
    logs.mkdir(parents=True)
    (logs / f"0@{0:020d}.log").write_bytes(b"hello\n" * 400_000)
    (logs / f"torchrun@{0:020d}.log").write_bytes(b"said\n")
    (tmp_path / "secret").write_text("no")
    server = node_api.LogServer("127.0.0.1", 0, "token", "h", lambda job: tmp_path / job.replace("/", "%2F"))
    server.start()
    yield NodeRecord("h", "a", "127.0.0.1", server.port, "token")
    server.close()


def test_logs_are_read_piece_by_piece_and_no_answer_is_unbounded(node: NodeRecord):
    assert node_api.list_streams(node, "j") == ("torchrun", "0")
    whole, position = b"", 0
    while True:
        piece = node_api.fetch(node, "j", "0", position, 1 << 30)
        assert len(piece.data) <= node_logs.MOST_BYTES
        if not piece.data:
            break
        whole, position = whole + piece.data, piece.end
    assert whole == b"hello\n" * 400_000
    assert node_api.fetch(node, "j", "0", -6).data == b"hello\n"


@pytest.mark.parametrize("token", ["", "wrong", "tokenx", "tök"])
def test_without_the_token_nothing_is_told(node: NodeRecord, token: str):
    with pytest.raises((HeetError, UnicodeEncodeError), match=r"token|codec"):
        node_api.list_streams(replace(node, token=token), "j")


@pytest.mark.parametrize("stream", ["1", "../../secret", "0@", ""])
def test_only_logs_can_be_read(node: NodeRecord, stream: str):
    with pytest.raises(HeetError, match="no such log"):
        node_api.fetch(node, "j", stream, 0)


def test_another_jobs_folder_is_not_reached_by_its_name(node: NodeRecord):
    assert node_api.list_streams(node, "../j") == ()


def test_a_host_that_is_gone_is_said_with_its_name():
    with pytest.raises(HeetError, match="host h does not answer"):
        node_api.list_streams(NodeRecord("h", "a", "127.0.0.1", 1, "t"), "j")
