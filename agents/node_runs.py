"""The torchruns of one heet-agent: started, found again after a restart of the daemon, signalled, remembered.

One folder a job under the state folder:

    run.json     what was to be started (job, incarnation), written before it is
    lock         held by the torchrun while it lives; holds its pid, start time and boot id (node_launch)
    pipes/       torchrun, 0, 1, ...: what it and its workers say
    logs/        files of bounded size (node_writer, node_logs)
    secrets/     files that workers read secrets from; removed when the torchrun has ended

A pid alone names nobody: it is signalled only while a process of that start time has it and the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heet_elastic.agents import kernel, node_launch, node_logs, node_writer
from heet_elastic.agents.node_reconcile import Run
from heet_elastic.agents.node_writer import free
from heet_elastic.errors import UsageError
from heet_elastic.store.keys import encode_id

log = logging.getLogger(__name__)

TORCHRUN = "torchrun"
"""Name of the stream of what torchrun itself says; its workers' are their local ranks."""

NOT_STARTED = 71
"""Exit code of a torchrun for which not even a folder could be made."""

_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. streams: local ranks that may run. secrets: name -> value."""

    job: str
    incarnation: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str
    ranks: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class _Live:
    """A torchrun that is looked after. child: None where an earlier daemon started it.

    pipe: a descriptor of its own output, held until its writer has ended: what a torchrun said that ended before its
    writer had started would be lost otherwise.
    """

    job: str
    incarnation: str
    folder: Path
    child: subprocess.Popen[bytes] | None = None
    writer: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    failed: bool = False

    def over(self) -> bool:
        """Whether its writer has ended; then the pipe is let go of."""
        if self.writer is not None and self.writer.poll() is None:
            return False
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        return True


class Runs:
    """All torchruns under one state folder. `open` first; used by one thread."""

    def __init__(self, state: Path, log_bytes: int, keep: int = 100) -> None:
        self._state, self._log_bytes, self._keep = state, log_bytes, keep
        self._live: dict[str, _Live] = {}
        self._ending: list[_Live] = []  # dropped, and their writers are still at it
        self._lock: int | None = None

    def open(self) -> None:
        """Take the state folder and find the torchruns that an earlier daemon left. UsageError when it is in use."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._state.chmod(0o700)
            self._lock = os.open(self._state / "agent", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another heet-agent uses the state folder {self._state}: end it, or give this one --state-dir"
            ) from None
        except OSError as e:
            raise UsageError(f"the state folder {self._state} cannot be used: {e.strerror} (--state-dir)") from e
        for file in sorted(self.folder.glob("*/run.json")):
            self._find(file)

    def close(self) -> None:
        """Let go of the state folder; torchruns and writers live on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def folder(self) -> Path:
        """Where the runs' folders are."""
        return self._state / "runs"

    def folder_of(self, job: str) -> Path:
        """The folder of a job's torchrun. Two jobs never share one."""
        name = encode_id(job)
        if len(name) > _LONGEST_NAME:
            name = f"{name[:60]}%~{hashlib.sha256(name.encode()).hexdigest()}"  # encode_id never yields "%~"
        return self.folder / name

    def look(self) -> dict[str, Run]:
        """Every torchrun that is looked after, dead ones until `drop`."""
        return {job: self._look(live) for job, live in self._live.items()}

    def start(self, launch: Launch) -> None:
        """Start a torchrun in place of a dead one. What goes wrong shows as its death, never as an exception."""
        live = _Live(launch.job, launch.incarnation, self.folder_of(launch.job))
        self._live[launch.job] = live
        try:
            if self._alive(live.folder):
                return  # an earlier daemon's, only now seen: it is taken over as it is
            self._prepare(live.folder, launch)
            live.pipe = os.open(live.folder / "pipes" / TORCHRUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._start_writer(live)
            live.child = self._spawn(live.folder, launch)
        except OSError as e:
            live.failed = True
            log.warning("job %s cannot be started here: %s", launch.job, e)

    def keep_writers(self) -> None:
        """Replace writers of logs that have died while their torchrun lives."""
        self._ending = [live for live in self._ending if not live.over()]
        for live in self._live.values():
            if live.writer is not None and live.writer.poll() is None:
                continue
            if not free(live.folder / "writer") or not self._look(live).alive:
                continue
            with contextlib.suppress(OSError):
                self._start_writer(live)

    def send(self, job: str, signum: signal.Signals) -> bool:
        """Signal the torchrun of `job`, and nobody else; False when it is gone."""
        live = self._live.get(job)
        identity = None if live is None else self.identity(job)
        if live is None or identity is None or not self._look(live).alive:
            return False
        pid, started = identity
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            # Looked at after the handle was opened: from here on the number cannot come to mean another process.
            if node_launch.start_time(pid) != started:
                return False
            signal.pidfd_send_signal(handle, signum)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def identity(self, job: str) -> tuple[int, int] | None:
        """(pid, start time) of the torchrun that took the lock in this boot; None while there is none."""
        try:
            pid, started, boot = (self.folder_of(job) / "lock").read_text().split()
            return (int(pid), int(started)) if boot == kernel.boot_id() else None
        except (OSError, ValueError):
            return None

    def settle(self, job: str, most_s: float = 3.0) -> None:
        """After a death: until everything that was said is in the log."""
        live = self._live.get(job)
        if live is not None and live.writer is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                live.writer.wait(most_s)

    def words(self, job: str, most: int = 600) -> str:
        """The end of what the torchrun said."""
        return node_logs.last_words(self.folder_of(job) / "logs", TORCHRUN, most)

    def drop(self, job: str) -> None:
        """A dead torchrun is done with. Its logs stay until newer runs need the room."""
        live = self._live.pop(job, None)
        if live is not None and not live.over():
            self._ending.append(live)
        shutil.rmtree(self.folder_of(job) / "secrets", ignore_errors=True)
        self._prune()

    # ------------------------------------------------------------------ inside

    def _find(self, file: Path) -> None:
        try:
            said: dict[str, Any] = json.loads(file.read_text())
            job, incarnation = str(said["job"]), str(said["incarnation"])
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read: left alone", file)
            return
        if self.folder_of(job) == file.parent and self._alive(file.parent):
            self._live[job] = _Live(job, incarnation, file.parent)
            log.info("job %s: its torchrun (pid %s) runs on", job, (self.identity(job) or ("?",))[0])

    def _look(self, live: _Live) -> Run:
        if live.failed:
            return Run(live.job, live.incarnation, False, NOT_STARTED)
        code = None if live.child is None else live.child.poll()
        if live.child is not None and code == node_launch.TAKEN:
            live.child, code = None, None  # an earlier daemon's torchrun lives: look after that one
        alive = self._alive(live.folder) if live.child is None else code is None
        return Run(live.job, live.incarnation, alive, code)

    def _alive(self, folder: Path) -> bool:
        return not free(folder / "lock")

    def _prepare(self, folder: Path, launch: Launch) -> None:
        """Make the folder; logs of an earlier torchrun of the same run go on, those of another run are removed."""
        before = _incarnation(folder)
        if before not in (None, launch.incarnation):
            shutil.rmtree(folder / "logs", ignore_errors=True)
        for name in ("pipes", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (TORCHRUN, *map(str, range(launch.ranks))):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(folder / "pipes" / name, 0o600)
        self._write_secrets(folder / "secrets", launch.secrets)
        (folder / "lock").write_bytes(b"")
        fresh = folder / "run.json.new"
        fresh.write_text(json.dumps({"job": launch.job, "incarnation": launch.incarnation}))
        fresh.replace(folder / "run.json")

    def _write_secrets(self, folder: Path, secrets: Mapping[str, str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        if not secrets:
            return
        folder.mkdir(mode=0o700)
        for name, value in secrets.items():
            file = folder / name
            file.touch(mode=0o600)
            file.write_text(value)

    def _spawn(self, folder: Path, launch: Launch) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C, a hang-up or the end of the daemon's group does not reach it.
        command = [sys.executable, "-I", "-S", node_launch.__file__, str(folder), launch.cwd, *launch.argv]
        return subprocess.Popen(
            command,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def _start_writer(self, live: _Live) -> None:
        live.writer = subprocess.Popen(
            [sys.executable, "-I", "-S", node_writer.__file__, str(live.folder), str(self._log_bytes)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def _prune(self) -> None:
        """Remove the oldest folders of ended runs beyond the number that is kept."""
        ended = [f for f in self.folder.iterdir() if f.is_dir() and free(f / "lock")]
        busy = {live.folder for live in self._live.values()}
        ended = sorted((f for f in ended if f not in busy), key=lambda f: f.stat().st_mtime)
        for folder in ended[: max(0, len(ended) - self._keep)]:
            shutil.rmtree(folder, ignore_errors=True)


def _incarnation(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "run.json").read_text())["incarnation"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
