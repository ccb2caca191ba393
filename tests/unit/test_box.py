"""`heet up` where something is wrong: what is said of it, and how soon."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from heet_elastic.cli.access import Access
from heet_elastic.cli.box import Box, last_words
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


def test_joining_where_no_pool_is_says_so_soon_and_leaves_nothing(tmp_path: Path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="nobody listens"):
            up(Access(""), join=f"127.0.0.1:{closed.getsockname()[1]}", folder=tmp_path)
    assert time.monotonic() - begun < 30.0
    assert Box.read(tmp_path) is None
