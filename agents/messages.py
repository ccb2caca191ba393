"""The sampler's message: one datagram of a worker to the agent on its host. Stdlib only (it is imported in workers).

Counters are cumulative since the worker started, so a lost datagram loses no step. JSON, at most MAX_BYTES; the agent
treats it as untrusted. Times are the host's monotonic clock, which worker and agent share.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from typing import Any

VERSION = 1
MAX_BYTES = 4096

ENV_SOCKET = "HEET_SAMPLE_SOCKET"
"""Path of the agent's Unix datagram socket; absent = this process is no worker of a heet job."""
ENV_AGENT_PID = "HEET_AGENT_PID"
"""The sampler acts only where the parent process has this pid."""
ENV_ROUND = "HEET_ROUND"
ENV_CONFIGURATION = "HEET_CONFIGURATION"
"""Round and configuration ("workers/hosts/host type", or "mixed") that the worker runs in, for people and logs."""


@dataclass(frozen=True, slots=True)
class SampleMessage:
    """Cumulative counters of one worker.

    at_s: monotonic time of the last optimizer step counted here. first_step_s: of the first one. steps: optimizer steps
    of the root module. samples, tokens: from the batches of training forwards of this worker. step_s, step_spread_s:
    robust time of one step (median over windows, median absolute deviation) after warm-up; 0 = not yet known.
    paused_s: time in checkpoints and evaluation, left out of step_s. stalled_s: time lost in windows far slower than
    the median (data). compute_s: from the first forward pass of a step to its end, 0 = unknown. marked_*: counters at
    the last checkpoint noticed. loads, weight_loads: optimizer states and model weights loaded. loaded_steps: step
    count restored from an optimizer state, None = none seen.
    """

    pid: int
    local_rank: int
    rank: int
    round: int
    at_s: float
    first_step_s: float
    steps: int
    samples: float
    tokens: float
    step_s: float = 0.0
    step_spread_s: float = 0.0
    windows: int = 0
    stalled_s: float = 0.0
    paused_s: float = 0.0
    compute_s: float = 0.0
    marks: int = 0
    marked_steps: int = 0
    marked_samples: float = 0.0
    loads: int = 0
    weight_loads: int = 0
    loaded_steps: float | None = None
    done: float | None = None
    total: float | None = None
    parameters: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    dtype: str | None = None
    batch: float | None = None
    device: str | None = None
    problem: str | None = None  # why the sampler disabled itself, or what it cannot see


def pack(message: SampleMessage) -> bytes:
    """The datagram of a message."""
    return json.dumps({"v": VERSION, **asdict(message)}, separators=(",", ":")).encode()


_TYPES = {f.name: str(f.type) for f in fields(SampleMessage)}


def unpack(datagram: bytes) -> SampleMessage:
    """The message in a datagram. ValueError names what is wrong; unknown fields are ignored."""
    if len(datagram) > MAX_BYTES:
        raise ValueError(f"sample of {len(datagram)} bytes: at most {MAX_BYTES}")
    try:
        data = json.loads(datagram)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"sample is not JSON: {e}") from e
    if not isinstance(data, dict) or data.get("v") != VERSION:
        raise ValueError("sample has another version")
    known: dict[str, Any] = {}
    for name, kind in _TYPES.items():
        if name not in data:
            continue
        value = data[name]
        if value is None and "None" in kind:
            known[name] = None
        elif "str" in kind:
            if not isinstance(value, str):
                raise ValueError(f"sample field {name} is {value!r}: expected text")
            known[name] = value[:200]
        else:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise ValueError(f"sample field {name} is {value!r}: expected a finite number >= 0")
            known[name] = value if "float" in kind else int(value)
    try:
        return SampleMessage(**known)
    except TypeError as e:
        raise ValueError(f"sample is incomplete: {e}") from e
