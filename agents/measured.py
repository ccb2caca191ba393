"""Links between GPUs as somebody measured them: they outrank what NVML says (`heet_elastic.agents.topology`).

[[pairs]]
devices = ["GPU-6a3b...", "GPU-77d0..."]
gb_s = 42.0                           # one direction, e.g. from p2pBandwidthLatencyTest
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from heet_elastic.agents.facts import Snapshot
from heet_elastic.errors import UsageError

ENV_MEASURED_LINKS = "HEET_MEASURED_LINKS"


class _Pair(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    devices: tuple[str, str]
    gb_s: float


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    pairs: tuple[_Pair, ...]


def read_measured(path: Path) -> Mapping[frozenset[str], float]:
    """GB/s of pairs of devices. UsageError names the file and the place in it."""
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as e:
        raise UsageError(f"{ENV_MEASURED_LINKS}={path} cannot be read: {e.strerror}") from e
    except (msgspec.MsgspecError, ValueError) as e:
        raise UsageError(f"{ENV_MEASURED_LINKS}={path}: {e}") from e
    found: dict[frozenset[str], float] = {}
    for pair in file.pairs:
        devices = frozenset(pair.devices)
        if len(devices) != 2 or not math.isfinite(pair.gb_s) or pair.gb_s <= 0:
            raise UsageError(
                f"{ENV_MEASURED_LINKS}={path}: pair {list(pair.devices)} with gb_s = {pair.gb_s:g}: "
                "expected two different devices and a number > 0"
            )
        found[devices] = pair.gb_s
    return found


def by_index(measured: Mapping[frozenset[str], float], snapshot: Snapshot) -> dict[tuple[int, int], float]:
    """The measured pairs of this host by NVML index, the smaller first. Pairs of other hosts are left out."""
    uuids = {g.index: g.uuid for g in snapshot.gpus if g.uuid is not None}
    return {
        (i, j): measured[frozenset((uuids[i], uuids[j]))]
        for i in uuids
        for j in uuids
        if i < j and frozenset((uuids[i], uuids[j])) in measured
    }
