"""Entry points of the console scripts: they read nothing else before a Ctrl-C is answered by an exit code alone."""

from __future__ import annotations

import sys
from importlib import import_module

from heet_elastic.cli.errors import run


def heet() -> None:
    """The command `heet`."""
    sys.exit(run(lambda: import_module("heet_elastic.cli.main").main()))


def agent() -> None:
    """The daemon `heet-agent`."""
    sys.exit(run(lambda: import_module("heet_elastic.cli.agent").main()))


def coordinator() -> None:
    """The daemon `heet-coordinator`."""
    sys.exit(run(lambda: import_module("heet_elastic.cli.coordinator").main()))
