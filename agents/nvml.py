"""One snapshot of a host's GPUs through NVML; the only module that talks to NVML.

Runs in a child process (`python -m heet_elastic.agents.nvml`, see `heet_elastic.agents.nvml_child`), so that a driver
that hangs or crashes takes nobody else down. Every question is asked on its own: an answer that cannot be had is None =
unknown, never 0, and what went wrong is listed in `problems`. A GPU that answers nothing never hides the others.

Stdlib and `pynvml` (package nvidia-ml-py) only; `pynvml` is imported when a snapshot is taken, and another package of
that name, or an old one without some function, is tolerated: what it lacks is unknown.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heet_elastic.agents.facts import GpuFacts, MigInstance, NvLink, PairFacts, Snapshot, Usage

MOST_LINKS = 36
_NO_SUCH_LINK = ("NotSupported", "InvalidArgument")
_GONE = ("GpuIsLost", "ResetRequired")
_INSTALL = "pip install nvidia-ml-py"
_XID = 8  # nvmlEventTypeXidCriticalError


class _MissingError(Exception):
    """This pynvml lacks a function."""


class _Asker:
    """Asks NVML one question at a time and notes what is not answered."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.problems: list[str] = []
        self.last = ""  # the newest error, also one that is no problem

    def ask(self, name: str, *args: Any, quiet: bool = False) -> Any:
        """The answer of function `name`, or None."""
        return self.ask_why(name, *args, quiet=quiet)[0]

    def ask_why(self, name: str, *args: Any, quiet: bool = False) -> tuple[Any, str]:
        """The answer and "", or None and the kind of error."""
        function = getattr(self.nvml, name, None)
        try:
            if function is None:
                raise _MissingError(f"{name} is not there")
            return _text(function(*args)), ""
        except Exception as e:  # whatever a library of another version does, one answer is missing and no more
            kind = "FunctionNotFound" if isinstance(e, _MissingError) else type(e).__name__.removeprefix("NVMLError_")
            self.last = f"{name}: {_sentence(e)}"
            if not quiet and kind not in ("NotSupported", "FunctionNotFound"):  # what this card or driver lacks
                self.problems.append(self.last)
            return None, kind


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _sentence(error: Exception) -> str:
    text = error.args[0] if error.args and isinstance(error.args[0], (str, bytes)) else error
    return str(_text(text)) or type(error).__name__


def _accept_old_symbols(nvml: Any) -> None:
    """Let calls whose newest symbol the library lacks use the older one of the same, or a smaller, structure."""
    original = getattr(nvml, "_nvmlGetFunctionPointer", None)
    if original is None:
        return
    older = {
        "nvmlInitWithFlags": ("nvmlInit_v2", "nvmlInit"),
        "nvmlInit_v2": ("nvmlInit",),
        "nvmlDeviceGetCount_v2": ("nvmlDeviceGetCount",),
        "nvmlDeviceGetHandleByIndex_v2": ("nvmlDeviceGetHandleByIndex",),
        "nvmlDeviceGetPciInfo_v3": ("nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"),
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": ("nvmlDeviceGetNvLinkRemotePciInfo",),
        "nvmlSystemGetCudaDriverVersion_v2": ("nvmlSystemGetCudaDriverVersion",),
    }

    def find(name: str) -> Any:
        for candidate in (name, *older.get(name, ())):
            try:
                return original(candidate)
            except Exception as e:
                error = e
        raise error

    nvml._nvmlGetFunctionPointer = find


def take_snapshot() -> Snapshot:
    """Ask NVML everything, in this process."""
    asker = _open()
    if isinstance(asker, Snapshot):
        return asker
    try:
        return _snapshot(asker)
    finally:
        asker.ask("nvmlShutdown")


class Watcher:
    """Keeps NVML open and says what the GPUs do now: the same GPUs under the same numbers, also when one is lost.

    `failure` says why there is nothing to watch. Raises nothing.
    """

    def __init__(self) -> None:
        asker = _open()
        self.failure = asker if isinstance(asker, Snapshot) else None
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str | None] = {}
        self._xids: dict[int, tuple[int, ...]] = {}
        self._events: Any = None
        if isinstance(asker, Snapshot):
            return
        self._asker = asker
        for index in range(asker.ask("nvmlDeviceGetCount") or 0):
            handle = asker.ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._handles[index] = handle
                self._uuids[index] = asker.ask("nvmlDeviceGetUUID", handle)
        self._events = asker.ask("nvmlEventSetCreate", quiet=True)
        for handle in self._handles.values():
            if self._events is not None:
                asker.ask("nvmlDeviceRegisterEvents", handle, _XID, self._events, quiet=True)

    def look(self) -> Snapshot:
        """Usage and state of every GPU; names and links are left out."""
        if self.failure is not None:
            return self.failure
        gpus = []
        for index, handle in self._handles.items():
            own = _Asker(self._asker.nvml)
            _, why = own.ask_why("nvmlDeviceGetUUID", handle)
            gone = own.last
            usage = replace(_usage(own, handle), xids=self._xids.get(index, ()))
            lost = gone if why in _GONE else None
            gpus.append(GpuFacts(index, self._uuids[index], usage=usage, lost=lost, problems=_once(own.problems)))
        return Snapshot(gpus=tuple(gpus))

    def wait(self, seconds: float) -> bool:
        """Wait for a critical event of any GPU (then True, and `look` shows it), at most so long. At once False where
        there are no events to be had: the caller then waits itself."""
        if self._events is None:
            return False
        event = self._asker.ask("nvmlEventSetWait_v2", self._events, int(seconds * 1000), quiet=True)
        if event is None:
            return False
        for index, handle in self._handles.items():
            if _same(handle, event.device):
                self._xids[index] = (*self._xids.get(index, ()), int(event.eventData))[-20:]
        return True


def _same(handle: Any, other: Any) -> bool:
    return ctypes.cast(handle, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _once(problems: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(problems))


def _open() -> _Asker | Snapshot:
    """NVML, started; or the snapshot that says why not."""
    try:
        import pynvml
    except ImportError:
        return Snapshot(failure=f"the package nvidia-ml-py is not installed: {_INSTALL}", absent=True)
    if not hasattr(pynvml, "nvmlInit"):
        return Snapshot(failure=f"the module pynvml at {pynvml.__file__} is not NVIDIA's: {_INSTALL}", absent=True)
    _accept_old_symbols(pynvml)
    asker = _Asker(pynvml)
    _, why = asker.ask_why("nvmlInit")
    if why:
        if why == "LibRmVersionMismatch":
            return Snapshot(
                failure="the NVIDIA driver and its library have different versions: reboot after the update"
            )
        absent = why in ("LibraryNotFound", "DriverNotLoaded")
        return Snapshot(failure=f"NVML does not start: {asker.last.partition(': ')[2]}", absent=absent)
    return asker


def _snapshot(asker: _Asker) -> Snapshot:
    count = asker.ask("nvmlDeviceGetCount")
    if count is None:
        return Snapshot(failure=f"NVML does not say how many GPUs there are: {asker.last}")
    handles: dict[int, Any] = {}
    gpus = []
    for index in range(count):
        own = _Asker(asker.nvml)
        handle = own.ask("nvmlDeviceGetHandleByIndex", index)
        if handle is None:
            gpus.append(GpuFacts(index, lost=own.last))
        else:
            handles[index] = handle
            gpus.append(_gpu(own, index, handle))
    return Snapshot(
        gpus=tuple(gpus),
        pairs=_pairs(asker, handles),
        driver=asker.ask("nvmlSystemGetDriverVersion"),
        nvml=asker.ask("nvmlSystemGetNVMLVersion"),
        cuda=asker.ask("nvmlSystemGetCudaDriverVersion_v2"),
        problems=_once(asker.problems),
    )


def _gpu(asker: _Asker, index: int, handle: Any) -> GpuFacts:
    uuid, why = asker.ask_why("nvmlDeviceGetUUID", handle)
    lost = asker.last if why in _GONE else None
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle)
    capability = asker.ask("nvmlDeviceGetCudaComputeCapability", handle)
    mig = asker.ask("nvmlDeviceGetMigMode", handle)
    facts = GpuFacts(
        index,
        uuid=uuid,
        name=asker.ask("nvmlDeviceGetName", handle),
        pci=_bus_id(asker.ask("nvmlDeviceGetPciInfo", handle)),
        minor=asker.ask("nvmlDeviceGetMinorNumber", handle),
        memory_mib=_mib(getattr(memory, "total", None)) or None,
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        numa_node=_numa_node(asker, handle),
        pcie_generation=asker.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=asker.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        mig=None if mig is None else bool(mig[0]),
        instances=_instances(asker, handle) if mig is not None and mig[0] else (),
        links=_links(asker, handle),
        fabric=_fabric(asker, handle),
        usage=_usage(asker, handle),
        lost=lost,
    )
    return replace(facts, problems=_once(asker.problems))


def _usage(asker: _Asker, handle: Any) -> Usage:
    rates = asker.ask("nvmlDeviceGetUtilizationRates", handle)
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, quiet=True)
    throttle = asker.ask("nvmlDeviceGetCurrentClocksEventReasons", handle, quiet=True)
    if throttle is None:
        throttle = asker.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)  # its name before driver 535
    remap = asker.ask("nvmlDeviceGetRemappedRows", handle)
    pending = asker.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return Usage(
        utilization=getattr(rates, "gpu", None),
        memory_used_mib=_mib(getattr(memory, "used", None)),
        temperature_c=_temperature(asker, handle),
        slowdown_c=asker.ask("nvmlDeviceGetTemperatureThreshold", handle, 1),
        throttle=throttle,
        ecc_uncorrected=asker.ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        remap=None if remap is None else (bool(remap[2]), bool(remap[3])),
        retirement_pending=None if pending is None else bool(pending),
        processes=_processes(asker, handle),
    )


def _temperature(asker: _Asker, handle: Any) -> int | None:
    found, why = asker.ask_why("nvmlDeviceGetTemperature", handle, 0)
    if why == "FunctionNotFound":
        found = asker.ask("nvmlDeviceGetTemperatureV", handle, 0)  # the name that stays after CUDA 13
    return None if found is None else int(found)


def _processes(asker: _Asker, handle: Any) -> tuple[tuple[int, int | None], ...] | None:
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"):
        found, why = asker.ask_why(name, handle, quiet=name[-1] != "2")
        if not why:
            return tuple((p.pid, _mib(getattr(p, "usedGpuMemory", None))) for p in found)
    return None


def _instances(asker: _Asker, handle: Any) -> tuple[MigInstance, ...]:
    found = []
    for i in range(asker.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        instance = asker.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i, quiet=True)  # places may be empty
        uuid = None if instance is None else asker.ask("nvmlDeviceGetUUID", instance)
        if uuid is None:
            continue
        memory = asker.ask("nvmlDeviceGetMemoryInfo", instance)
        found.append(
            MigInstance(
                uuid=uuid,
                name=asker.ask("nvmlDeviceGetName", instance),
                memory_mib=_mib(getattr(memory, "total", None)) or None,
                gpu_instance=asker.ask("nvmlDeviceGetGpuInstanceId", instance),
                compute_instance=asker.ask("nvmlDeviceGetComputeInstanceId", instance),
            )
        )
    return tuple(found)


def _links(asker: _Asker, handle: Any) -> tuple[NvLink, ...] | None:
    found: list[NvLink] = []
    for link in range(MOST_LINKS):
        up, why = asker.ask_why("nvmlDeviceGetNvLinkState", handle, link, quiet=True)
        if why in _NO_SUCH_LINK:
            continue  # a board may leave gaps
        if why and not found:
            asker.problems.append(asker.last)
            return None
        found.append(_link(asker, handle, link, None if up is None else bool(up)))
    return tuple(found)


def _link(asker: _Asker, handle: Any, link: int, up: bool | None) -> NvLink:
    if up is False:
        return NvLink(link, up=False)
    p2p = asker.ask("nvmlDeviceGetNvLinkCapability", handle, link, 0)
    return NvLink(
        link,
        up=up,
        version=asker.ask("nvmlDeviceGetNvLinkVersion", handle, link),
        remote_type=asker.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        remote_pci=_bus_id(asker.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)),
        speed_mb_s=_link_speed(asker, handle, link),
        p2p=None if p2p is None else bool(p2p),
    )


def _link_speed(asker: _Asker, handle: Any, link: int) -> int | None:
    """MB/s of a link: asked per link (field 164), then by its own old field, then the common one (90)."""
    old = 84 + link if link < 6 else 126 + link if link < 12 else 90
    for field in ((164, link), old, 90):
        values = asker.ask("nvmlDeviceGetFieldValues", handle, [field], quiet=True)
        if values is not None and len(values) and values[0].nvmlReturn == 0:
            speed = int(values[0].value.uiVal)
            if speed > 0:
                return speed
    return None


def _fabric(asker: _Asker, handle: Any) -> int | None:
    for structure, name in (
        ("c_nvmlGpuFabricInfoV_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        make = getattr(asker.nvml, structure, None)
        if make is None:
            continue
        info = make()
        if asker.ask(name, handle, ctypes.byref(info), quiet=True) is not None:
            return int(info.state)
    return None


def _pairs(asker: _Asker, handles: Mapping[int, Any]) -> tuple[PairFacts, ...]:
    return tuple(
        PairFacts(
            i,
            j,
            ancestor=asker.ask("nvmlDeviceGetTopologyCommonAncestor", handles[i], handles[j]),
            p2p_read=_p2p(asker.ask("nvmlDeviceGetP2PStatus", handles[i], handles[j], 0)),
            p2p_nvlink=_p2p(asker.ask("nvmlDeviceGetP2PStatus", handles[i], handles[j], 2)),
        )
        for i in handles
        for j in handles
        if i < j
    )


def _p2p(status: int | None) -> bool | None:
    """NVML_P2P_STATUS_OK is 0 and NVML_P2P_STATUS_UNKNOWN 6."""
    return None if status in (None, 6) else status == 0


def _numa_node(asker: _Asker, handle: Any) -> int | None:
    """The CPU node next to the GPU. Not nvmlDeviceGetNumaNodeId: that is the node that the GPU's own memory forms."""
    mask = asker.ask("nvmlDeviceGetMemoryAffinity", handle, 4, 0)
    bits = 0 if mask is None else sum(int(word) << (64 * i) for i, word in enumerate(mask))
    return bits.bit_length() - 1 if bits and bits & (bits - 1) == 0 else None


def _bus_id(pci: Any) -> str | None:
    for name in ("busId", "busIdLegacy"):  # a library older than the structure fills only the second
        text = _text(getattr(pci, name, None))
        if text:
            return str(text).lower()
    return None


def _mib(size: int | None) -> int | None:
    """MiB of a size in bytes; None for NVML's "not available" (all bits set)."""
    return None if size is None or size >= 1 << 60 else int(size) >> 20
