"""What `heet doctor` looks at. Every check gives findings: what was seen, and what to do where something is wrong.

A check never raises: what it could not find out is a finding as well.
"""

from __future__ import annotations

import contextlib
import email.utils
import os
import platform
import resource
import shutil
import socket
import ssl
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Literal

from heet_elastic.agents import locks
from heet_elastic.agents.guard import DeviceGuard
from heet_elastic.agents.hosts import HostSettings, examine_host
from heet_elastic.agents.network import local_address, network_class
from heet_elastic.cli.access import Access, open_store
from heet_elastic.errors import HeetError, RecordError
from heet_elastic.model import LeaderRecord
from heet_elastic.store import records
from heet_elastic.store.api import Committed, Delete, Put, Store, absent

State = Literal["ok", "warning", "problem"]

_TRIED_TORCH = "2.13"
_CLOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `fix`: what a person can do."""

    state: State
    what: str
    text: str
    fix: str = ""


def examine(access: Access, settings: HostSettings) -> list[Finding]:
    """All checks, in the order in which their problems should be mended."""
    found: list[Finding] = []
    for check in (
        check_versions,
        lambda: check_etcd(access),
        lambda: check_address(access),
        lambda: check_host(settings),
        lambda: check_locks(settings.lock_dir),
        check_limits,
    ):
        found += _careful(check)
    return found


def _careful(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except HeetError as e:
        return [Finding("problem", "heet", str(e))]


def check_versions() -> Iterable[Finding]:
    """Python, the packages that heet works with, and whether torchrun will find the plug-in."""
    yield Finding("ok", "python", platform.python_version())
    version = _version("torch")
    if version is None:
        yield Finding("warning", "torch", "not installed here", "hosts that train need it: pip install 'torch>=2.13'")
    elif not version.startswith(_TRIED_TORCH):
        text = f"{version}; heet was tried with {_TRIED_TORCH}"
        yield Finding("warning", "torch", text, "if a start fails with a missing private name, use that version")
    else:
        yield Finding("ok", "torch", version)
    for name in ("etcd3", "grpcio", "protobuf", "psutil", "nvidia-ml-py"):
        version = _version(name)
        if version is None:
            yield Finding("problem", name, "not installed", f"pip install {name}")
        elif name == "etcd3" and version != "0.12.0":
            yield Finding("problem", name, f"{version}: heet reads the messages of 0.12.0", "pip install etcd3==0.12.0")
        else:
            yield Finding("ok", name, version)
    if _version("pynvml") is not None:
        text = "this deprecated package brings a module of the same name as nvidia-ml-py's"
        yield Finding("warning", "pynvml", text, "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py")
    if any(e.name == "heet" for e in metadata.entry_points(group="torchrun.handlers")):
        yield Finding("ok", "plug-in", "torchrun of this environment knows --rdzv-backend=heet")
    else:
        fix = "pip install heet-elastic into the environment whose torchrun you use"
        yield Finding("problem", "plug-in", "torchrun of this environment does not know --rdzv-backend=heet", fix)


def check_etcd(access: Access) -> Iterable[Finding]:
    """Whether etcd answers, how fast, whether we may write below the prefix, who leads, and what time it is there."""
    try:
        store = open_store(access)
    except HeetError as e:
        fix = "give its endpoints with --etcd HOST:PORT,... or HEET_ETCD; `heet-coordinator` starts one of its own"
        yield Finding("problem", "etcd", str(e), fix)
        return
    with contextlib.closing(store):
        try:
            status = store.status()
            yield _etcd_version(status.version, access.etcd)
            yield _etcd_speed(store, access)
            yield _etcd_writes(store, access)
            yield _leader(store, access)
        except HeetError as e:
            yield Finding("problem", "etcd", str(e), "see the message; `etcdctl endpoint health` shows more")
    yield _clock(access)


def _etcd_version(version: str, where: str) -> Finding:
    text = f"{version} at {where}"
    numbers = tuple(int(n) for n in version.split(".")[:3] if n.isdigit())
    if (3, 5, 0) <= numbers < (3, 5, 6) or numbers < (3, 4, 22):
        return Finding(
            "warning", "etcd", text, "data can be lost when this version is killed: use >= 3.4.22 or >= 3.5.6"
        )
    return Finding("ok", "etcd", text)


def _etcd_speed(store: Store, access: Access) -> Finding:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        store.read(access.keys.leader)
        times.append(time.perf_counter() - start)
    text = f"a read takes {median(times) * 1000:.1f} ms"
    if median(times) > 0.1:
        return Finding("warning", "etcd speed", text, "rounds wait for etcd: run it near the hosts, on a fast disk")
    return Finding("ok", "etcd speed", text)


def _etcd_writes(store: Store, access: Access) -> Finding:
    """Write a key that vanishes with a lease of a few seconds, and take it away again."""
    key = f"{access.keys.root}doctor/{uuid.uuid4().hex}"
    lease = store.lease(5.0)
    try:
        written = store.txn([absent(key)], [Put(key, b"", lease.id)])
        store.txn([], [Delete(key)])
    finally:
        lease.revoke()
    if not isinstance(written, Committed):
        return Finding("problem", "etcd role", f"a write below {access.keys.root} was not applied", "try again")
    return Finding("ok", "etcd role", f"may read and write below {access.keys.root}")


def _leader(store: Store, access: Access) -> Finding:
    entry = store.read(access.keys.leader).entries.get(access.keys.leader)
    if entry is None:
        text = "none leads: jobs form rounds by themselves, or wait where one has led before"
        return Finding("warning", "coordinator", text, "start heet-coordinator on one or two hosts")
    try:
        leader = records.decode(entry.key, entry.value, LeaderRecord)
    except RecordError as e:
        return Finding("problem", "coordinator", str(e), "use the same version of heet everywhere")
    return Finding("ok", "coordinator", f"pid {leader.pid} on {leader.host} leads, policy {leader.policy}")


def _clock(access: Access) -> Finding:
    """This host's clock against etcd's. heet compares no clocks; certificates, logs and people do."""
    try:
        apart = clock_difference_s(access.etcd.split(",")[0].strip(), access)
    except (OSError, ValueError) as e:
        return Finding("warning", "clock", f"etcd's clock cannot be seen ({e})", "compare `date` on the hosts")
    if abs(apart) <= _CLOCK_S:
        return Finding("ok", "clock", f"within {_CLOCK_S:.0f} s of etcd's host")
    text = f"{abs(apart):.0f} s {'behind' if apart > 0 else 'ahead of'} etcd's host"
    fix = "heet does not compare clocks, but certificates and logs suffer: switch on chrony or systemd-timesyncd"
    return Finding("warning", "clock", text, fix)


def clock_difference_s(endpoint: str, access: Access) -> float:
    """Seconds by which etcd's host is ahead of this one, from the Date of an answer (whole seconds)."""
    context = None
    scheme, separator, rest = endpoint.partition("://")
    if not separator:
        scheme, rest = ("https" if access.cacert or access.cert else "http"), endpoint
    if scheme == "https":
        context = ssl.create_default_context(cafile=access.cacert)
        if access.cert and access.key:
            context.load_cert_chain(access.cert, access.key)
    before = time.time()
    request = f"{scheme}://{rest}/version"
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:  # noqa: S310  (an etcd endpoint)
        date = answer.headers["Date"]
    local = (before + time.time()) / 2
    if date is None:
        raise ValueError("its answer has no date")
    return email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - local


def check_address(access: Access) -> Iterable[Finding]:
    """The address that this host would give to others, and whether a port can be opened there."""
    endpoint = access.etcd.split(",")[0].partition("://")[2] or access.etcd.split(",")[0]
    etcd_host, _, port = endpoint.strip().rpartition(":")
    number = int(port) if port.isdigit() else 2379
    address = local_address((etcd_host.strip("[]"), number)) if etcd_host else local_address()
    text = f"{address} on the route to etcd, network {network_class(address)}"
    if address.startswith("127.") or address == "::1":
        fix = "fine on one host; agents on others need an etcd address that all hosts reach"
        yield Finding("warning", "address", text, fix)
    else:
        yield Finding("ok", "address", text)
    try:
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as server:
            with socket.create_connection(server.getsockname()[:2], timeout=5):
                yield Finding("ok", "ports", "a free TCP port can be opened and reached at that address")
    except OSError as e:
        fix = "rounds open a free TCP port at this address: correct HEET_ADDRESS or --local-addr, or the firewall"
        yield Finding("problem", "ports", f"no TCP port at {address} can be opened and reached: {e}", fix)


def check_host(settings: HostSettings) -> Iterable[Finding]:
    """Devices, visible ones, their state."""
    try:
        found = examine_host(settings, agent="doctor")
    except HeetError as e:
        yield Finding("problem", "devices", str(e))
        return
    usable = [g for g in found.record.gpus if g.unusable is None]
    types = sorted({g.host_type for g in usable})
    text = f"{len(usable)} of {len(found.record.gpus)} usable ({', '.join(types) or 'none'}), from {found.source}"
    yield Finding("ok" if usable else "problem", "devices", text)
    for gpu in found.record.gpus:
        if gpu.unusable is not None:
            yield Finding("warning", gpu.uuid, gpu.unusable)
    if found.hidden:
        text = f"{len(found.hidden)} devices of this host are not visible to this process"
        yield Finding("ok", "visible", text, "CUDA_VISIBLE_DEVICES, Slurm or the container decides that")
    for problem in found.problems:
        yield Finding("warning", "probe", problem)


def check_locks(folder: Path) -> Iterable[Finding]:
    """Whether device locks work here, and the reaper that guards them."""
    name = f"doctor-{os.getpid()}"
    guard = DeviceGuard(folder, f"heet doctor, pid {os.getpid()}")
    try:
        busy = guard.acquire([name], 0.0, lambda: True)
        guard.close()
    except HeetError as e:
        yield Finding("problem", "locks", str(e))
        return
    locks.lock_path(folder, name).unlink(missing_ok=True)
    if busy:
        yield Finding("problem", "locks", busy[0].holder)
    else:
        text = f"device locks work in {folder}"
        yield Finding("ok", "locks", text, "containers that share GPUs must share this folder")


def check_limits() -> Iterable[Finding]:
    """Open files and shared memory: what NCCL and DataLoader workers run out of first."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < 4096:
        yield Finding("warning", "open files", f"limit {files}", "ulimit -n 65536 before torchrun")
    with contextlib.suppress(OSError):
        size = shutil.disk_usage("/dev/shm").total  # noqa: S108  (its size, no file)
        if size < 1 << 30:
            fix = "DataLoader workers and NCCL need it: docker run --shm-size=8g (or an emptyDir of medium Memory)"
            yield Finding("warning", "shared memory", f"{size >> 20} MiB in all", fix)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
