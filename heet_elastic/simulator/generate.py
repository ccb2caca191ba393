"""Own tables and traces, so that a simulation runs with no data at all.

Speeds: a roofline for the step (arithmetic or memory traffic, whichever takes longer, at a share of the datasheet's
peak) plus a ring all-reduce of the gradients over the slowest link, hidden behind the backward pass as far as it lasts:

    t(w) = t_forward + max(t_backward, t_ring(w)),   t_ring(w) = 2 (w-1)/w bytes / bandwidth + 2 (w-1) latency

It says how kinds of hosts and models compare, nothing about a real cluster; reports name it "generated".
Jobs: Poisson arrivals, log-normal durations with the heavy tail of published traces, mostly one GPU asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heet_elastic.errors import UsageError
from heet_elastic.predictor.gpus import GpuFacts, find_gpu
from heet_elastic.simulator.cluster import HostGroup
from heet_elastic.simulator.traces import Trace, TraceJob
from heet_elastic.simulator.truth import Cells, Row, Truth

PEAK_SHARE = 0.35
"""Share of the datasheet's arithmetic and memory rates that training reaches; the same for all, so it cancels out."""
PCIE_GB_S, NVLINK_GB_S, NETWORK_GB_S = 10.0, 100.0, 3.0
"""Ring bandwidth within a host over PCIe 3, within a host over NVLink, and between hosts (25 GbE)."""
LATENCY_S = 30e-6
NVLINKED = ("V100", "A100", "H100", "H200", "B200", "GH200")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model and its usual batch per worker: parameters, forward arithmetic and memory traffic of one sample."""

    name: str
    parameters_m: float
    gflop: float
    traffic_mb: float
    batch: int
    half_precision: bool


MODELS: tuple[ModelFacts, ...] = (
    ModelFacts("resnet18", 11.7, 3.6, 60, 128, False),
    ModelFacts("resnet50", 25.6, 8.2, 220, 64, False),
    ModelFacts("resnet152", 60.2, 23.1, 480, 32, False),
    ModelFacts("vgg16", 138.4, 31.0, 240, 32, False),
    ModelFacts("mobilenet-v2", 3.5, 0.6, 130, 128, False),
    ModelFacts("yolov3", 62.0, 65.9, 700, 8, False),
    ModelFacts("deepspeech2", 38.0, 12.0, 150, 16, False),
    ModelFacts("ncf", 31.8, 0.002, 0.02, 65536, False),
    ModelFacts("transformer-base", 65.0, 12.0, 120, 32, True),
    ModelFacts("bert-base", 110.0, 22.0, 260, 16, True),
    ModelFacts("bert-large", 340.0, 79.0, 700, 8, True),
    ModelFacts("gpt2", 124.0, 254.0, 1500, 4, True),
)
"""Public facts (parameters, multiply-adds x 2 at the usual input size); traffic is an estimate from activations."""


def generated_truth(groups: Sequence[HostGroup]) -> Truth:
    """True speeds of `MODELS` on the host types of a cluster. UsageError for a GPU without datasheet facts."""
    gpus: dict[str, tuple[GpuFacts, int, int]] = {}
    for group in groups:
        facts = find_gpu(group.host_type)
        if facts is None:
            raise UsageError(
                f"--cluster: no datasheet facts of {group.host_type!r}, so no speeds can be generated; "
                "name a known GPU (T4, V100, A100, ...) or give measured ones with --throughputs"
            )
        _, largest, total = gpus.get(group.host_type, (facts, 0, 0))
        gpus[group.host_type] = (facts, max(largest, group.gpus), total + group.hosts * group.gpus)
    return Truth(
        Row(m.name, m.name, "samples/s", {t: _cells(m, t, *facts) for t, facts in gpus.items()}) for m in MODELS
    )


def _cells(model: ModelFacts, host_type: str, facts: GpuFacts, per_host: int, total: int) -> Cells:
    counts = sorted({2**k for k in range(int(math.log2(total)) + 1)} | {per_host, total})
    cells: Cells = {}
    for w in counts:
        dense = -(-w // per_host)
        for hosts in {dense, min(dense + 1, w)}:
            cells[w, hosts] = w * model.batch / step_s(model, host_type, facts, w, hosts)
    return cells


def step_s(model: ModelFacts, host_type: str, facts: GpuFacts, workers: int, hosts: int) -> float:
    """Seconds of one optimizer step: see the module's formula. Backward takes twice the forward's time."""
    tflops = (facts.tensor_tflops if model.half_precision else None) or facts.fp32_tflops
    arithmetic = model.batch * model.gflop * 1e9 / (tflops * 1e12)
    memory = model.batch * model.traffic_mb * 1e6 / (facts.memory_gb_s * 1e9)
    forward = max(arithmetic, memory) / PEAK_SHARE
    if workers == 1:
        return 3 * forward
    inside = NVLINK_GB_S if any(n in host_type.upper() for n in NVLINKED) else PCIE_GB_S
    link = inside if hosts == 1 else min(inside, NETWORK_GB_S)
    gradient_bytes = model.parameters_m * 1e6 * (2 if model.half_precision else 4)
    ring = 2 * (workers - 1) / workers * gradient_bytes / (link * 1e9) + 2 * (workers - 1) * LATENCY_S
    return forward + max(2 * forward, ring)


def synthetic_trace(jobs: int, seed: int, largest: int) -> Trace:
    """`jobs` jobs: Poisson arrivals (rescale them with a load), durations log-normal (median 15 minutes, sigma 1.8).

    GPUs requested: 1 (70 %), 2, 4, 8, 16 (the rest, halving), at most `largest`. Deterministic in `seed`.
    """
    rng = np.random.default_rng([seed, 0x73796E74])
    submits = np.cumsum(rng.exponential(60.0, jobs))
    durations = np.clip(rng.lognormal(math.log(900.0), 1.8, jobs), 60.0, 7 * 86400.0)
    requested = rng.choice([1, 2, 4, 8, 16], size=jobs, p=[0.70, 0.12, 0.08, 0.07, 0.03])
    entries = tuple(
        TraceJob(
            line=i + 1,
            job_id=f"job-{i:06d}",
            submit_s=float(submits[i]),
            requested=int(min(requested[i], largest)),
            duration_s=float(durations[i]),
        )
        for i in range(jobs)
    )
    return Trace("synthetic", "synthetic", entries)
