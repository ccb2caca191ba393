"""Host type names: the same for the same hardware, whatever the driver calls it."""

from __future__ import annotations

import pytest

from heet_elastic.agents.names import box_memory_gb, cpu_type, host_type, short_model
from heet_elastic.predictor.gpus import find_gpu


@pytest.mark.parametrize(
    ("name", "memory_mib", "link", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", 40536, "nvswitch", "A100-SXM4 40GB nvswitch"),
        ("A100-SXM4-40GB", 40536, "nvswitch", "A100-SXM4 40GB nvswitch"),  # as older drivers say it
        ("NVIDIA A100-SXM4-80GB", 81251, "nvswitch", "A100-SXM4 80GB nvswitch"),
        ("NVIDIA A100 80GB PCIe", 81920, "pcie", "A100 PCIe 80GB pcie"),
        ("NVIDIA H100 80GB HBM3", 81559, "nvswitch", "H100 80GB nvswitch"),
        ("NVIDIA H100 NVL", 95830, "nvlink", "H100 NVL 94GB nvlink"),
        ("NVIDIA H200", 143771, "nvswitch", "H200 141GB nvswitch"),
        ("NVIDIA GH200 480GB", 97871, "pcie", "GH200 96GB pcie"),
        ("Tesla V100-SXM2-16GB", 16160, "nvlink", "V100-SXM2 16GB nvlink"),
        ("Tesla V100-SXM2-32GB", 32510, "nvlink", "V100-SXM2 32GB nvlink"),
        ("Tesla T4", 15109, "pcie", "T4 16GB pcie"),
        ("Tesla T4", 15360, "pcie", "T4 16GB pcie"),  # without ECC's share
        ("NVIDIA A10", 22731, "pcie", "A10 24GB pcie"),
        ("NVIDIA A10", 23028, "pcie", "A10 24GB pcie"),
        ("NVIDIA L4", 23034, "pcie", "L4 24GB pcie"),
        ("Tesla K80", 11441, "pcie", "K80 12GB pcie"),
        ("NVIDIA GeForce GTX 1660", 6144, "pcie", "GTX 1660 6GB pcie"),
        ("GeForce RTX 3090", 24268, "pcie", "RTX 3090 24GB pcie"),
        ("NVIDIA GeForce RTX 2080 Ti", 11019, "pcie", "RTX 2080 Ti 11GB pcie"),
        ("Quadro RTX 6000", 24220, "pcie", "Quadro RTX 6000 24GB pcie"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "pcie", "RTX 6000 Ada Generation 48GB pcie"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, "none", "A100-SXM4 MIG 1g.5gb"),
        ("NVIDIA GB10", None, "pcie", "GB10 pcie"),
        (None, None, "unknown", "unknown GPU unknown-link"),
        ("", 8192, "pcie", "unknown GPU 8GB pcie"),
    ],
)
def test_host_types_by_nvml_name(name, memory_mib, link, expected):
    assert host_type(name, memory_mib, link) == expected
    assert short_model(short_model(name)) == short_model(name)


@pytest.mark.parametrize("model", ["V100-SXM2", "T4", "A10", "A100-SXM4", "H100", "H200", "RTX 3090", "L4"])
def test_the_prior_knows_the_gpus_of_these_names(model):
    assert find_gpu(host_type(model, 16384, "pcie")) is not None


def test_the_prior_tells_the_two_sizes_of_an_a100_apart():
    found = [find_gpu(host_type(f"NVIDIA A100-SXM4-{n}GB", n * 1024, "nvswitch")) for n in (40, 80)]
    assert [f.model for f in found if f is not None] == ["A100", "A100 80GB"]


def test_memory_that_no_card_has_is_rounded():
    assert box_memory_gb(16 * 1024) == 16
    assert box_memory_gb(13 * 1024) == 13
    assert box_memory_gb(100) == 1
    assert box_memory_gb(400 * 1024) == 400


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("AMD EPYC 7763 64-Core Processor", "CPU AMD EPYC 7763"),
        ("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", "CPU Intel Xeon E5-2686 v4"),
        ("AMD Ryzen 7 5800H with Radeon Graphics", "CPU AMD Ryzen 7 5800H"),
        ("aarch64", "CPU aarch64"),
        ("", "CPU unknown"),
    ],
)
def test_cpu_types(model, expected):
    assert cpu_type(model) == expected
