"""Real cards: what probing says against what nvidia-smi and CUDA say. Skipped where there are none.

On a GPU host: python -m pytest -m gpu tests/unit/test_gpu_hardware.py -s (prints what docs/hardware.md wants).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from heet_elastic.agents import probe
from heet_elastic.agents.hosts import HostSettings, examine_host, monitor_host, probe_host
from heet_elastic.agents.topology import find_links
from heet_elastic.agents.visible import Request, worker_environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA driver on this host"),
]


def smi(fields: str) -> list[list[str]]:
    """Rows of nvidia-smi in PCI order."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi on this host")
    run = subprocess.run(
        ["nvidia-smi", f"--query-gpu=pci.bus_id,{fields}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in run.stdout.splitlines()]
    return [row[1:] for row in sorted(rows)]


@pytest.fixture
def settings(tmp_path) -> HostSettings:
    return HostSettings(host="h", lock_dir=tmp_path / "locks", address="127.0.0.1")


def test_every_card_is_found_as_nvidia_smi_says(settings):
    found = examine_host(settings, "a")
    print(json.dumps(asdict(found.record), indent=1), *map(str, found.links.pairs if found.links else ()), sep="\n")
    assert found.source == "nvml"
    assert found.snapshot is not None
    facts = sorted(found.snapshot.gpus, key=lambda g: g.pci or "")
    said = smi("uuid,name,memory.total")
    assert [g.uuid for g in facts] == [row[0] for row in said]
    assert [g.name for g in facts] == [row[1] for row in said]
    for gpu, row in zip(facts, said, strict=True):
        if gpu.memory_mib is not None:
            assert abs(gpu.memory_mib - float(row[2])) <= 1024  # newer nvidia-smi leaves the driver's share out
    assert all(g.link != "unknown" for g in found.record.gpus)


def test_two_probes_agree(settings):
    assert [g.host_type for g in probe_host(settings, "a").gpus] == [
        g.host_type for g in probe_host(settings, "b").gpus
    ]


def test_links_are_those_of_nvidia_smi_topo():
    links = find_links(probe.take_snapshot(60))
    text = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False).stdout
    print(text, *map(str, links.pairs), sep="\n")
    if links.pairs and text:
        assert ("NV" in text.split("Legend")[0]) == any(p.path in ("nvlink", "nvswitch") for p in links.pairs)


def test_cuda_in_a_worker_sees_exactly_the_card_that_it_was_given(settings):
    cards = [g.uuid for g in probe_host(settings, "a").gpus if g.unusable is None]
    for uuid in cards:
        seen = probe.cuda_order(worker_environment([uuid]), 60)
        assert seen is not None
        assert uuid.startswith("MIG-") or seen == (uuid,)


def test_indexes_in_pci_order_mean_what_cuda_means_by_them(settings):
    for index in range(len(probe.take_snapshot(60).gpus)):
        order = {"CUDA_VISIBLE_DEVICES": str(index), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        offered = [
            g.uuid
            for g in probe_host(HostSettings("h", settings.lock_dir, Request(str(index), "PCI_BUS_ID")), "a").gpus
        ]
        assert offered[0].startswith("MIG-") or tuple(offered) == probe.cuda_order(order, 60)


def test_the_monitor_reports_heat_and_notices_a_foreign_process(settings):
    record = probe_host(settings, "a")
    uuid = next((g.uuid for g in record.gpus if g.unusable is None and g.uuid.startswith("GPU-")), None)
    if uuid is None:
        pytest.skip("no free whole card")
    monitor = monitor_host(settings, record, interval_s=0.5)
    hold = "import ctypes, time; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); x = ctypes.c_void_p();"
    hold += "assert c.cuCtxCreate_v2(ctypes.byref(x), 0, 0) == 0; print(1, flush=True); time.sleep(600)"
    monitor.start()
    user = subprocess.Popen(
        [sys.executable, "-c", hold], env=os.environ | worker_environment([uuid]), stdout=subprocess.PIPE
    )
    try:
        assert user.stdout is not None
        assert user.stdout.readline() == b"1\n"
        deadline = time.monotonic() + 60
        while not any(g.uuid == uuid and (g.unusable or "").startswith("in use by") for g in monitor.current().gpus):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        print(*monitor.conditions(), sep="\n")
        assert any(c.uuid == uuid and (c.usage.temperature_c or 0) > 0 for c in monitor.conditions())
    finally:
        user.kill()
        user.wait()
        if user.stdout is not None:
            user.stdout.close()
        monitor.close()
