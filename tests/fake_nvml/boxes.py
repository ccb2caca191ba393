"""Machines that the stand-in library can be: each a `Box`, whose text is what the library reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

INTERNAL, SWITCH, SWITCHES, BRIDGE, NODE, SYSTEM = 0, 10, 20, 30, 40, 50
TO_GPU, TO_SWITCH, TO_UNKNOWN = 0, 2, 255


@dataclass
class Box:
    """Answers by (kind, a, b, key). What is not set is not supported."""

    answers: dict[tuple[str, int, int, str], object] = field(default_factory=dict)

    def set(self, kind: str, a: int, b: int = 0, /, **values: object) -> None:
        for key, value in values.items():
            self.answers[kind, a, b, key] = value

    def unset(self, kind: str, a: int, b: int, *keys: str) -> None:
        for key in keys:
            self.answers.pop((kind, a, b, key), None)

    def text(self) -> str:
        return "".join(f"{kind} {a} {b} {key} {value}\n" for (kind, a, b, key), value in self.answers.items())

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(self.text())
        new.rename(path)  # a reader sees the old machine or the new one

    def uuid(self, gpu: int) -> str:
        return str(self.answers["gpu", gpu, 0, "uuid"])

    def link(self, gpu: int, link: int, /, **values: object) -> None:
        self.set("link", gpu, link, **({"up": 1} | values))

    def wire(self, one: int, other: int, count: int, version: int) -> None:
        """Connect two GPUs by `count` NVLinks, on the next free link numbers of each."""
        for a, b in ((one, other), (other, one)):
            first = sum(1 for kind, gpu, _, key in self.answers if (kind, gpu, key) == ("link", a, "up"))
            for link in range(first, first + count):
                pci = self.answers["gpu", b, 0, "pci"]
                self.link(a, link, version=version, remote_type=TO_GPU, remote=pci)
        self.set("pair", min(one, other), max(one, other), p2p_nvlink=0, p2p_read=0)


def box(*models: tuple[str, int, int], sockets: int = 1, generation: int = 4) -> Box:
    """A machine of (name, MiB, capability x 10) cards spread over sockets, all behind PCIe."""
    made = Box()
    made.set("system", 0, driver="570.86.15", nvml="12.570.86.15", cuda=12080, count=len(models))
    for i, (name, memory, capability) in enumerate(models):
        made.set("gpu", i, name=name, memory_mib=memory, capability=capability, minor=i, mig=0, processes=0)
        made.set("gpu", i, uuid=f"GPU-{i:08x}-aaaa-bbbb-cccc-{0xDDDDDDDDDDDD - i:012x}")
        made.set("gpu", i, pci=f"00000000:{0x10 + i:02X}:00.0")
        made.set("gpu", i, numa_node=i * sockets // len(models), pcie_generation=generation, pcie_width=16)
        made.set("gpu", i, utilization=0, used_mib=0, temperature=35, slowdown=90, throttle=1, ecc=0, remap=0)
        for j in range(i):
            far = j * sockets // len(models) != i * sockets // len(models)
            made.set("pair", j, i, ancestor=SYSTEM if far else BRIDGE, p2p_read=5 if far else 0, p2p_nvlink=5)
    return made


def a10_pair() -> Box:
    return box(*[("NVIDIA A10", 23028, 86)] * 2)


def t4_two_sockets() -> Box:
    return box(*[("Tesla T4", 15360, 75)] * 4, sockets=2, generation=3)


def dgx_1v() -> Box:
    """DGX-1V: a cube mesh, six NVLink 2.0 a GPU, not all of them neighbours."""
    made = box(*[("Tesla V100-SXM2-16GB", 16160, 70)] * 8, sockets=2, generation=3)
    wires = "01:1 02:1 03:2 04:2 12:2 13:1 15:2 23:2 26:1 37:1 45:1 46:1 47:2 56:2 57:1 67:2"
    for wire in wires.split():
        made.wire(int(wire[0]), int(wire[1]), int(wire[3]), version=2)
    return made


def hgx_h100() -> Box:
    """HGX H100: eighteen NVLink 4.0 a GPU, all into four NVSwitches."""
    made = box(*[("NVIDIA H100 80GB HBM3", 81559, 90)] * 8, sockets=2, generation=5)
    for gpu in range(8):
        made.set("gpu", gpu, fabric=3)
        for link in range(18):
            switch = f"00000000:{5 + link % 4:02X}:00.0"
            made.link(gpu, link, version=6, speed=26562, remote_type=TO_SWITCH, remote=switch)
    for j in range(8):
        for i in range(j):
            made.set("pair", i, j, p2p_nvlink=0, p2p_read=0)
    return made


def a40_bridged_pairs() -> Box:
    made = box(*[("NVIDIA A40", 46068, 86)] * 4, sockets=2)
    made.wire(0, 1, 4, version=5)
    made.wire(2, 3, 4, version=5)
    return made


def a100_vm() -> Box:
    """A virtual machine with all GPUs of an NVSwitch board, whose switches it does not see."""
    made = box(*[("NVIDIA A100-SXM4-40GB", 40536, 80)] * 8)
    for gpu in range(8):
        for link in range(12):
            made.link(gpu, link, version=4, remote_type=TO_UNKNOWN)
    for j in range(8):
        for i in range(j):
            made.set("pair", i, j, p2p_nvlink=0, p2p_read=0)
    return made


def gtx_and_rtx() -> Box:
    """A desktop with different cards. CUDA would list the faster one first, NVML the one with the lower address."""
    made = box(("NVIDIA GeForce GTX 1660", 6144, 75), ("NVIDIA GeForce RTX 3090", 24576, 86))
    made.set("system", 0, cuda_count=2)
    made.set("cuda", 0, uuid=made.uuid(1))
    made.set("cuda", 1, uuid=made.uuid(0))
    return made


def a100_mig() -> Box:
    """Two A100, the first cut into three instances (places 0, 1 and 3)."""
    made = box(*[("NVIDIA A100-SXM4-40GB", 40536, 80)] * 2)
    made.set("gpu", 0, mig=1, most_instances=7)
    for place, (profile, memory) in {0: ("3g.20gb", 19968), 1: ("2g.10gb", 9856), 3: ("1g.5gb", 4864)}.items():
        made.set("mig", 0, place, uuid=f"MIG-{place}0000000-1111-2222-3333-444444444444", memory_mib=memory)
        made.set("mig", 0, place, name=f"NVIDIA A100-SXM4-40GB MIG {profile}")
        made.set("mig", 0, place, gpu_instance=place + 1, compute_instance=0)
    return made


def vgpu() -> Box:
    made = box(("GRID V100D-8Q", 8192, 70))
    made.unset("gpu", 0, 0, "temperature", "slowdown", "ecc", "remap", "throttle", "processes")
    return made


def orin() -> Box:
    """An embedded board: NVML answers hardly anything."""
    made = Box()
    made.set("system", 0, driver="540.4.0", cuda=12060, count=1)
    made.set("gpu", 0, name="Orin (nvgpu)", uuid="GPU-0f0f0f0f-1111-2222-3333-444444444444")
    return made


def unified_memory() -> Box:
    made = box(("NVIDIA GB10", 0, 121))
    made.unset("gpu", 0, 0, "memory_mib", "used_mib")
    return made
