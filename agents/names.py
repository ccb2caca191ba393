"""Names of host types: model + memory + link class. The number of devices is capacity and no part of it.

A name must be the same after a reboot, on every host with the same hardware, and with every driver: vendors' prefixes
that came and went are dropped, and memory is rounded to the size on the box (the driver's own share, ECC and firmware
take up to 8 % of what NVML reports).
"""

from __future__ import annotations

import re

_BOX_SIZES_GB: tuple[int, ...] = (
    *(2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 268, 279, 288),
)
_PREFIXES = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Graphics Device)\s+)+", re.IGNORECASE)
_MEMORY_WORD = re.compile(r"(?:^|[\s-])\d+\s?[GM]i?B\b", re.IGNORECASE)
_NOISE = re.compile(r"\((?:R|TM|C)\)|®|™|\bCPU\b|\bProcessor\b|@.*$|\b\d+-Core\b|\bwith\b.*$", re.IGNORECASE)


def short_model(name: str | None) -> str:
    """The model in an NVML name, without vendor and memory: "NVIDIA A100-SXM4-40GB" -> "A100-SXM4"."""
    text = " ".join((name or "").split())
    mig = text.find(" MIG ")
    if mig >= 0:
        return f"{short_model(text[:mig])}{text[mig:]}"
    text = _MEMORY_WORD.sub("", _PREFIXES.sub("", text))
    text = re.sub(r"\s+HBM\d\w*$", "", text).strip(" -")
    return text or "unknown GPU"


def box_memory_gb(memory_mib: int) -> int:
    """The size on the box of a card with this much memory: the next known size if it is at most 9 % larger."""
    gib = memory_mib / 1024
    for size in _BOX_SIZES_GB:
        if gib <= size * 1.005:
            return size if gib >= size * 0.91 else max(1, round(gib))
    return round(gib)


def host_type(model: str | None, memory_mib: int | None, link: str) -> str:
    """The host type of a device: "A100-SXM4 40GB nvswitch". An unknown memory is left out, an unknown link is said."""
    short = short_model(model)
    if " MIG " in f" {short} ":
        return short  # the profile ("1g.5gb") says the memory, and instances have no link
    memory = "" if memory_mib is None else f" {box_memory_gb(memory_mib)}GB"
    return f"{short}{memory} {'unknown-link' if link == 'unknown' else link}"


def cpu_type(model: str) -> str:
    """The host type of CPU slots: "CPU AMD EPYC 7763"."""
    text = " ".join(_NOISE.sub(" ", model).split())
    return f"CPU {text or 'unknown'}"
