"""`heet probe`: what this host is and would offer, with links, health and what could not be found out."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from heet_elastic.agents.facts import GpuFacts, Usage
from heet_elastic.agents.hosts import HostProbe, HostSettings, examine_host
from heet_elastic.cli.output import console
from heet_elastic.model import Gpu

PLAIN_WIDTH = 200
"""Columns when the output is no terminal: a device stays on one line."""
MOST_PAIRS = 28
"""Pairs that are listed one by one; more (over eight GPUs) are counted by kind."""


def probe(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Show what this host would offer: devices, host types, links, health. Ends with 1 if no device can be used."""
    found = examine_host(HostSettings.from_environment(os.environ), agent="probe")
    if as_json:
        print(json.dumps(to_json(found), indent=2))
    else:
        show(found, console(PLAIN_WIDTH))
    if not any(g.unusable is None for g in found.record.gpus):
        raise typer.Exit(1)


def to_json(found: HostProbe) -> dict[str, Any]:
    """Everything that was found, in JSON types. None = unknown."""
    record = asdict(found.record)
    record.pop("agent")
    pairs = found.links.pairs if found.links is not None else ()
    return {
        **record,
        "source": found.source,
        "host_types": dict(Counter(g.host_type for g in found.record.gpus)),
        "links": [asdict(p) | {"text": str(p)} for p in pairs],
        "hidden": found.hidden,
        "problems": found.problems,
        "nvml": None if found.snapshot is None else asdict(found.snapshot),
    }


def show(found: HostProbe, out: Console) -> None:
    """Print a probe for people."""
    record, snapshot = found.record, found.snapshot
    out.print(f"Host {record.host} at {record.address}, network {record.network}")
    if snapshot is not None and snapshot.driver:
        cuda = "" if not snapshot.cuda else f", CUDA up to {snapshot.cuda // 1000}.{snapshot.cuda % 1000 // 10}"
        out.print(f"NVIDIA driver {snapshot.driver}{cuda}")
    elif found.source == "inventory":
        out.print("Devices are those of the inventory file; nothing was probed")
    facts = {} if snapshot is None else {g.uuid: g for g in snapshot.gpus if g.uuid}
    out.print(_devices(record.gpus, facts, out))
    types = Counter(g.host_type for g in record.gpus if g.unusable is None)
    offered = ", ".join(f"{n} x {t}" for t, n in types.items()) or "nothing"
    out.print(f"Offered: {offered}")
    for line in _links(found):
        out.print(line)
    if found.hidden:
        out.print(f"Not offered (not visible to this process): {', '.join(found.hidden)}")
    for problem in found.problems:
        out.print(f"Note: {problem}", soft_wrap=True)


def _devices(gpus: Sequence[Gpu], facts: dict[str, GpuFacts], out: Console) -> Table:
    table = Table(box=SIMPLE_HEAD if out.is_terminal else None, pad_edge=False)
    for name in ("device", "host type", "memory", "sm", "NUMA", "busy", "used", "heat", "state"):
        table.add_column(name, overflow="fold")
    for gpu in gpus:
        usage = facts[gpu.uuid].usage if gpu.uuid in facts else Usage()
        table.add_row(
            gpu.uuid,
            gpu.host_type,
            _with("{} MiB", gpu.memory_mib),
            _with("{}", gpu.capability),
            _with("{}", gpu.numa_node),
            _with("{} %", usage.utilization),
            _with("{} MiB", usage.memory_used_mib),
            _with("{} C", usage.temperature_c),
            gpu.unusable or "usable",
        )
    return table


def _links(found: HostProbe) -> list[str]:
    pairs = found.links.pairs if found.links is not None else ()
    if len(pairs) > MOST_PAIRS:
        return [f"Links: {n} pairs {text}" for text, n in Counter(map(str, pairs)).most_common()]
    return [f"Link {p.first}-{p.second}: {p}" for p in pairs]


def _with(form: str, value: object) -> str:
    return "?" if value is None else form.format(value)
