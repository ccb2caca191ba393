"""A cluster of pretend hosts on this machine, for tests that need real processes.

    with Cluster(tmp_path) as lab:                      # etcd runs
        lab.start_coordinator()
        a = lab.torchrun(host="a", job="j", nnodes="1:3")
        lab.wait_step("j", world=1, timeout_s=20)
        b = lab.torchrun(host="b", job="j", nnodes="1:3")
        lab.wait_step("j", world=2, timeout_s=20)
        killed = b.crash_now()
        lab.wait_step("j", world=1, after=killed + 1, timeout_s=20)

Each pretend host is a torchrun with its own `HEET_HOST` and lock folder. At the end everything is asked to end, and a
process that outlives the torchrun that it belonged to fails the test (unless that torchrun was killed with it).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from heet_elastic.model import AgentRecord, JobView, Snapshot
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode
from heet_elastic.store.snapshot import SnapshotDecoder
from tests.checkout import ROOT, announce_entry_points
from tests.integration.etcd import Etcd
from tests.integration.processes import Proc, crowding, ended_by_itself, new_mark, wait_until

LAB_WORKER = Path(__file__).with_name("lab_worker.py")
FOREIGN = ("HEET_", "LAB_", "PET_", "TORCHELASTIC_", "MASTER_", "SLURM_", "CUDA_VISIBLE")
"""Variables of our own environment that no process of a test may see."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a lab worker. `t` is monotonic and comparable with `time.monotonic()` of the test."""

    t: float
    host: str
    kind: str
    fields: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        """`event.rank`, `event.world`, `event.step`, ... as the worker wrote them."""
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"{self.kind} has no field {name!r}: {dict(self.fields)}") from None


@dataclass
class Agent(Proc):
    """A torchrun on a pretend host."""

    host: str = ""
    job: str = ""
    crashed: bool = False

    def crash_now(self) -> float:
        """End the host (torchrun and its workers, SIGKILL); the monotonic time right before."""
        at = time.monotonic()
        self.crashed = True
        self.crash()
        return at


@dataclass
class Cluster:
    """See the module. `conf` goes into every `--rdzv-conf` of the heet backend."""

    folder: Path
    conf: Mapping[str, object] = field(default_factory=lambda: {"ttl_s": 2})
    etcd: Etcd = field(init=False)
    mark: str = field(default_factory=new_mark)
    procs: list[Proc] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.etcd = Etcd(self.folder / "etcd")

    def __enter__(self) -> Cluster:
        self.etcd.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        orphans = self.shut_down()
        if kind is not None or orphans:
            for proc in self.procs:
                print(f"--- end of {proc.log}\n{proc.tail()}")
        if orphans and kind is None:
            raise AssertionError(f"processes outlive the command that started them: {orphans}")

    # ------------------------------------------------------------------ starting

    @property
    def endpoint(self) -> str:
        """Of etcd, as `--rdzv-endpoint` wants it."""
        return self.etcd.endpoint

    def environment(self, **more: str) -> dict[str, str]:
        """Ours without what belongs to other launchers, with the checkout importable and one thread a process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        path = [str(ROOT), *announce_entry_points(self.folder / "metadata"), *filter(None, [kept.get("PYTHONPATH")])]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **more,
        }

    def start(self, name: str, command: Sequence[str], **env: str) -> Proc:
        """Any command of the test, with its output in `folder/logs`."""
        mark = f"{self.mark}:{len(self.procs)}:"
        log = self.folder / "logs" / f"{len(self.procs):02d}-{name}.log"
        proc = Proc.start(name, mark, command, self.environment(**env), log)
        self.procs.append(proc)
        return proc

    def start_coordinator(self, *flags: str, **env: str) -> Proc:
        """A coordinator process on our etcd."""
        command = [sys.executable, "-m", "heet_elastic.cli.coordinator", "--etcd", self.endpoint, *flags]
        return self.start("coordinator", command, **env)

    def torchrun(
        self,
        *,
        host: str,
        job: str = "j",
        nnodes: str = "1:3",
        nproc: int = 1,
        script: Path | str = LAB_WORKER,
        args: Sequence[str] = (),
        conf: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
        backend: str = "heet",
        endpoint: str | None = None,
        max_restarts: int = 0,
        lab_args: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Agent:
        """One torchrun on `host`. `args` are the script's; `lab_args` are for this host's lab workers alone."""
        settings = {**(self.conf if backend == "heet" else {}), **(conf or {})}
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *(f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint or self.endpoint}", f"--rdzv-id={job}"),
            *(f"--nnodes={nnodes}", f"--nproc-per-node={nproc}", f"--max-restarts={max_restarts}"),
            *([f"--rdzv-conf={','.join(f'{k}={v}' for k, v in settings.items())}"] if settings else []),
            *flags,
            str(script),
            *args,
        ]
        environment = self.environment(
            HEET_HOST=host,
            HEET_LOCK_DIR=str(self._host_folder(host) / "locks"),
            LAB_LOG=str(self.event_log(job)),
            LAB_ARGS=lab_args,
            **(env or {}),
        )
        number = len(self.procs)
        log = self.folder / "logs" / f"{number:02d}-torchrun-{host}.log"
        proc = Proc.start(f"torchrun on {host}", f"{self.mark}:{number}:", command, environment, log)
        agent = Agent(proc.name, proc.mark, proc.log, proc.popen, host=host, job=job)
        self.procs.append(agent)
        return agent

    # ------------------------------------------------------------------ looking

    @contextlib.contextmanager
    def store(self) -> Iterator[EtcdStore]:
        """The etcd of this test, as a store."""
        store = EtcdStore(EtcdSettings(endpoints=parse_endpoints(self.endpoint)))
        try:
            yield store
        finally:
            store.close()

    def has_record(self, host: str, job: str = "j") -> bool:
        """Whether an agent of `job` on `host` is registered."""
        with self.store() as store:
            entries = store.read(Keys().agents(job)).entries.values()
            return any(decode(e.key, e.value, AgentRecord).host == host for e in entries)

    def event_log(self, job: str) -> Path:
        """Where the workers of `job` write their events."""
        folder = self.folder / "events"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{job.encode().hex() or 'empty'}.jsonl"

    def events(self, job: str = "j", kind: str | None = None, after: float = 0.0, **equal: object) -> list[Event]:
        """Events of `job`, oldest first: of that kind, after that time, and with those values (host="a", world=2)."""
        return [e for e in self._all_events(job) if e.t > after and kind in (None, e.kind) and _matches(e, equal)]

    def wait_event(
        self, job: str = "j", kind: str = "STEP", after: float = 0.0, timeout_s: float = 30.0, **equal: object
    ) -> Event:
        """The first such event, waited for; no use to wait once every torchrun of the job has ended."""

        def what() -> str:
            seen = [f"{e.t:.2f} {e.host} {e.kind} {dict(e.fields)}" for e in self.events(job)[-8:]]
            ends = "\n".join(f"--- {p.name}\n{p.tail(8)}" for p in self.procs)
            return f"{kind} {equal} of job {job!r} after {after:.2f}; last events: {seen}\n{ends}"

        def found() -> list[Event]:
            running = any(p.alive for p in self.procs if isinstance(p, Agent) and p.job == job)
            events = self.events(job, kind, after, **equal)
            if not events and not running:
                raise AssertionError(f"every torchrun has ended before {what()}")
            return events

        return wait_until(found, timeout_s, what)[0]

    def wait_step(self, job: str = "j", *, world: int, after: float = 0.0, timeout_s: float = 30.0) -> Event:
        """The first training step with that world size after that time."""
        return self.wait_event(job, "STEP", after, timeout_s, world=world)

    def snapshot(self) -> Snapshot:
        """The store as the coordinator sees it, decoded."""
        keys = Keys()
        store = EtcdStore(EtcdSettings(parse_endpoints(self.endpoint)))
        try:
            return SnapshotDecoder(keys).decode(store.read(keys.root)).snapshot
        finally:
            store.close()

    def view(self, job: str = "j") -> JobView:
        """What the store says about one job; an empty view when it says nothing."""
        return self.snapshot().jobs.get(job, JobView(job))

    def _all_events(self, job: str) -> Iterator[Event]:
        log = self.event_log(job)
        for line in log.read_text().splitlines() if log.exists() else ():
            fields = json.loads(line)
            yield Event(fields.pop("t"), fields.pop("host"), fields.pop("kind"), fields)

    # ------------------------------------------------------------------ ending

    def shut_down(self, grace_s: float = 20.0) -> dict[int, str]:
        """End everything; return the processes that outlived the command that they belonged to."""
        agents = [p for p in self.procs if isinstance(p, Agent)]
        for agent in agents:
            if agent.alive:
                agent.thaw()
                agent.terminate()
        deadline = time.monotonic() + grace_s * crowding()
        orphans = {}
        for agent in agents:
            try:
                agent.wait(max(0.1, deadline - time.monotonic()))
            except AssertionError:
                orphans.update({agent.pid: f"{agent.name} does not end on SIGTERM"})
                agent.crash()
            left = ended_by_itself(agent.mark, 5.0)
            orphans.update({} if agent.crashed else left)
        for proc in self.procs:
            if proc not in agents:
                proc.end()
        self.etcd.kill()
        ended_by_itself(self.mark, 5.0)
        return orphans

    def _host_folder(self, host: str) -> Path:
        folder = self.folder / "hosts" / (host.encode().hex() or "empty")
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        return folder


def _matches(event: Event, equal: Mapping[str, object]) -> bool:
    host = equal.get("host", event.host)
    return host == event.host and all(event.fields.get(k) == v for k, v in equal.items() if k != "host")
