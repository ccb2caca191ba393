"""Which devices of the host this process may offer: what CUDA, Slurm and container variables say, as UUIDs.

CUDA reads CUDA_VISIBLE_DEVICES as a list of indexes or of ids (full or short UUIDs, MIG instances). It stops at the
first entry that it does not know, and an id named twice leaves no device at all (CUDA C++ Programming Guide, "CUDA
Environment Variables"; the second rule is what the driver does). Indexes count in CUDA_DEVICE_ORDER: FASTEST_FIRST by
default, which nothing but CUDA itself knows on a host with different GPUs; never in the order of NVML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.errors import UsageError

CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CUDA_DEVICE_ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"
_NOTHING = ("", "-1", "none", "void", "NoDevFiles")  # the last is what Slurm writes for a job without GPUs


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance of a card: its UUID ("MIG-...") and its GPU and compute instance numbers."""

    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as far as visibility goes. `bus_id` orders cards; `minor` is the number in /dev/nvidia<minor>."""

    uuid: str
    bus_id: str
    model: str
    minor: int | None = None
    mig: bool = False
    instances: tuple[Instance, ...] = ()

    def devices(self) -> tuple[str, ...]:
        """What can be granted of it: itself, or its instances in MIG mode."""
        return tuple(i.uuid for i in self.instances) if self.mig else (self.uuid,)


@dataclass(frozen=True, slots=True)
class Request:
    """The variables as they were when the process started; None = not set."""

    cuda: str | None = None
    order: str | None = None
    slurm: str | None = None  # SLURM_STEP_GPUS or SLURM_JOB_GPUS: minor numbers
    container: str | None = None  # NVIDIA_VISIBLE_DEVICES

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Request:
        """Read the variables. A device plugin of Kubernetes sets the same ones as the container runtime."""
        return cls(
            cuda=environ.get(CUDA_VISIBLE_DEVICES),
            order=environ.get(CUDA_DEVICE_ORDER),
            slurm=environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS") or None,
            container=environ.get("NVIDIA_VISIBLE_DEVICES"),
        )

    @property
    def hides_everything(self) -> bool:
        """Whether CUDA is told to see nothing: somebody wants this process on CPUs."""
        return self.cuda is not None and self.cuda.strip() in _NOTHING

    def asks_cuda(self, cards: Sequence[Card]) -> bool:
        """Whether only CUDA can say which cards the indexes mean: its own order, on a host with different GPUs."""
        if self.cuda is None or self.hides_everything or self.cuda.strip().startswith(("GPU-", "MIG-")):
            return False
        return self.order != PCI_ORDER and len({c.model for c in cards}) > 1


def worker_environment(devices: Sequence[str]) -> dict[str, str]:
    """Variables for workers that own these devices: UUIDs, so that no order matters. Nothing for CPU slots."""
    if not devices or any(d.startswith("CPU-") for d in devices):
        return {}
    return {CUDA_VISIBLE_DEVICES: ",".join(devices), CUDA_DEVICE_ORDER: PCI_ORDER}


def select(request: Request, cards: Sequence[Card], cuda_sees: Sequence[str] | None = None) -> tuple[str, ...]:
    """The devices (UUIDs of cards, or of instances in MIG mode) that may be offered, in PCI order.

    cuda_sees: UUIDs that CUDA itself lists under the same variables, where `request.asks_cuda`; None = it was not to be
    had. Raises UsageError when the variables name nothing that is here, or mean something that cannot be known.
    """
    ordered = sorted(cards, key=lambda c: _bus_key(c.bus_id))
    if request.hides_everything:
        return ()
    chosen = _by_container(request.container, ordered)
    if request.cuda is not None:
        chosen &= _by_cuda(request, ordered, cuda_sees)
    elif request.slurm is not None:
        chosen &= _by_minor(request.slurm, ordered)
    return tuple(d for c in ordered for d in c.devices() if d in chosen)


def _everything(cards: Sequence[Card]) -> set[str]:
    return {d for c in cards for d in c.devices()}


def _by_container(value: str | None, cards: Sequence[Card]) -> set[str]:
    """Ids are obeyed: a privileged container sees more cards than it was given. The rest has been applied already."""
    entries = [e.strip() for e in (value or "").split(",")]
    if not all(e.startswith(("GPU-", "MIG-")) for e in entries):
        return _everything(cards)
    return {d for e in entries for d in _by_id(e, cards)}


def _by_cuda(request: Request, cards: Sequence[Card], cuda_sees: Sequence[str] | None) -> set[str]:
    value = (request.cuda or "").strip()
    entries = [e.strip() for e in value.split(",")]
    if value.startswith(("GPU-", "MIG-")):
        found = _listed_ids(entries, value[:4], cards)
    elif request.asks_cuda(cards):
        if cuda_sees is None:
            raise UsageError(
                f"{CUDA_VISIBLE_DEVICES}={value} counts in CUDA's own order, which cannot be known here for a "
                f"host with different GPUs ({_describe(cards)}): "
                f"set {CUDA_DEVICE_ORDER}={PCI_ORDER}, or name the devices by UUID"
            )
        found = {d for e in cuda_sees for d in _by_id(e, cards)}
    else:
        found = _listed_indexes(entries, cards)
    if not found:
        raise UsageError(
            f"{CUDA_VISIBLE_DEVICES}={value} names no device of this host, which has {_describe(cards)}: "
            f"correct it, unset it, or set it to -1 to train on CPUs"
        )
    return found


def _listed_ids(entries: Sequence[str], prefix: str, cards: Sequence[Card]) -> set[str]:
    found: set[str] = set()
    for entry in entries:
        devices = _by_id(entry, cards) if entry.startswith(prefix) else ()
        if not devices:
            break
        if found.intersection(devices):
            return set()
        found.update(devices)
    return found


def _listed_indexes(entries: Sequence[str], cards: Sequence[Card]) -> set[str]:
    seen: list[int] = []
    for entry in entries:
        number = re.match(r"[+-]?\d+", entry)
        if number is None or not 0 <= int(number[0]) < len(cards):
            break
        if int(number[0]) in seen:
            return set()
        seen.append(int(number[0]))
    return {d for i in seen for d in cards[i].devices()}


def _by_minor(value: str, cards: Sequence[Card]) -> set[str]:
    """Slurm counts device files, also where a cgroup hides the others and the visible ones start again at 0."""
    numbers: set[int] = set()
    for entry in value.split(","):
        span = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", entry)
        if span is None:
            return _everything(cards)  # a form that is not known: the cgroup, if there is one, has the last word
        numbers.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    if any(c.minor is None for c in cards):
        return _everything(cards) if len(numbers) >= len(cards) else _by_place(numbers, cards)
    found = {d for c in cards if c.minor in numbers for d in c.devices()}
    return found or _everything(cards)


def _by_place(numbers: set[int], cards: Sequence[Card]) -> set[str]:
    return {d for i, c in enumerate(cards) if i in numbers for d in c.devices()}


def _by_id(entry: str, cards: Sequence[Card]) -> tuple[str, ...]:
    """Devices with this id, or the one card or instance whose id starts with it; () = none, or more than one."""
    for card in cards:
        for instance in card.instances:
            if entry == f"MIG-{card.uuid}/{instance.gpu_instance}/{instance.compute_instance}":
                return (instance.uuid,)
    named: list[tuple[str, ...]] = [c.devices() for c in cards if c.uuid.lower().startswith(entry.lower())]
    named += [(i.uuid,) for c in cards for i in c.instances if i.uuid.lower().startswith(entry.lower())]
    return named[0] if len(named) == 1 and len(entry) > 4 else ()


def _bus_key(bus_id: str) -> tuple[int, ...]:
    """PCI addresses compare as numbers: domain, bus, device, function."""
    return tuple(int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", bus_id))


def _describe(cards: Sequence[Card]) -> str:
    if not cards:
        return "no GPU"
    return ", ".join(f"{i}: {c.model} {c.uuid}" for i, c in enumerate(cards))
