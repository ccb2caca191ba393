"""What this host offers, as the record that the coordinator reads: probed GPUs, an inventory file, or CPU slots.

A host whose GPUs cannot be asked is never taken for one without GPUs: its devices are listed as unusable, with the
reason.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import heet_elastic
from heet_elastic.agents import kernel, locks, network, probe, visible
from heet_elastic.agents.facts import GpuFacts, Snapshot
from heet_elastic.agents.health import IN_USE, HostMonitor, foreign_process
from heet_elastic.agents.inventory import ENV_INVENTORY, cpu_slots, read_inventory
from heet_elastic.agents.measured import ENV_MEASURED_LINKS, by_index, read_measured
from heet_elastic.agents.names import cpu_type, host_type, short_model
from heet_elastic.agents.topology import Links, find_links
from heet_elastic.errors import UsageError
from heet_elastic.model import Gpu, HostRecord, check_id

ENV_HOST = "HEET_HOST"
ENV_ADDRESS = "HEET_ADDRESS"
ENV_SLOTS = "HEET_SLOTS"
ENV_PROBE_TIMEOUT = "HEET_PROBE_TIMEOUT"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How to find out what this host is; made once, where a program starts.

    visible: CUDA, Slurm and container variables as they were then, before heet narrows them for workers.
    slots: CPU slots of a host without GPUs. address: "" = the one on the default route.
    """

    host: str
    lock_dir: Path
    visible: visible.Request = field(default_factory=visible.Request)
    inventory: Path | None = None
    measured_links: Path | None = None
    address: str = ""
    slots: int = 1
    probe_timeout_s: float = 30.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], nproc: int | None = None) -> HostSettings:
        """Read HEET_HOST, HEET_ADDRESS, HEET_SLOTS, HEET_INVENTORY, HEET_MEASURED_LINKS, HEET_LOCK_DIR,
        HEET_PROBE_TIMEOUT and the variables about visible devices. `nproc`: the most workers that the caller may run
        here, None = no wish. UsageError names a variable with a wrong value.
        """
        host = environ.get(ENV_HOST) or socket.gethostname()
        try:
            check_id("host name", host)
        except ValueError as e:
            raise UsageError(f"{ENV_HOST}: {e}") from e
        slots = _number(environ, ENV_SLOTS, 1, 1024)
        timeout = _number(environ, ENV_PROBE_TIMEOUT, 0.1, 3600)
        return cls(
            host=host,
            lock_dir=locks.lock_dir(environ),
            visible=visible.Request.from_environment(environ),
            inventory=_path(environ, ENV_INVENTORY),
            measured_links=_path(environ, ENV_MEASURED_LINKS),
            address=environ.get(ENV_ADDRESS, ""),
            slots=int(slots) if slots is not None else max(nproc or 1, kernel.usable_cpus()),
            probe_timeout_s=timeout if timeout is not None else 30.0,
        )


@dataclass(frozen=True, slots=True)
class HostProbe:
    """A record and what it was made from, for people (`heet probe`). `hidden`: devices this process may not use."""

    record: HostRecord
    source: str  # "inventory", "nvml", "cpu"
    snapshot: Snapshot | None = None
    links: Links | None = None
    hidden: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def probe_host(settings: HostSettings, agent: str) -> HostRecord:
    """This host's record, as process `agent` writes it. UsageError for a wrong inventory or wrong visible devices."""
    return examine_host(settings, agent).record


def examine_host(settings: HostSettings, agent: str, root: Path = Path("/")) -> HostProbe:
    """The record with everything that led to it. Takes up to `probe_timeout_s` when a driver does not answer.

    root: where /proc and /dev are looked for when NVML does not answer.
    """
    address = settings.address or network.local_address()
    record = HostRecord(
        host=settings.host,
        agent=agent,
        address=address,
        boot_id=kernel.boot_id(),
        gpus=(),
        network=network.network_class(address),
        version=heet_elastic.__version__,
    )
    if settings.inventory is not None:
        entry = read_inventory(settings.inventory).host(settings.host)
        record = replace(
            record,
            gpus=entry.gpus,
            address=settings.address or entry.address or address,
            network=entry.network or record.network,
        )
        return HostProbe(record, "inventory")
    if settings.visible.hides_everything:
        return _cpu_host(settings, record, ("CUDA_VISIBLE_DEVICES hides all GPUs: offering CPU slots",))
    snapshot = probe.take_snapshot(settings.probe_timeout_s)
    if snapshot.failure is not None:
        if snapshot.absent and not kernel.driver_present(root):
            return _cpu_host(settings, record, ())
        return _refused_host(record, snapshot, root)
    if not snapshot.gpus:
        return _cpu_host(settings, record, ())
    return _gpu_host(settings, record, snapshot)


def _cpu_host(settings: HostSettings, record: HostRecord, problems: tuple[str, ...]) -> HostProbe:
    slots = cpu_slots(settings.host, settings.slots, cpu_type(kernel.cpu_model()))
    return HostProbe(replace(record, gpus=slots), "cpu", problems=problems)


def _refused_host(record: HostRecord, snapshot: Snapshot, root: Path) -> HostProbe:
    """Devices that are here and cannot be asked: named by the kernel module where it says, else by one placeholder."""
    reason = snapshot.failure or "unknown"
    found = kernel.driver_list(root) or ((f"GPU-unreadable-{record.host}", None),)
    gpus = tuple(
        Gpu(uuid=uuid, host_type=host_type(model, None, "unknown"), model=short_model(model), unusable=reason)
        for uuid, model in found
    )
    return HostProbe(replace(record, gpus=gpus), "nvml", snapshot, problems=(reason,))


def _gpu_host(settings: HostSettings, record: HostRecord, snapshot: Snapshot) -> HostProbe:
    measured = {} if settings.measured_links is None else read_measured(settings.measured_links)
    links = find_links(snapshot, by_index(measured, snapshot))
    cards = tuple(_card(g) for g in snapshot.gpus if g.uuid is not None)
    request = settings.visible
    order = probe.cuda_order(_as_given(request), settings.probe_timeout_s) if request.asks_cuda(cards) else None
    offered = visible.select(request, cards, order)
    gpus: dict[str, Gpu] = {}
    problems = [*snapshot.problems, *links.problems]
    for facts in snapshot.gpus:
        problems += [f"GPU {facts.index}: {p}" for p in facts.problems]
        for gpu in _devices(settings, facts, links):
            if gpu.uuid in gpus:
                problems.append(f"GPU {facts.index}: its UUID {gpu.uuid} is that of another GPU as well; left out")
            elif gpu.uuid in offered or facts.uuid is None:
                gpus[gpu.uuid] = gpu
    hidden = tuple(d for c in cards for d in c.devices() if d not in offered)
    found = replace(record, gpus=tuple(gpus.values()))
    return HostProbe(found, "nvml", snapshot, links, hidden, tuple(dict.fromkeys(problems)))


def _card(facts: GpuFacts) -> visible.Card:
    instances = (visible.Instance(i.uuid, i.gpu_instance, i.compute_instance) for i in facts.instances)
    return visible.Card(
        uuid=facts.uuid or "",
        bus_id=facts.pci or f"{facts.index:x}",  # NVML numbers by bus address: the best guess without it
        model=short_model(facts.name),
        minor=facts.minor,
        mig=bool(facts.mig and facts.instances),
        instances=tuple(instances),
    )


def _as_given(request: visible.Request) -> dict[str, str | None]:
    return {visible.CUDA_VISIBLE_DEVICES: request.cuda, visible.CUDA_DEVICE_ORDER: request.order}


def _devices(settings: HostSettings, facts: GpuFacts, links: Links) -> tuple[Gpu, ...]:
    """What can be granted of one GPU: itself, or its MIG instances; with the reason when it must not be granted."""
    whole = Gpu(
        uuid=facts.uuid or f"GPU-unreadable-{settings.host}-{facts.index}",
        host_type=host_type(facts.name, facts.memory_mib, links.labels.get(facts.index, "unknown")),
        model=short_model(facts.name),
        memory_mib=facts.memory_mib,
        capability=facts.capability,
        link=links.classes.get(facts.index, "unknown"),
        numa_node=facts.numa_node,
        unusable=_unusable(facts) or _in_use(settings, facts),
    )
    if not (facts.mig and facts.instances):
        return (whole,)
    return tuple(
        replace(
            whole,
            uuid=i.uuid,
            host_type=host_type(i.name, i.memory_mib, "none"),
            model=short_model(i.name),
            memory_mib=i.memory_mib,
            link="none",
        )
        for i in facts.instances
    )


def _unusable(facts: GpuFacts) -> str | None:
    if facts.lost is not None:
        return f"NVML has lost it ({facts.lost})"
    if facts.uuid is None:
        return "its UUID cannot be read, so it cannot be given to a worker"
    if facts.mig and not facts.instances:
        return "MIG mode is on and it has no instance: make one (nvidia-smi mig -cgi ... -C) or turn MIG off"
    return None


def _in_use(settings: HostSettings, facts: GpuFacts) -> str | None:
    if facts.mig:
        return None  # the card lists the processes of all its instances
    locked = facts.uuid is not None and locks.is_taken(settings.lock_dir, facts.uuid)
    foreign = foreign_process(facts, held=False, locked=locked, own=tuple)
    return IN_USE + foreign if foreign else None


def monitor_host(settings: HostSettings, record: HostRecord, interval_s: float = 5.0) -> HostMonitor:
    """A monitor of the GPUs in `record` (start it, ask it for the `current` record, close it). It does nothing for CPU
    slots and for hosts of an inventory file."""
    real = settings.inventory is None and any(g.uuid.startswith(("GPU-", "MIG-")) for g in record.gpus)
    return HostMonitor(record, settings.lock_dir, watching=real, interval_s=interval_s)


def check_workers(record: HostRecord, most_workers: int, virtual_local_rank: bool) -> None:
    """Refuse more than one worker per agent on MIG instances: a process sees the first instance that it is given, so
    several workers that inherit one list would share it. UsageError says what to do."""
    if most_workers > 1 and not virtual_local_rank and any(g.uuid.startswith("MIG-") for g in record.gpus):
        raise UsageError(
            f"host {record.host} offers MIG instances, and a process sees only the first that is visible to it: "
            f"--nproc-per-node={most_workers} needs --virtual-local-rank; or use --nproc-per-node=1"
        )


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _number(environ: Mapping[str, str], name: str, low: float, high: float) -> float | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    whole = isinstance(low, int)
    if not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise UsageError(f"{name} is {text!r}: expected a {kind} from {low:g} to {high:g}")
    return value
