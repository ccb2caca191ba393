"""What the Linux kernel says of this host, without any library of a driver: CPUs, boot id, NVIDIA's module."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def driver_present(root: Path) -> bool:
    """Whether an NVIDIA kernel driver is loaded: then a library that is missing is a fault, not a host without GPUs."""
    return any((root / path).exists() for path in ("proc/driver/nvidia/version", "dev/nvidiactl"))


def driver_list(root: Path) -> tuple[tuple[str, str | None], ...]:
    """(UUID, model) of the GPUs as the kernel module lists them; it answers also when NVML does not fit to it."""
    found = []
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
        model = re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
        found.append((uuid[1] if uuid else f"GPU-unreadable-{file.parent.name}", model[1] if model else None))
    return tuple(found)


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's model as the kernel names it, else the architecture."""
    try:
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("model name", "cpu model", "hardware") and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.machine() or "unknown"


def boot_id() -> str:
    """Random id of this boot of the kernel; "" where there is none (then nobody can prove a reboot)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
