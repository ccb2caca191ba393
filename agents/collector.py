"""The agent's end of the sample socket: drains datagrams, adds them up over the agent's life, keeps the job's position.

A round is counted by its own number, so a late datagram of an old round goes to that round. What comes from the socket
is untrusted: a datagram that is no sample, or of a worker that does not exist, is counted and skipped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from heet_elastic.agents.aggregate import RoundPlan, add_cells, features, round_cell, round_progress
from heet_elastic.agents.messages import (
    ENV_AGENT_PID,
    ENV_CONFIGURATION,
    ENV_ROUND,
    ENV_SOCKET,
    MAX_BYTES,
    SampleMessage,
    unpack,
)
from heet_elastic.errors import UsageError
from heet_elastic.model import CellCounters, Configuration, RoundProgress, SampleRecord
from heet_elastic.predictor.samples import fold, start_of

FOLDER_PREFIX = "heet-sample-"
MAX_PATH_BYTES = 107
"""Longest path of a Unix socket (108 with the final zero byte)."""
MAX_PER_POLL = 1024
KEPT_ROUNDS = 16
"""Rounds that a record lists one by one; older ones live on in the totals and in where the oldest listed began."""
MAX_PROBLEMS = 4


class Collector:
    """Collects the samples of one torchrun process's workers. Not thread-safe: its owner calls it under one lock."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._folder: Path | None = None
        self._environment: dict[str, str] = {}
        self._plans: dict[int, RoundPlan] = {}
        self._messages: dict[int, dict[int, SampleMessage]] = {}
        self._round = 0
        self._old_cells: tuple[CellCounters, ...] = ()
        self._old_rounds: tuple[RoundProgress, ...] = ()
        self._problems: list[str] = []
        self.received = 0
        self.skipped = 0

    def open(self) -> Mapping[str, str]:
        """Bind the socket; the environment that workers need. UsageError where no folder for it can be made."""
        self._folder, self._socket = _bind()
        self._environment = {ENV_SOCKET: str(self._folder / "s"), ENV_AGENT_PID: str(os.getpid())}
        return dict(self._environment)

    def round_environment(
        self, round_: int, configuration: Configuration | None, local_workers: int
    ) -> Mapping[str, str]:
        """Count for this round from now on (None = mixed types: fills no cell); its workers' whole environment."""
        self._round = round_
        self._plans[round_] = RoundPlan(round_, configuration, local_workers)
        self._messages[round_] = {}
        for old in sorted(self._plans)[:-KEPT_ROUNDS]:
            self._retire(old)
        c = configuration
        where = "mixed" if c is None else f"{c.workers}/{c.hosts}/{c.host_type}"
        return {**self._environment, ENV_ROUND: str(round_), ENV_CONFIGURATION: where}

    def _retire(self, round_: int) -> None:
        plan, messages = self._plans.pop(round_), list(self._messages.pop(round_).values())
        cell = round_cell(plan, messages)
        self._old_cells = add_cells([*self._old_cells, *([cell] if cell else [])])
        # Kept as one round that stands for all before it: its own steps, begun where the earlier ones had led.
        self._old_rounds = _last_of((*self._old_rounds, round_progress(plan, messages)))

    def fileno(self) -> int:
        """Descriptor of the socket, for a selector; -1 when closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def poll(self) -> bool:
        """Take what has arrived, without blocking and at most MAX_PER_POLL datagrams. True if a sample was new."""
        new = False
        for _ in range(MAX_PER_POLL):
            if self._socket is None:
                break
            try:
                datagram = self._socket.recv(MAX_BYTES + 1)
            except OSError:  # BlockingIOError: drained
                break
            new = self._take(datagram) or new
        return new

    def _take(self, datagram: bytes) -> bool:
        try:
            message = unpack(datagram)
        except ValueError:
            self.skipped += 1
            return False
        plan = self._plans.get(message.round)
        if plan is None or message.local_rank >= plan.local_workers:
            self.skipped += 1
            return False
        self.received += 1
        if message.problem and message.problem not in self._problems[-MAX_PROBLEMS:]:
            self._problems.append(message.problem)
        workers = self._messages[message.round]
        known = workers.get(message.local_rank)
        if known is not None and known.at_s > message.at_s:
            return False
        workers[message.local_rank] = message
        return True

    def steps(self) -> int:
        """Optimizer steps that the slowest local worker has made in this round (0 = somebody has made none yet)."""
        plan = self._plans.get(self._round)
        messages = self._messages.get(self._round, {})
        if plan is None or len(messages) < plan.local_workers:
            return 0
        return min(m.steps for m in messages.values())

    def record(self, agent: str) -> SampleRecord:
        """Everything counted over this agent's life, as it is stored for the coordinator."""
        rounds = [(self._plans[r], list(self._messages[r].values())) for r in sorted(self._plans)]
        cells = [cell for plan, messages in rounds if (cell := round_cell(plan, messages))]
        own = tuple(round_progress(plan, messages) for plan, messages in rounds)
        listed = _kept((*self._old_rounds, *own))
        latest = next((f for _, messages in reversed(rounds) if (f := features(messages))), None)
        return SampleRecord(
            agent=agent,
            round=self._round,
            cells=add_cells([*self._old_cells, *cells]),
            progress=fold(listed),
            features=latest,
            datagrams=self.received,
            rounds=listed,
            problems=tuple(self._problems[-MAX_PROBLEMS:]),
        )

    def close(self) -> None:
        """Remove socket and folder. Idempotent; never raises."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _last_of(rounds: tuple[RoundProgress, ...]) -> tuple[RoundProgress, ...]:
    """The last round that made steps, alone, with the position at which it began."""
    stepping = [r for r in rounds if r.steps > 0]
    if not stepping:
        return ()
    before, last = fold(stepping[:-1]), stepping[-1]
    start, samples, _ = start_of(before, last, resumed=len(stepping) > 1)
    return (replace(last, start_steps=start, start_samples=samples),)


def _kept(rounds: tuple[RoundProgress, ...]) -> tuple[RoundProgress, ...]:
    """Rounds without anything in them say nothing, and would only make the record longer."""
    return tuple(r for r in rounds if r.steps > 0 or r.loads or r.done is not None)


def _bind() -> tuple[Path, socket.socket]:
    """A bound socket in a folder of our own (mode 0700). The usual temporary folder may have too long a name."""
    tried = []
    for base in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/dev/shm"]):  # noqa: S108  (mkdtemp below)
        folder: Path | None = None
        endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            _sweep(Path(base))
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=base))
            path = str(folder / "s")
            if len(os.fsencode(path)) > MAX_PATH_BYTES:
                raise OSError(errno.ENAMETOOLONG, "longer than a socket's path may be")
            endpoint.bind(path)
            endpoint.setblocking(False)
        except OSError as e:
            endpoint.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            tried.append(f"{base} ({e.strerror or e})")
        else:
            return folder, endpoint
    raise UsageError(f"no folder for the sample socket: tried {', '.join(tried)}. Set TMPDIR to a writable, short path")


def _sweep(base: Path) -> None:
    """Remove what killed agents of this user left behind: folders whose socket refuses, so nobody holds it."""
    for folder in sorted(base.glob(f"{FOLDER_PREFIX}*"))[:64]:
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                if probe.connect_ex(str(folder / "s")) == errno.ECONNREFUSED:
                    shutil.rmtree(folder, ignore_errors=True)
