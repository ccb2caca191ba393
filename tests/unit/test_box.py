"""`heet up` where something is wrong: what is said of it, and how soon."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from heet_elastic.agents.node_launch import start_time
from heet_elastic.cli.access import Access
from heet_elastic.cli.box import Box, Process, last_words
from heet_elastic.cli.up import up
from heet_elastic.errors import StoreUnavailableError

FRAMED = """Usage: heet-agent [OPTIONS]
╭─ Error ───────────────────────╮
│ No such option: --bogus       │
╰───────────────────────────────╯
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [(FRAMED, "No such option: --bogus"), ("a\nheet: b is wrong\n\n", "heet: b is wrong"), ("", "it said nothing")],
)
def test_the_last_words_of_a_program_are_its_sentence(log: str, words: str):
    assert last_words(log) == words


def test_what_is_left_of_a_pool_that_lost_a_program_is_ended_first_and_that_is_said(tmp_path: Path, capsys):
    with socket.socket() as closed, subprocess.Popen(["sleep", "60"]) as left:
        closed.bind(("127.0.0.1", 0))
        gone = Process("coordinator", left.pid, start_time(left.pid) - 1)
        Box("127.0.0.1:1", (gone, Process("agent", left.pid, start_time(left.pid)))).write(tmp_path)
        with pytest.raises(StoreUnavailableError):
            up(Access(""), join=f"127.0.0.1:{closed.getsockname()[1]}", folder=tmp_path)
        assert left.wait(10) == -signal.SIGTERM
    said = capsys.readouterr().err
    assert said == "heet: heet-coordinator has ended: what is left of the pool here ends first, workers save\n"


def test_joining_where_no_pool_is_says_so_soon_and_leaves_nothing(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="nobody listens"):
            up(Access(""), join=f"127.0.0.1:{closed.getsockname()[1]}", folder=tmp_path)
    assert time.monotonic() - begun < 30.0
    assert Box.read(tmp_path) is None
