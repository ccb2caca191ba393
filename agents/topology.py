"""How the GPUs of a host reach one another: the link of every pair, and the link class of every GPU.

Pure. Per pair, the best that NVML's answers support: an NVSwitch fabric, direct NVLinks (how many, how fast), else the
PCIe path by common ancestor. The class of a GPU is what workers on GPUs like it can use throughout: `nvswitch` or
`nvlink` when NVLinks connect all GPUs of its kind, "nvlink-pairs" (islands of 2, 4...) when they connect only parts,
else `pcie`. What was measured outranks what NVML says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from heet_elastic.agents.facts import REMOTE_GPU, REMOTE_SWITCH, GpuFacts, NvLink, PairFacts, Snapshot
from heet_elastic.model import LinkClass


class Path(StrEnum):
    """How two GPUs reach each other, best first."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    BOARD = "same board"
    PCIE_SWITCH = "one PCIe switch"
    PCIE_SWITCHES = "PCIe switches"
    HOST_BRIDGE = "one host bridge"
    NUMA_NODE = "one NUMA node"
    SYSTEM = "across sockets"
    UNKNOWN = "unknown"


_ANCESTORS = {
    0: Path.BOARD,
    10: Path.PCIE_SWITCH,
    20: Path.PCIE_SWITCHES,
    30: Path.HOST_BRIDGE,
    40: Path.NUMA_NODE,
    50: Path.SYSTEM,
}
"""nvmlGpuTopologyLevel_t."""

_NVLINK_MB_S = {1: 20_000, 2: 25_781, 3: 25_781, 4: 25_000, 5: 25_000, 6: 26_562, 7: 53_125}
"""MB/s per link and direction by NVML's version constant (4 is NVLink 3.0, 6 is 4.0), where NVML reports no speed."""

_PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_NVLINKS = (Path.NVSWITCH, Path.NVLINK)


@dataclass(frozen=True, slots=True)
class PairLink:
    """The link of two GPUs, by NVML index. `gb_s` in one direction: nominal, or measured where `measured`."""

    first: int
    second: int
    path: Path
    links: int | None = None
    gb_s: float | None = None
    p2p: bool | None = None
    measured: bool = False

    def __str__(self) -> str:
        count = f" x{self.links}" if self.links else ""
        speed = "" if self.gb_s is None else f" ({'measured ' if self.measured else ''}{self.gb_s:.0f} GB/s)"
        return f"{self.path}{count}{speed}"


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one host: every pair, and per GPU index its class and the word for it in host types."""

    pairs: tuple[PairLink, ...]
    classes: Mapping[int, LinkClass]
    labels: Mapping[int, str]
    problems: tuple[str, ...] = ()


def find_links(snapshot: Snapshot, measured: Mapping[tuple[int, int], float] | None = None) -> Links:
    """Links of all GPUs that answered. `measured`: GB/s in one direction for pairs (i < j) where somebody measured."""
    gpus = {g.index: g for g in snapshot.gpus if g.lost is None}
    answers = {(p.first, p.second): p for p in snapshot.pairs}
    switched = _switched(tuple(gpus.values()))
    pairs = []
    for i in sorted(gpus):
        for j in sorted(gpus):
            if i < j:
                link = _pair(gpus[i], gpus[j], answers.get((i, j), PairFacts(i, j)), switched)
                pairs.append(_measured(link, gpus[i], gpus[j], (measured or {}).get((i, j))))
    classes: dict[int, LinkClass] = {}
    labels: dict[int, str] = {}
    for group in _kinds(gpus.values()):
        for gpu in group:
            classes[gpu.index], labels[gpu.index] = _class(gpu, group, pairs, switched)
    return Links(tuple(pairs), classes, labels, _problems(gpus, pairs))


def _active(gpu: GpuFacts) -> tuple[NvLink, ...]:
    return tuple(link for link in gpu.links or () if link.up)


def _switched(gpus: Sequence[GpuFacts]) -> frozenset[int]:
    """GPUs whose NVLinks end in a switch.

    Said by the remote's type; or seen: several GPUs' links end at one device that is no GPU; or, in a virtual machine
    that hides the switches, no remote of any linked GPU is known and all have equally many links.
    """
    own = {_address(g.pci) for g in gpus if g.pci}
    ends = Counter(pci for g in gpus for pci in {_address(k.remote_pci) for k in _active(g)} if pci and pci not in own)
    found = set()
    for gpu in gpus:
        for link in _active(gpu):
            foreign = link.remote_type != REMOTE_GPU and ends[_address(link.remote_pci)] > 1
            if link.remote_type == REMOTE_SWITCH or foreign:
                found.add(gpu.index)
    linked = [g for g in gpus if _active(g)]
    hidden = all(_hidden(k, own) for g in linked for k in _active(g))
    if len(linked) > 1 and hidden and len({len(_active(g)) for g in linked}) == 1:
        found.update(g.index for g in linked)
    return frozenset(found)


def _hidden(link: NvLink, own: Iterable[str]) -> bool:
    return link.remote_type not in (REMOTE_GPU, REMOTE_SWITCH) and _address(link.remote_pci) not in own


def _pair(a: GpuFacts, b: GpuFacts, answer: PairFacts, switched: frozenset[int]) -> PairLink:
    p2p = answer.p2p_read
    if answer.p2p_nvlink is not False:
        direct = [k for k in _active(a) if b.pci and k.remote_pci and _address(k.remote_pci) == _address(b.pci)]
        if direct:
            return PairLink(a.index, b.index, Path.NVLINK, len(direct), _speed(direct), p2p)
        if a.index in switched and b.index in switched:
            fewer = min(_active(a), _active(b), key=len)
            return PairLink(a.index, b.index, Path.NVSWITCH, len(fewer), _speed(fewer), p2p)
        if answer.p2p_nvlink:  # the driver says so, without saying over which links
            return PairLink(a.index, b.index, Path.NVLINK, None, None, p2p)
    path = Path.UNKNOWN if answer.ancestor is None else _ANCESTORS.get(answer.ancestor, Path.UNKNOWN)
    return PairLink(a.index, b.index, path, None, _pcie_gb_s(a, b), p2p)


def _speed(links: Sequence[NvLink]) -> float | None:
    """GB/s of these links together; None when the speed of one is unknown."""
    speeds = [k.speed_mb_s or _NVLINK_MB_S.get(k.version or 0) for k in links]
    return None if None in speeds else sum(s for s in speeds if s) / 1000


def _pcie_gb_s(a: GpuFacts, b: GpuFacts) -> float | None:
    speeds = []
    for gpu in (a, b):
        lane = _PCIE_LANE_GB_S.get(gpu.pcie_generation or 0)
        if lane is None or not gpu.pcie_width:
            return None
        speeds.append(lane * gpu.pcie_width)
    return min(speeds)


def _measured(link: PairLink, a: GpuFacts, b: GpuFacts, gb_s: float | None) -> PairLink:
    """The pair as measured: faster than their PCIe slots can be is NVLink, no faster is none, whatever NVML says."""
    if gb_s is None:
        return link
    slots = _pcie_gb_s(a, b)
    path = link.path
    if slots is not None and gb_s > slots * 1.1 and path not in _NVLINKS:
        path = Path.NVLINK
    elif slots is not None and gb_s <= slots and path in _NVLINKS:
        path = Path.UNKNOWN
    return PairLink(link.first, link.second, path, link.links if path == link.path else None, gb_s, link.p2p, True)


def _kinds(gpus: Iterable[GpuFacts]) -> list[list[GpuFacts]]:
    """GPUs by model and memory: the device groups of a mixed host."""
    groups: dict[tuple[str | None, int | None], list[GpuFacts]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.name, gpu.memory_mib), []).append(gpu)
    return list(groups.values())


def _class(
    gpu: GpuFacts, group: Sequence[GpuFacts], pairs: Sequence[PairLink], switched: frozenset[int]
) -> tuple[LinkClass, str]:
    if gpu.mig:
        return "none", "none"  # instances have no link to one another
    own = {g.index for g in group}
    edges = [p for p in pairs if p.first in own and p.second in own]
    island = _island(gpu.index, [p for p in edges if p.path in _NVLINKS])
    if len(island) == 1:
        if len(own) == 1 and gpu.index in switched:
            return "nvswitch", "nvswitch"  # the only one of its board that this host may use
        mine = [p for p in edges if gpu.index in (p.first, p.second)]
        silent = gpu.links is None and not any(p.measured or p.path is not Path.UNKNOWN for p in mine)
        return ("unknown", "unknown") if silent else ("pcie", "pcie")
    inside = [p for p in edges if p.first in island and p.second in island]
    if len(island) == len(own):
        fabric = all(p.path is Path.NVSWITCH for p in inside)
        return ("nvswitch", "nvswitch") if fabric else ("nvlink", "nvlink")
    return "nvlink", "nvlink-pairs" if len(island) == 2 else f"nvlink-islands-of-{len(island)}"


def _island(start: int, edges: Sequence[PairLink]) -> set[int]:
    """GPUs that NVLinks connect to `start`, directly or over others."""
    found, queue = {start}, [start]
    for at in queue:
        for edge in edges:
            for other in {edge.first, edge.second} - found if at in (edge.first, edge.second) else ():
                found.add(other)
                queue.append(other)
    return found


def _problems(gpus: Mapping[int, GpuFacts], pairs: Sequence[PairLink]) -> tuple[str, ...]:
    found = []
    for group in _kinds(gpus.values()):
        most = max(len(_active(g)) for g in group)
        for gpu in group:
            down = [k.link for k in gpu.links or () if k.up is False]
            if down and len(_active(gpu)) < most:
                found.append(f"GPU {gpu.index}: NVLink {', '.join(map(str, down))} is down")
            if gpu.fabric in (1, 2):
                found.append(f"GPU {gpu.index}: its NVSwitch fabric is not ready (is nvidia-fabricmanager running?)")
    found += [
        f"GPUs {p.first} and {p.second}: NVLink without peer-to-peer access"
        for p in pairs
        if p.p2p is False and p.path in _NVLINKS
    ]
    return tuple(found)


def _address(pci: str | None) -> str:
    """A PCI address in one spelling: "00000000:1B:00.0" and "0000:1b:00.0" are the same; "" = none."""
    domain, _, rest = (pci or "").lower().partition(":")
    if not rest or set(domain + rest) <= set("0:."):
        return ""
    return f"{int(domain, 16):x}:{rest}"
