"""Processes of a test: started with a mark in their environment, found again by it through /proc, ended by pid.

Workers of torchrun have sessions of their own and outlive a killed parent, so a process group does not hold them. What
every process inherits is the environment: `HEET_LAB_MARK=<test>:<n>` names the test and the command that was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

MARK = "HEET_LAB_MARK"
T = TypeVar("T")


def new_mark() -> str:
    """A mark that no other test has."""
    return uuid.uuid4().hex


def marked(mark: str) -> dict[int, str]:
    """Pid and command line of every live process whose environment carries a mark that starts with `mark`."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            if any(v.startswith(wanted) for v in (folder / "environ").read_bytes().split(b"\0")):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def send(pids: Sequence[int] | Mapping[int, str], signum: int) -> None:
    """Signal processes that may have ended meanwhile."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def crowding() -> float:
    """How many times slower than alone a process may run here: the run queue over the cores, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], T], timeout_s: float, what: str | Callable[[], str], poll_s: float = 0.05) -> T:
    """The first truthy value of `condition`; AssertionError with `what` when there is none within `timeout_s`.

    The deadline is one of a machine that has nothing else to do: it stretches with the load. What must take no longer
    than some bound of the product is asserted from the times of the events, not by this.
    """
    begun = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() - begun > timeout_s * crowding():
            raise AssertionError(f"not within {timeout_s:g} s: {what() if callable(what) else what}")
        time.sleep(poll_s)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket(socket.AF_INET, kind) as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@dataclass
class Proc:
    """A command that runs, with all of its descendants. Output of all of them goes to `log`."""

    name: str
    mark: str
    log: Path
    popen: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(cls, name: str, mark: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> Proc:
        """Start `command` in a session of its own with `env` (whole, not added to ours) and the mark."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            popen = subprocess.Popen(
                list(command),
                env={**env, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, mark, log, popen)

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self.popen.pid

    @property
    def alive(self) -> bool:
        """Whether the command itself runs."""
        return self.popen.poll() is None

    @property
    def output(self) -> str:
        """Everything that the command and its descendants have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def family(self) -> dict[int, str]:
        """The command and all its live descendants, wherever they hang in the process tree."""
        return marked(self.mark)

    def workers(self, script: str = "lab_worker.py") -> list[int]:
        """Pids of the descendants that run `script`."""
        return [pid for pid, line in self.family().items() if script in line and "torch.distributed.run" not in line]

    def wait(self, timeout_s: float) -> int:
        """The exit code; AssertionError with the end of the output when it runs on."""
        wait_until(lambda: not self.alive, timeout_s, lambda: f"{self.name} ends; its output ends with\n{self.tail()}")
        return self.popen.wait()

    def tail(self, lines: int = 40) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.splitlines()[-lines:])

    def terminate(self) -> None:
        """SIGTERM to the command alone, as a cluster manager sends it."""
        self.popen.send_signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT to the command alone."""
        self.popen.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the command alone: its descendants live on."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def crash(self) -> None:
        """SIGKILL to the command and all its descendants at once, as a host that loses power."""
        self.popen.send_signal(signal.SIGSTOP)  # it starts nothing while its family is listed
        self._end_family()

    def freeze(self) -> None:
        """SIGSTOP to the command alone."""
        self.popen.send_signal(signal.SIGSTOP)

    def freeze_all(self) -> None:
        """SIGSTOP to the command and all its descendants, as a host that hangs."""
        send(self.family(), signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT to the command and all its descendants."""
        send(self.family(), signal.SIGCONT)

    def end(self, grace_s: float = 10.0) -> None:
        """SIGTERM, and after `grace_s` SIGKILL to whatever is left."""
        if self.alive:
            self.terminate()
            self.thaw()
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.alive, grace_s, "")
        self._end_family()

    def _end_family(self) -> None:
        def ended() -> bool:
            family = self.family()
            send(family, signal.SIGKILL)
            return not family and not self.alive

        self.popen.send_signal(signal.SIGKILL)
        wait_until(ended, 10, lambda: f"{self.name} leaves no process: {self.family()}")


def ended_by_itself(mark: str, timeout_s: float) -> dict[int, str]:
    """Wait for every process of `mark` to end; return (and kill) those that did not."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not marked(mark), timeout_s, "")
    left = marked(mark)
    send(left, signal.SIGKILL)
    return left
