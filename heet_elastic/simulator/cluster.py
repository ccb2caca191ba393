"""The simulated cluster: `TYPE:HOSTSxGPUS` text to hosts with devices, as the live store would show them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.errors import UsageError
from heet_elastic.model import Gpu, Host

_PART = re.compile(r"^(?P<type>.+):(?P<hosts>\d+)x(?P<gpus>\d+)$")


@dataclass(frozen=True, slots=True)
class HostGroup:
    """`hosts` equal hosts of one host type with `gpus` devices each."""

    host_type: str
    hosts: int
    gpus: int


def parse_cluster(text: str) -> tuple[HostGroup, ...]:
    """The host groups of e.g. "T4:6x4,RTX2080Ti:3x8" (6 hosts of 4 T4, 3 of 8 RTX2080Ti).

    Raises UsageError for a malformed part, a count of 0, or an empty text.
    """
    groups = []
    for part in (p.strip() for p in text.split(",")):
        match = _PART.match(part)
        if match is None:
            raise UsageError(
                f"--cluster: {part!r} is no host group: expected TYPE:HOSTSxGPUS, by commas, e.g. T4:6x4,A100:2x8"
            )
        hosts, gpus = int(match["hosts"]), int(match["gpus"])
        if hosts < 1 or gpus < 1:
            raise UsageError(f"--cluster: {part!r} has no GPUs: both counts must be at least 1")
        groups.append(HostGroup(match["type"], hosts, gpus))
    return tuple(groups)


def match_types(groups: Sequence[HostGroup], known: Sequence[str]) -> tuple[HostGroup, ...]:
    """The groups with the spelling of the tables (case aside). UsageError names a type without any measurement."""
    spelling = {k.casefold(): k for k in known}
    matched = []
    for group in groups:
        name = spelling.get(group.host_type.casefold())
        if name is None:
            raise UsageError(
                f"--cluster: no throughput was measured on {group.host_type!r}; the tables have {', '.join(known)}"
            )
        matched.append(HostGroup(name, group.hosts, group.gpus))
    return tuple(matched)


def build_hosts(groups: Sequence[HostGroup]) -> dict[str, Host]:
    """Hosts by name (`t4-00`, ...), devices named `HOST/gN`; deterministic."""
    hosts: dict[str, Host] = {}
    made: dict[str, int] = {}
    for group in groups:
        for _ in range(group.hosts):
            number = made.get(group.host_type, 0)
            made[group.host_type] = number + 1
            name = f"{group.host_type.lower()}-{number:02d}"
            gpus = tuple(
                Gpu(uuid=f"{name}/g{i:02d}", host_type=group.host_type, model=group.host_type)
                for i in range(group.gpus)
            )
            hosts[name] = Host(name=name, gpus=gpus, address=name, boot_id="boot-0", agents=(f"heet-agent@{name}",))
    return hosts


def gpus_by_type(hosts: Mapping[str, Host]) -> dict[str, int]:
    """Number of devices of each host type, in order of first appearance."""
    counts: dict[str, int] = {}
    for host in hosts.values():
        for gpu in host.gpus:
            counts[gpu.host_type] = counts.get(gpu.host_type, 0) + 1
    return counts


def format_cluster(groups: Sequence[HostGroup]) -> str:
    """The text that `parse_cluster` reads."""
    return ",".join(f"{g.host_type}:{g.hosts}x{g.gpus}" for g in groups)
