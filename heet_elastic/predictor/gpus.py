"""Datasheet facts of named GPUs, and the roofline prior that a cluster without any history starts from.

Facts per device as NVIDIA's datasheets state them (dense rates, boost clock; for cards with two devices, one of them).
Training is bound by memory traffic or by arithmetic, in shares that the datasheet cannot know; the prior takes the
geometric mean of both rates (Williams et al., "Roofline", CACM 2009, gives the two bounds). What comes of it is always
labelled `Source.PRIOR`: it says how host types compare before anything was measured, nothing more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Peak rates of one device. `tensor_tflops` is dense FP16 with FP32 accumulation; None = no tensor cores."""

    model: str
    fp32_tflops: float
    tensor_tflops: float | None
    memory_gb_s: float
    source: str


def _facts(model: str, fp32: float, tensor: float | None, memory: float, source: str) -> GpuFacts:
    return GpuFacts(model, fp32, tensor, memory, f"NVIDIA {source}")


GPUS: tuple[GpuFacts, ...] = (
    _facts("K80", 4.37, None, 240, "Tesla K80 datasheet (one of two GK210)"),
    _facts("M60", 4.8, None, 160, "Tesla M60 datasheet (one of two GM204)"),
    _facts("P4", 5.5, None, 192, "Tesla P4 datasheet"),
    _facts("P40", 12.0, None, 346, "Tesla P40 datasheet"),
    _facts("P100", 9.3, None, 732, "Tesla P100 PCIe datasheet"),
    _facts("P100 SXM2", 10.6, None, 732, "Tesla P100 SXM2 datasheet"),
    _facts("V100", 14.0, 112, 900, "Tesla V100 PCIe datasheet"),
    _facts("V100 SXM2", 15.7, 125, 900, "Tesla V100 SXM2 datasheet"),
    _facts("V100 SXM3", 15.7, 125, 900, "Tesla V100 SXM3 (DGX-2) datasheet"),
    _facts("V100S", 16.4, 130, 1134, "V100S PCIe datasheet"),
    _facts("T4", 8.1, 65, 320, "T4 datasheet"),
    _facts("A2", 4.5, 18, 200, "A2 datasheet"),
    _facts("A10", 31.2, 125, 600, "A10 datasheet"),
    _facts("A10G", 31.2, 70, 600, "A10G as listed for AWS G5"),
    _facts("A30", 10.3, 165, 933, "A30 datasheet"),
    _facts("A40", 37.4, 149.7, 696, "A40 datasheet"),
    _facts("A100", 19.5, 312, 1555, "A100 40GB datasheet"),
    _facts("A100 80GB", 19.5, 312, 2039, "A100 80GB SXM datasheet"),
    _facts("L4", 30.3, 121, 300, "L4 datasheet"),
    _facts("L40", 90.5, 181, 864, "L40 datasheet"),
    _facts("L40S", 91.6, 362, 864, "L40S datasheet"),
    _facts("H100", 67.0, 989, 3350, "H100 SXM datasheet"),
    _facts("H100 PCIE", 51.0, 756, 2000, "H100 PCIe datasheet"),
    _facts("H100 NVL", 60.0, 835, 3900, "H100 NVL datasheet"),
    _facts("H200", 67.0, 989, 4800, "H200 datasheet"),
    _facts("GH200", 67.0, 989, 4000, "GH200 datasheet"),
    _facts("B200", 75.0, 2250, 8000, "DGX B200 datasheet, per GPU"),
    _facts("GTX 1080", 8.9, None, 320, "GeForce GTX 1080 product page"),
    _facts("GTX 1080 TI", 11.3, None, 484, "GeForce GTX 1080 Ti product page"),
    _facts("TITAN V", 13.8, 110, 653, "TITAN V product page"),
    _facts("TITAN RTX", 16.3, 130, 672, "TITAN RTX product page"),
    _facts("RTX 2080", 10.1, 40.3, 448, "Turing architecture whitepaper"),
    _facts("RTX 2080 TI", 13.4, 53.8, 616, "Turing architecture whitepaper"),
    _facts("QUADRO RTX 6000", 16.3, 130.5, 672, "Quadro RTX 6000 datasheet"),
    _facts("QUADRO RTX 8000", 16.3, 130.5, 672, "Quadro RTX 8000 datasheet"),
    _facts("RTX 3080", 29.8, 59.5, 760, "Ampere GA102 whitepaper"),
    _facts("RTX 3090", 35.6, 71, 936, "Ampere GA102 whitepaper"),
    _facts("RTX 4090", 82.6, 165.2, 1008, "Ada architecture whitepaper"),
    _facts("A4000", 19.2, 76.7, 448, "RTX A4000 datasheet"),
    _facts("A5000", 27.8, 111.1, 768, "RTX A5000 datasheet"),
    _facts("A6000", 38.7, 154.8, 768, "RTX A6000 datasheet"),
    _facts("RTX 6000 ADA", 91.1, 364.2, 960, "RTX 6000 Ada datasheet"),
)

REFERENCE = next(g for g in GPUS if g.model == "V100")
"""The device whose prior speed is 1, the same as that of a model that nobody knows."""


def _pattern(model: str) -> re.Pattern[str]:
    words = [re.sub(r"(?<=[A-Z])(?=\d{3})|(?<=\d)(?=TI$)", " ", w) for w in model.split()]
    body = r"\s?".join(r"\s?".join(w.split()) for w in words)
    return re.compile(rf"(?<![A-Z0-9]){body}(?![A-Z0-9])")


_PATTERNS = sorted(((_pattern(g.model), g) for g in GPUS), key=lambda p: -len(p[1].model))


@lru_cache(maxsize=4096)
def find_gpu(host_type: str) -> GpuFacts | None:
    """The facts of the GPU that a host type names, the most specific entry first; None for a model not listed.

    `host_type` is free text such as "NVIDIA A100-SXM4-80GB pcie" or "RTX2080Ti".
    """
    text = re.sub(r"[^A-Z0-9]+", " ", host_type.upper())
    words = set(text.split())
    for pattern, facts in _PATTERNS:
        model_words = facts.model.split()
        # "A100 80GB" and "V100 SXM2" are written with other words in between: every word must be there.
        if pattern.search(text) or (len(model_words) == 2 and words.issuperset(model_words)):
            return facts
    return None


def prior_speed(host_type: str) -> float:
    """Expected speed of one worker on this host type relative to `REFERENCE`; 1 for an unknown model. > 0."""
    facts = find_gpu(host_type)
    if facts is None:
        return 1.0
    return math.sqrt((facts.fp32_tflops / REFERENCE.fp32_tflops) * (facts.memory_gb_s / REFERENCE.memory_gb_s))
