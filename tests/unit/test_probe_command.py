"""`heet probe`: what people and programs read."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from heet_elastic.cli.probe import probe
from tests.fake_nvml import boxes, build

app = typer.Typer()
app.command()(probe)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries()))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "box"))
    monkeypatch.setenv("HEET_HOST", "node7")
    monkeypatch.setenv("HEET_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def run(box: boxes.Box, *arguments: str, **variables: str):
        box.write(tmp_path / "box")
        return CliRunner().invoke(app, arguments, env=variables, catch_exceptions=False)

    return run


def test_a_person_reads_devices_types_links_and_notes(run):
    box = boxes.a40_bridged_pairs()
    box.set("gpu", 2, ecc=0, processes=0, utilization=37, temperature=61)
    box.link(0, 1, up=0)
    result = run(box)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[0].startswith("Host node7 at ")
    assert "NVIDIA driver 570.86.15, CUDA up to 12.8" in lines
    assert f"{box.uuid(2)} A40 48GB nvlink-pairs 46068 MiB 8.6 1 37 % 0 MiB 61 C usable" in lines
    assert "Offered: 4 x A40 48GB nvlink-pairs" in lines
    assert "Link 2-3: nvlink x4 (100 GB/s)" in lines
    assert "Link 0-2: across sockets (32 GB/s)" in lines
    assert "Note: GPU 0: NVLink 1 is down" in lines


def test_a_program_reads_json_with_unknown_as_null(run):
    box = boxes.unified_memory()
    result = run(box, "--json")
    found = json.loads(result.output)
    assert found["host"] == "node7"
    assert found["host_types"] == {"GB10 pcie": 1}
    assert found["gpus"][0]["uuid"] == box.uuid(0)
    assert found["gpus"][0]["memory_mib"] is None
    assert found["nvml"]["driver"] == "570.86.15"
    pairs = json.loads(run(boxes.a10_pair(), "--json").output)["links"]
    assert [(p["path"], p["text"]) for p in pairs] == [("one host bridge", "one host bridge (32 GB/s)")]


def test_many_links_are_counted_by_kind(run):
    result = run(boxes.box(*[("Tesla T4", 15360, 75)] * 9, sockets=3))
    lines = result.output.splitlines()
    assert "Links: 27 pairs across sockets (32 GB/s)" in lines
    assert "Links: 9 pairs one host bridge (32 GB/s)" in lines


def test_hidden_devices_are_said(run):
    box = boxes.a10_pair()
    result = run(box, CUDA_VISIBLE_DEVICES="1")
    assert f"Not offered (not visible to this process): {box.uuid(0)}" in result.output.splitlines()
    assert "Offered: 1 x A10 24GB pcie" in result.output


def test_a_host_without_a_usable_device_ends_with_1_and_the_reason(run):
    box = boxes.a10_pair()
    box.set("call", 0, 0, nvmlInitWithFlags=18)
    result = run(box)
    assert result.exit_code == 1
    assert "different versions: reboot" in result.output
    assert "Offered: nothing" in result.output


def test_an_inventory_is_said_to_be_one(run, tmp_path):
    (tmp_path / "i.toml").write_text('[hosts.node7]\ngpus=[{model="T4", count=2}]\n')
    result = run(boxes.a10_pair(), HEET_INVENTORY=str(tmp_path / "i.toml"))
    assert "inventory file; nothing was probed" in result.output
    assert "Offered: 2 x T4 pcie" in result.output
