"""What ends a daemon, seen from outside: a process of its own for each case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, time
from heet_elastic.cli.signals import on_signals
on_signals(lambda number: sys.exit(number + 100))
print("ready", flush=True)
time.sleep(60)
"""


def start(*before: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*before, sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_is_told(number: signal.Signals):
    with start() as process:
        process.send_signal(number)
        assert process.wait(20) == number + 100


def test_under_nohup_a_lost_terminal_ends_nothing():
    with start("nohup") as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == signal.SIGTERM + 100
