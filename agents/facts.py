"""What one look at a host's GPUs found: plain values, made by the probing child and read by everybody else.

None = unknown, never 0. Stdlib only: the child that fills them imports nothing else of heet.
"""

from __future__ import annotations

from dataclasses import dataclass

REMOTE_GPU, REMOTE_SWITCH = 0, 2
"""Types of the device at the other end of an NVLink (nvmlIntNvLinkDeviceType_t); 1 = IBM NPU, 255 = unknown."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU. `version` is NVML's constant, not NVLink's version number. Speed in MB/s, one direction."""

    link: int
    up: bool | None = None
    version: int | None = None
    remote_type: int | None = None
    remote_pci: str | None = None
    speed_mb_s: int | None = None
    p2p: bool | None = None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance that can run workers."""

    uuid: str
    name: str | None = None
    memory_mib: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a GPU is doing and how it is. Percent, MiB, degrees Celsius; counters since the driver was loaded.

    throttle: NVML's bits of reasons why clocks are low. processes: (pid, MiB or None) of compute processes.
    remap: (pending, failed) of row remapping. xids: critical events seen while watching.
    """

    utilization: int | None = None
    memory_used_mib: int | None = None
    temperature_c: int | None = None
    slowdown_c: int | None = None
    throttle: int | None = None
    ecc_uncorrected: int | None = None
    remap: tuple[bool, bool] | None = None
    retirement_pending: bool | None = None
    processes: tuple[tuple[int, int | None], ...] | None = None
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What NVML says of one GPU. `index` is NVML's, good for messages only. links: None = unknown, () = has none."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci: str | None = None
    minor: int | None = None
    memory_mib: int | None = None
    capability: str | None = None
    numa_node: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    links: tuple[NvLink, ...] | None = None
    fabric: int | None = None  # nvmlGpuFabricState_t: 0 not supported, 1 not started, 2 in progress, 3 completed
    usage: Usage = Usage()
    lost: str | None = None  # why nothing more can be had of it
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Two GPUs by index (first < second): NVML's common ancestor level (0, 10 ... 50) and peer-to-peer answers."""

    first: int
    second: int
    ancestor: int | None = None
    p2p_read: bool | None = None
    p2p_nvlink: bool | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A host's GPUs.

    failure: why there is none to look at. absent: as it is where there is no NVIDIA driver, or no way to ask one;
    whether the kernel has one loaded decides what that means.
    """

    gpus: tuple[GpuFacts, ...] = ()
    pairs: tuple[PairFacts, ...] = ()
    driver: str | None = None
    nvml: str | None = None
    cuda: int | None = None
    failure: str | None = None
    absent: bool = False
    problems: tuple[str, ...] = ()
