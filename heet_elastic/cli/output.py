"""Where commands print: a console for people, JSON for programs. Imports nothing slow: every command comes by here."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

PLAIN_WIDTH = 250
"""Columns when the output is no terminal: one thing stays on one line."""


def console(width: int = PLAIN_WIDTH) -> Console:
    """Standard output. Names and addresses come out as they are: to rich, `[b]` is bold and `:a:` a picture.

    width: columns when the output is no terminal.
    """
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(width=width, highlight=False, markup=False, emoji=False, no_color=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout; letters that it cannot show are escaped as JSON does."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=ascii_only, default=str) + "\n")
