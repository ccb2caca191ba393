"""Which devices there are, who holds them, and which may be granted now.

A device may be granted iff no live job's newest round holds it, every live agent that was granted it in an earlier
round has reported its workers of that round gone (`AgentRecord.clean`), and it is neither unusable, nor in quarantine,
nor locked by a program that heet does not know. All of it follows from the store, so a new leader sees what the old one
saw: a plan lists in `Allocation.releasing` what earlier rounds held. A round that members wrote lists nothing; while an
agent of it is not through, no unheld device of its host is granted.

A vanished host has no live record, hence no devices here: its GPUs are granted again only once an agent there lives,
and that agent's locks are the local truth.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from heet_elastic.coordinator.api import Timer
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.model import Host

Device = tuple[str, str]
"""(host, device id): ids are unique on a host only."""


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one host type on one host; `devices` in a fixed order, without those that are blocked."""

    host: str
    host_type: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What follows from the hosts alone; made once for the same hosts.

    groups: all devices that no process calls unusable. locked: devices whose lock somebody holds.
    """

    hosts: Mapping[str, Host]
    groups: tuple[Group, ...]
    index: Mapping[tuple[str, str], int]
    type_of: Mapping[Device, str]
    unusable: Mapping[Device, str]
    locked: tuple[Device, ...]


def lay_out(hosts: Mapping[str, Host], before: object = None) -> Layout:
    """The layout of these hosts; `before` itself where nothing changed."""
    if isinstance(before, Layout) and (before.hosts is hosts or before.hosts == hosts):
        return before
    grouped: dict[tuple[str, str], list[str]] = {}
    type_of: dict[Device, str] = {}
    unusable: dict[Device, str] = {}
    for name, host in hosts.items():
        for gpu in host.gpus:
            type_of[name, gpu.uuid] = gpu.host_type
            devices = grouped.setdefault((gpu.host_type, name), [])
            if gpu.unusable is None:
                devices.append(gpu.uuid)
            else:
                unusable[name, gpu.uuid] = gpu.unusable
    keys = sorted(grouped)
    return Layout(
        hosts=hosts,
        groups=tuple(Group(host, kind, tuple(grouped[kind, host])) for kind, host in keys),
        index={(host, kind): g for g, (kind, host) in enumerate(keys)},
        type_of=type_of,
        unusable=unusable,
        locked=tuple((name, d) for name, host in hosts.items() for d in sorted(host.locked) if (name, d) in type_of),
    )


@dataclass(frozen=True, slots=True)
class Inventory:
    """All devices of live hosts, at one moment; `groups` are the layout's without blocked devices.

    holder: job whose newest round has the device. releasing: job whose agents have not yet given it back. blocked: why
    a device is never granted now. A device is in at most one of holder and releasing.
    """

    layout: Layout
    groups: tuple[Group, ...]
    index: Mapping[tuple[str, str], int]
    type_of: Mapping[Device, str]
    holder: Mapping[Device, str]
    releasing: Mapping[Device, str]
    blocked: Mapping[Device, str]

    def free(self, group: Group, own: Container[Device] = ()) -> list[str]:
        """Devices of the group that may be granted now; those in `own` even if their job's newest round has them."""
        host = group.host
        return [
            d
            for d in group.devices
            if (host, d) not in self.releasing and ((host, d) not in self.holder or (host, d) in own)
        ]


def holders(states: Iterable[JobState]) -> tuple[dict[Device, str], dict[Device, str], dict[str, str]]:
    """(holder, releasing, hosts of agents that may hold anything there: host -> job)."""
    held: dict[Device, str] = {}
    releasing: dict[Device, str] = {}
    unsure: dict[str, str] = {}
    for state in states:
        if state.result is None:
            for member in state.members:
                for device in member.gpus:
                    held[member.host, device] = state.job
        for member in state.dirty:
            for device in member.gpus:
                releasing[member.host, device] = state.job
        for record in state.unsure:
            unsure[record.host] = state.job
    return held, {d: j for d, j in releasing.items() if d not in held}, unsure


def take_stock(
    layout: Layout,
    held: Mapping[Device, str],
    releasing: Mapping[Device, str],
    unsure: Mapping[str, str],
    timers: Mapping[tuple[str, ...], Timer],
    now: float,
) -> Inventory:
    """The inventory. `timers`: ("busy", host, device) = quarantine, ("freed", host, device) = given back just now."""
    late = dict(releasing)
    if unsure:
        for device in layout.type_of:
            if device[0] in unsure and device not in held:
                late.setdefault(device, unsure[device[0]])
    blocked = dict(layout.unusable)
    for device in layout.locked:
        # A device that a job gave back a moment ago may still be in an idle agent's last report of locks.
        if device not in held and device not in late and ("freed", *device) not in timers:
            blocked.setdefault(device, "in use by a program that heet does not know")
    for key, timer in timers.items():
        if key[0] == "busy" and now < timer.until and (device := (key[1], key[2])) in layout.type_of:
            blocked.setdefault(device, timer.reason)
    groups = layout.groups
    if len(blocked) > len(layout.unusable):
        groups = tuple(
            Group(g.host, g.host_type, tuple(d for d in g.devices if (g.host, d) not in blocked)) for g in groups
        )
    return Inventory(layout, groups, layout.index, layout.type_of, held, late, blocked)
