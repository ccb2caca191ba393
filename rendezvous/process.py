"""Everything that one torchrun process opens for its rendezvous: store, locks, sampler, host record, member thread."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heet_elastic.agents.collector import Collector
from heet_elastic.agents.guard import DeviceGuard
from heet_elastic.agents.health import HostMonitor
from heet_elastic.agents.hosts import HostSettings, check_workers, monitor_host, probe_host
from heet_elastic.agents.locks import lock_dir
from heet_elastic.agents.node_records import ENV_RUN
from heet_elastic.agents.visible import worker_environment
from heet_elastic.errors import StoreUnavailableError, WaitTimeoutError
from heet_elastic.model import Allocation
from heet_elastic.rendezvous.member import Member
from heet_elastic.rendezvous.settings import RendezvousSettings, asked_spec
from heet_elastic.rendezvous.source import MirroredWorld
from heet_elastic.rendezvous.values import Local, ProtocolSettings
from heet_elastic.store.api import Store
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keys import Keys

FIRST_CONTACT_S = 5.0
"""How long a first answer of etcd is awaited where no `join_timeout` was given: a wrong address is told at once."""


@dataclass(frozen=True, slots=True)
class Process:
    """The parts, opened. `close` ends them in the right order."""

    agent: str
    address: str
    guard: DeviceGuard
    member: Member
    source: MirroredWorld
    store: Store
    health: HostMonitor

    def address_for(self, allocation: Allocation) -> str:
        """The address under which the round's other members reach this one.

        An agent beside etcd is found through loopback; that address must not be told to members on other machines.
        """
        others = [self.member.address_of(m.agent) for m in allocation.members if m.agent != self.agent]
        distant = [a for a in others if a and not _loopback(a)]
        return local_address(distant[0], 1) if _loopback(self.address) and distant else self.address

    def device_environment(self, devices: Sequence[str]) -> Mapping[str, str]:
        """What workers inherit about their devices; `HEET_DEVICES` lists them all, CPU slots too."""
        return {**worker_environment(devices), "HEET_DEVICES": ",".join(devices)}

    def close(self) -> None:
        """Last words, lease back, locks back, connections closed."""
        self.member.close()
        self.health.close()
        self.guard.close()
        self.source.close()
        self.store.close()


def open_process(
    settings: RendezvousSettings,
    nproc: int,
    max_restarts: int,
    entrypoint: Any,
    args: Sequence[Any],
    virtual_local_rank: bool,
    say: Callable[[str], None],
) -> Process:
    """Open everything but the member's thread. Raises the errors of heet_elastic.errors, leaving nothing open."""
    keys = Keys(settings.prefix)
    endpoints = parse_endpoints(settings.endpoint)
    incarnation = submitted_run(settings.job, os.environ)
    asked = asked_spec(
        settings,
        nproc=nproc,
        script=script_name(entrypoint, args),
        incarnation=incarnation or uuid.uuid4().hex[:12],
        user=_user(),
        origin=os.environ.get("SLURM_JOB_ID", ""),
    )
    asked = replace(asked, submitted=incarnation is not None)
    agent = uuid.uuid4().hex[:12]
    folder = lock_dir(os.environ)
    store = EtcdStore(
        EtcdSettings(
            endpoints=endpoints,
            cacert=settings.cacert,
            cert=settings.cert,
            key=settings.key,
            user=settings.user,
            password_file=settings.password_file,
            store_id_key=keys.store_id,
        )
    )
    source = MirroredWorld(store, keys, settings.job)
    try:
        _reach(store, source, settings, say)
        here = HostSettings.from_environment(os.environ, nproc=nproc)
        address = settings.local_addr or here.address or local_address(endpoints[0].host, endpoints[0].port)
        here = replace(here, address=address)
        host = probe_host(here, agent)
        check_workers(host, nproc, virtual_local_rank)
    except BaseException:
        source.close()
        store.close()
        raise
    local = Local(agent, host.host, host.address or address, os.getpid(), asked, nproc, max_restarts)
    guard = DeviceGuard(folder, f"job {settings.job}, agent {agent}, pid {os.getpid()}")
    collector = Collector()
    collector.open()
    protocol = ProtocolSettings(
        ttl_s=settings.ttl_s,
        acknowledge_s=settings.acknowledge_timeout,
        self_formed=settings.self_formed,
        fence_s=settings.fence_time_s,
    )
    health = monitor_host(here, host)
    health.start()
    member = Member(settings, protocol, store, keys, source, guard, collector, health, local, say)
    return Process(agent, local.address, guard, member, source, store, health)


def _reach(store: EtcdStore, source: MirroredWorld, settings: RendezvousSettings, say: Callable[[str], None]) -> None:
    """First contact with etcd, within `join_timeout` where that was given, else a few seconds."""
    patience_s = settings.join_timeout if settings.join_timeout_given else FIRST_CONTACT_S
    deadline = time.monotonic() + patience_s
    told, pause_s = False, 0.1
    while True:
        try:
            store.connect()
            source.start()
            return
        except StoreUnavailableError as e:
            if time.monotonic() + pause_s > deadline:
                raise WaitTimeoutError(
                    f"etcd at {settings.endpoint} did not answer within {patience_s:g} s: {e} (check "
                    f"--rdzv-endpoint; to wait longer, give --rdzv-conf join_timeout=SECONDS)"
                ) from e
            if not told:
                told = True
                say(f"etcd at {settings.endpoint} does not answer yet: {e}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 1.0)


def submitted_run(job: str, environ: Mapping[str, str]) -> str | None:
    """The run of `job` for which a heet-agent started this torchrun (`agents.node_command`); None = a person did."""
    incarnation, _, name = environ.get(ENV_RUN, "").partition(" ")
    return incarnation if incarnation and name == job else None


def local_address(towards: str, port: int) -> str:
    """Numeric address of the interface that leads to `towards` (nothing is sent)."""
    for family, kind, proto, _, where in socket.getaddrinfo(towards, port or 1, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect(where)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def script_name(entrypoint: Any, args: Sequence[Any]) -> str:
    """Basename of the training script (or name of the function) that the workers run."""
    if callable(entrypoint):
        return str(getattr(entrypoint, "__qualname__", "function"))
    words = [str(a) for a in args]
    if words and words[0] == "-u":
        words = words[1:]
    if "python" in Path(str(entrypoint)).name and words:
        return Path(words[1]).name if words[0] == "-m" and len(words) > 1 else Path(words[0]).name
    return Path(str(entrypoint)).name


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
