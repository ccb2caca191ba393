"""The per-host daemon: registers the host, follows the store, and keeps the torchruns that `node_reconcile` asks for.

Its own end disturbs nobody: torchruns have sessions, leases and locks of their own, and the next daemon finds them.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from heet_elastic.agents import locks, node_command
from heet_elastic.agents.hosts import HostSettings, monitor_host, probe_host
from heet_elastic.agents.node_api import LogServer
from heet_elastic.agents.node_command import Here
from heet_elastic.agents.node_picture import Picture
from heet_elastic.agents.node_reconcile import (
    Close,
    GiveUp,
    Instruction,
    Kill,
    Memory,
    NodeTimes,
    Report,
    Start,
    Terminate,
    reconcile,
)
from heet_elastic.agents.node_records import AGENT_PREFIX, JobCommand, NodeRecord, StartReport
from heet_elastic.agents.node_runs import Runs
from heet_elastic.errors import HeetError, StoreUnavailableError, UsageError
from heet_elastic.model import HostRecord, Result
from heet_elastic.store.api import Committed, Compare, Delete, Lease, Operation, Put, Store, absent
from heet_elastic.store.keys import Keys, encode_id
from heet_elastic.store.records import encode

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the host's devices and locks are looked at."""
TICK_S = 0.5
"""How often torchruns are looked at; what the store says is followed at once."""
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one daemon. listen: "" = the host's address; port 0 = a free one. keep_runs: ended runs with logs."""

    state: Path
    user: str
    ttl_s: float = 10.0
    listen: str = ""
    port: int = 0
    log_bytes: int = 64 << 20
    keep_runs: int = 100
    times: NodeTimes = field(default_factory=NodeTimes)


class Node:
    """One daemon. `run` blocks until `stop`; the constructor does no I/O."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        settings: NodeSettings,
        host: HostSettings,
        here: Here,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._keys, self._settings, self._host_settings = store, keys, settings, host
        self._here, self._clock = here, clock
        self.agent = f"{AGENT_PREFIX}{settings.user}:{secrets.token_hex(4)}"
        self._runs = Runs(settings.state, settings.log_bytes, settings.keep_runs)
        self._picture = Picture(store, keys, host.host)
        self._memory: Memory = {}
        self._commands: dict[str, JobCommand] = {}
        self._lease: Lease | None = None
        self._written: tuple[int, HostRecord] | None = None
        self._record: HostRecord | None = None
        self._node: NodeRecord | None = None
        self._reported: set[str] = set()
        self._next_look = 0.0
        self._said = ""
        self._ending = threading.Event()
        self._draining = False

    def stop(self, drain: bool = True) -> None:
        """Make `run` end; from a signal handler or another thread. drain: end the torchruns first, each with grace.

        A second call leaves at once, and torchruns run on.
        """
        if self._draining or not drain:
            self._ending.set()
        self._draining = True
        self._picture.wake()

    def run(self) -> None:
        """Serve this host. Raises UsageError where the folders, the host or its name are taken or wrong."""
        locks.prepare(self._host_settings.lock_dir)  # else jobs would be placed here that can take no device
        self._runs.open()
        record = probe_host(self._host_settings, self.agent)
        self._record = record
        self._here = replace(self._here, devices=len(record.gpus))
        monitor = monitor_host(self._host_settings, record)
        token = secrets.token_urlsafe(24)
        address = self._settings.listen or record.address
        server = LogServer(address, self._settings.port, token, record.host, self._runs.folder_of)
        self._node = NodeRecord(record.host, self.agent, address, server.port, token, self._settings.user, os.getpid())
        try:
            self._picture.start(self._ending)
            self._take_place()
            server.start()
            monitor.start()
            log.info("host %s: %d devices, logs at port %d", record.host, len(record.gpus), server.port)
            while not self._ending.is_set():
                try:
                    if self._clock() >= self._next_look:
                        self._next_look = self._clock() + LOOK_S
                        self._record = self._with_locks(monitor.current())
                    sleep_s = self._cycle()
                except StoreUnavailableError as e:
                    self._say(f"etcd does not answer: {e}")
                    sleep_s = RETRY_S
                self._picture.wait(sleep_s)
        finally:
            self._leave()
            server.close()
            monitor.close()
            self._runs.close()

    # ------------------------------------------------------------------ one look

    def _cycle(self) -> float:
        """Look, decide, do; how long to sleep unless something changes."""
        connected = self._picture.connected
        if connected and not self._draining:
            self._keep_registered()
        runs = self._runs.look()
        jobs = self._picture.seen({*runs, *self._memory}, {j: self._runs.identity(j) for j in runs}, self._memory)
        step = reconcile(self._clock(), connected, jobs, runs, self._memory, self._settings.times, self._draining)
        self._memory = step.memory
        for instruction in step.instructions:
            self._apply(instruction)
        self._runs.keep_writers()
        if connected:
            self._mend(runs, jobs)
        if self._draining and not any(r.alive for r in self._runs.look().values()):
            self._ending.set()
        return min(step.wake_in_s, TICK_S) if not self._ending.is_set() else 0.0

    def _apply(self, instruction: Instruction) -> None:
        match instruction:
            case Start(job):
                self._start(job)
            case Terminate(job, why):
                log.info("job %s: its torchrun is asked to end: %s", job, why)
                self._runs.send(job, signal.SIGTERM)
            case Kill(job, why):
                log.warning("job %s: its torchrun is killed: %s", job, why)
                self._runs.send(job, signal.SIGKILL)
            case Report(job, failures, code):
                self._report(job, failures, code)
            case GiveUp(job):
                self._give_up(job)
            case Close(job):
                self._bury(job)
                self._runs.drop(job)

    def _start(self, job: str) -> None:
        spec, command = self._picture.submitted(job)
        if spec is None or command is None:
            self._say(f"job {job} is wanted here, but its command is not in etcd (or cannot be read): submit it again")
            return
        self._commands[job] = command
        log.info("job %s: starting its torchrun", job)
        self._runs.start(node_command.launch(spec, command, self._runs.folder_of(job), self._here))

    def _report(self, job: str, failures: int, code: int | None) -> None:
        self._runs.settle(job)
        words = self._runs.words(job)
        how = "ended" if code is None else f"ended with {code}"
        log.warning("job %s: its torchrun %s (%d in a row): %s", job, how, failures, words.splitlines()[-1:] or "")
        track = self._memory.get(job)
        if track is None or self._lease is None:
            return
        report = StartReport(self._host_settings.host, track.incarnation, failures, code, words)
        put = Put(self._keys.start(job, report.host), encode(report), self._lease.id)
        self._txn([], [put])
        self._reported.add(job)

    def _bury(self, job: str) -> None:
        """Remove the records of a torchrun that is dead: others need not wait for its lease to run out."""
        identity = self._runs.identity(job)
        agent = None if identity is None else self._picture.agent_of(job, identity[0])
        if agent is not None:
            host = self._host_settings.host
            self._txn([], [Delete(self._keys.agent(job, agent)), Delete(self._keys.host(host, agent))])

    def _give_up(self, job: str) -> None:
        spec = self._picture.versioned_spec(job)
        if spec is None:
            return
        words = self._runs.words(job)
        reason = f"torchrun cannot be started on {self._host_settings.host} nor elsewhere: {words or 'it says nothing'}"
        result = Result("failed", reason, spec.record.incarnation, exit_code=1)
        compares = [absent(self._keys.result(job)), Compare(self._keys.spec(job), "mod_revision", spec.mod_revision)]
        if self._txn(compares, [Put(self._keys.result(job), encode(result))]):
            log.warning("job %s failed: %s", job, reason)

    def _mend(self, runs: Mapping[str, object], jobs: Mapping[str, object]) -> None:
        """Withdraw reports that are no longer true; put commands back that an emptied store has lost."""
        for job in sorted(self._reported):
            track = self._memory.get(job)
            if track is None or track.registered or job not in jobs:
                self._txn([], [Delete(self._keys.start(job, self._host_settings.host))])
                self._reported.discard(job)
        for job in runs:
            spec, command = self._picture.submitted(job)
            if command is not None:
                self._commands[job] = command
                continue
            mine = self._commands.get(job)
            if spec is not None and mine is not None and mine.incarnation == spec.incarnation:
                self._txn([absent(self._keys.command(job))], [Put(self._keys.command(job), encode(mine))])
        for job in self._commands.keys() - runs.keys():
            del self._commands[job]

    # ------------------------------------------------------------------ this host

    def _with_locks(self, record: HostRecord) -> HostRecord:
        folder = self._host_settings.lock_dir
        return replace(record, locked=tuple(g.uuid for g in record.gpus if locks.is_taken(folder, g.uuid)))

    def _take_place(self) -> None:
        """Be the only heet-agent of this host: an earlier one of this state folder is dead, another one is refused."""
        name = self._settings.state / "name"
        earlier = name.read_text().strip() if name.exists() else ""
        name.write_text(self.agent)
        host = self._host_settings.host
        if earlier:
            self._store.txn(self._picture.fence(), [Delete(self._keys.host(host, earlier))])
        deadline = self._clock() + self._settings.ttl_s + 2.0
        while others := self._others(host):
            if self._clock() > deadline:
                raise UsageError(
                    f"host {host} is served already, by {others[0]}: a host takes one heet-agent under a prefix "
                    f"(end that one, or use another --prefix for a pool of your own)"
                )
            self._ending.wait(0.2)
            if self._ending.is_set() or self._draining:
                return

    def _others(self, host: str) -> list[str]:
        prefix = f"{self._keys.hosts}{encode_id(host)}/"
        names = [n.who for key in self._store.read(prefix).entries if (n := self._keys.parse(key)) is not None]
        return sorted(n for n in names if n.startswith(AGENT_PREFIX) and n != self.agent)

    def _keep_registered(self) -> None:
        """Have a living lease, and under it this host's record and where we answer."""
        assert self._record is not None
        assert self._node is not None
        if self._lease is None or not self._lease.alive:
            self._lease = self._store.lease(self._settings.ttl_s, lambda _reason: self._picture.wake())
            self._written = None
            self._reported.clear()
        if self._written == (self._lease.id, self._record):
            return
        puts: list[Operation] = [
            Put(self._keys.host(self._record.host, self.agent), encode(self._record), self._lease.id)
        ]
        if self._written is None:
            puts.append(Put(self._keys.node(self._node.host), encode(self._node), self._lease.id))
        if self._txn([], puts):
            self._written = (self._lease.id, self._record)
            self._say("")

    def _txn(self, compares: list[Compare], operations: list[Operation]) -> bool:
        return isinstance(self._store.txn([*self._picture.fence(), *compares], operations), Committed)

    def _leave(self) -> None:
        """Give the lease back: the host is gone for the coordinator, unless a torchrun still speaks for it."""
        if self._lease is not None:
            try:
                self._lease.revoke()
            except HeetError as e:
                log.info("the lease runs out by itself: %s", e)
        self._picture.close()

    def _say(self, text: str) -> None:
        """One line when it is another one than before."""
        if text and text != self._said:
            log.warning("%s", text)
        self._said = text
