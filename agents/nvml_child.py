"""The child process that looks at the GPUs: `python -m heet_elastic.agents.nvml_child MODE`, JSON lines on stdout.

snapshot   one facts.Snapshot
watch S    a facts.Snapshot of usage every S seconds and at every critical event, until stdin closes
cuda       the UUIDs that CUDA lists under this environment, in its order, or null

Stdlib and pynvml only: a process that has just this to do starts in some 50 ms and may hang or crash alone.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
import time
from dataclasses import asdict

from heet_elastic.agents.facts import Snapshot
from heet_elastic.agents.nvml import Watcher, take_snapshot


def main(arguments: list[str]) -> None:
    """Run one mode."""
    if arguments[0] == "snapshot":
        _print(take_snapshot())
    elif arguments[0] == "cuda":
        print(json.dumps(cuda_order()))
    else:
        watch(float(arguments[1]))


def watch(interval_s: float) -> None:
    """Report until the parent closes our stdin, that is, until it ends, however it ends."""
    watcher = Watcher()
    while True:
        _print(watcher.look())
        if watcher.failure is not None:
            return
        until = time.monotonic() + interval_s
        while time.monotonic() < until:
            if watcher.wait(0):
                break
            if select.select([sys.stdin], [], [], min(0.5, max(0.0, until - time.monotonic())))[0]:
                return


def cuda_order() -> tuple[str, ...] | None:
    """UUIDs of the devices that CUDA lists in this process, in its order; None = CUDA cannot be asked.

    Starts the CUDA driver without making a context: only in a child process.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
        found = []
        for i in range(count.value):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            if cuda.cuDeviceGet(ctypes.byref(device), i) or get_uuid(raw, device):
                return None
            text = bytes(raw).hex()
            found.append(f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
    except (OSError, AttributeError):
        return None
    return tuple(found)


def _print(snapshot: Snapshot) -> None:
    print(json.dumps(asdict(snapshot)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
