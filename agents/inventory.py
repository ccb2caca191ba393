"""The inventory file: what hosts have, written by a person, instead of probing (tests, demo, odd hardware).

    [hosts.left]
    address = "127.0.0.1"                 # optional: the address that other hosts reach it by
    network = "10GbE"                     # optional
    gpus = [
      { model = "A100-SXM4", memory_mib = 40960, link = "nvswitch", count = 4 },
      { model = "T4", memory_mib = 15360, uuids = ["GPU-6a3b...", "GPU-77d0..."] },
    ]

    [hosts.right]
    slots = 4                             # instead of gpus: CPU slots
    cpu = "small"                         # optional: names the host type of the slots

Device groups take `model` and one of `count` (ids are made up: GPU-<host>-<n>) and `uuids`; optional: `memory_mib`,
`link` (nvswitch, nvlink, pcie, none, unknown; default pcie), `host_type` (default: model, memory and link, as probing
names it), `capability`, `numa_node`, `unusable` (a reason).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from heet_elastic.agents.names import cpu_type, host_type
from heet_elastic.errors import UsageError
from heet_elastic.model import Gpu, LinkClass

ENV_INVENTORY = "HEET_INVENTORY"
_MOST_DEVICES = 1024


class _Group(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    model: str
    count: int | None = None
    uuids: tuple[str, ...] | None = None
    memory_mib: int | None = None
    link: LinkClass = "pcie"
    host_type: str | None = None
    capability: str | None = None
    numa_node: int | None = None
    unusable: str | None = None


class _Host(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    address: str = ""
    network: str = ""
    gpus: tuple[_Group, ...] | None = None
    slots: int | None = None
    cpu: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    hosts: dict[str, _Host]


@dataclass(frozen=True, slots=True)
class InventoryHost:
    """One host of the file. Empty texts: not given."""

    gpus: tuple[Gpu, ...] = ()
    address: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The hosts of one inventory file by name."""

    path: Path
    hosts: Mapping[str, InventoryHost] = field(default_factory=dict)

    def host(self, name: str) -> InventoryHost:
        """The entry of a host; UsageError names the hosts that there are."""
        if name not in self.hosts:
            there = ", ".join(self.hosts) or "none"
            raise UsageError(
                f"{ENV_INVENTORY}={self.path} names no host {name!r} (it has: {there}): "
                f"set HEET_HOST to one of them, or add a section [hosts.{name}]"
            )
        return self.hosts[name]


def cpu_slots(host: str, slots: int, type_: str) -> tuple[Gpu, ...]:
    """CPU slots of a host: one worker each."""
    return tuple(Gpu(uuid=f"CPU-{host}-{i}", host_type=type_, model=type_, link="none") for i in range(slots))


def read_inventory(path: Path) -> Inventory:
    """The inventory in a TOML file. UsageError names the file, the place in it and what is expected there."""
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as e:
        raise UsageError(f"{ENV_INVENTORY}={path} cannot be read: {e.strerror}") from e
    except (msgspec.MsgspecError, ValueError) as e:
        raise UsageError(f"{ENV_INVENTORY}={path}: {e}") from e
    try:
        return Inventory(path, {name: _host(name, host) for name, host in file.hosts.items()})
    except ValueError as e:
        raise UsageError(f"{ENV_INVENTORY}={path}: {e}") from e


def _host(name: str, entry: _Host) -> InventoryHost:
    if (entry.gpus is None) == (entry.slots is None):
        raise ValueError(f"host {name!r} needs either gpus or slots")
    if entry.slots is not None:
        _in_range(f"slots of host {name!r}", entry.slots)
        devices = cpu_slots(name, entry.slots, cpu_type(entry.cpu or "unknown"))
    else:
        devices = ()
        for group in entry.gpus or ():
            devices += _devices(name, group, len(devices))
        if len({d.uuid for d in devices}) != len(devices):
            raise ValueError(f"host {name!r} lists one device id twice")
    return InventoryHost(devices, entry.address, entry.network)


def _devices(host: str, group: _Group, first: int) -> tuple[Gpu, ...]:
    if (group.count is None) == (group.uuids is None):
        raise ValueError(f"the {group.model} group of host {host!r} needs either count or uuids")
    if group.count is not None:
        _in_range(f"count of the {group.model} group of host {host!r}", group.count)
    ids = group.uuids or tuple(f"GPU-{host}-{first + i}" for i in range(group.count or 0))
    type_ = group.host_type or host_type(group.model, group.memory_mib, group.link)
    return tuple(
        Gpu(
            uuid=uuid,
            host_type=type_,
            model=group.model,
            memory_mib=group.memory_mib,
            capability=group.capability,
            link=group.link,
            numa_node=group.numa_node,
            unusable=group.unusable,
        )
        for uuid in ids
    )


def _in_range(what: str, number: int) -> None:
    if not 1 <= number <= _MOST_DEVICES:
        raise ValueError(f"{what} is {number}: expected 1 to {_MOST_DEVICES}")
