"""What a host offers: settings, CPU slots, inventory, GPUs behind visible devices and locks."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from heet_elastic.agents import kernel, locks
from heet_elastic.agents.hosts import HostSettings, check_workers, examine_host, probe_host
from heet_elastic.agents.visible import Request
from heet_elastic.errors import UsageError
from heet_elastic.model import merge_hosts
from tests.fake_nvml import boxes, build


@pytest.fixture
def become(tmp_path, monkeypatch):
    def become(box: boxes.Box, **kind: bool) -> boxes.Box:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries(**kind)))
        monkeypatch.setenv("FAKE_NVML", str(tmp_path / "box"))
        box.write(tmp_path / "box")
        return box

    return become


@pytest.fixture
def settings(tmp_path):
    return HostSettings(host="h", lock_dir=tmp_path / "locks", address="127.0.0.1")


def uuids(settings: HostSettings) -> list[str]:
    return [g.uuid for g in probe_host(settings, "a").gpus]


def test_settings_come_from_the_environment_once(tmp_path):
    environ = {
        "HEET_HOST": "left",
        "HEET_ADDRESS": "10.0.0.1",
        "HEET_SLOTS": "3",
        "HEET_LOCK_DIR": str(tmp_path),
        "HEET_INVENTORY": "i.toml",
        "HEET_PROBE_TIMEOUT": "2.5",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    made = HostSettings.from_environment(environ)
    assert (made.host, made.address, made.slots, made.probe_timeout_s) == ("left", "10.0.0.1", 3, 2.5)
    assert (str(made.inventory), made.lock_dir) == ("i.toml", tmp_path)
    assert made.visible == Request("1", "PCI_BUS_ID")


def test_cpu_slots_are_the_usable_cpus_or_more_when_more_workers_are_wished_for():
    cpus = len(os.sched_getaffinity(0))
    assert HostSettings.from_environment({}).slots == cpus
    assert HostSettings.from_environment({}, nproc=1).slots == cpus
    assert HostSettings.from_environment({}, nproc=cpus + 5).slots == cpus + 5


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("HEET_SLOTS", "0", "expected a whole number from 1 to 1024"),
        ("HEET_SLOTS", "2.5", "expected a whole number"),
        ("HEET_SLOTS", "many", "HEET_SLOTS is 'many'"),
        ("HEET_PROBE_TIMEOUT", "-1", "HEET_PROBE_TIMEOUT is '-1': expected a number from 0.1"),
        ("HEET_PROBE_TIMEOUT", "nan", "expected a number"),
        ("HEET_HOST", "a\nb", "HEET_HOST: the host name 'a\\\\nb' contains a control character"),
        ("HEET_HOST", "x" * 129, "at most 128"),
    ],
)
def test_wrong_settings_are_sentences(name, value, complaint):
    with pytest.raises(UsageError, match=complaint):
        HostSettings.from_environment({name: value})


def test_a_host_without_gpus_offers_cpu_slots_of_its_cpus_type(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries()))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "no driver"))
    found = examine_host(replace(settings, slots=2), "agent", root=tmp_path)
    assert found.source == "cpu"
    record = found.record
    assert [g.uuid for g in record.gpus] == ["CPU-h-0", "CPU-h-1"]
    assert record.gpus[0].host_type.startswith("CPU ")
    assert record.gpus[0].link == "none"
    assert (record.host, record.agent, record.address, record.network) == ("h", "agent", "127.0.0.1", "loopback")
    assert record.boot_id


def test_an_inventory_replaces_probing(settings, tmp_path, become):
    become(boxes.a10_pair())
    (tmp_path / "i.toml").write_text('[hosts.h]\naddress="10.1.1.1"\ngpus=[{model="T4", count=2}]\n')
    settings = replace(settings, inventory=tmp_path / "i.toml", address="", visible=Request("7"))
    record = probe_host(settings, "a")
    assert [g.uuid for g in record.gpus] == ["GPU-h-0", "GPU-h-1"]
    assert record.address == "10.1.1.1"
    assert probe_host(replace(settings, address="10.2.2.2"), "a").address == "10.2.2.2"


def test_three_pretend_hosts_on_one_machine_share_no_device(tmp_path):
    (tmp_path / "i.toml").write_text("".join(f'[hosts.h{i}]\ngpus=[{{model="T4", count=2}}]\n' for i in range(3)))
    environ = {"HEET_INVENTORY": str(tmp_path / "i.toml")}
    records = [probe_host(HostSettings.from_environment(environ | {"HEET_HOST": f"h{i}"}), "a") for i in range(3)]
    assert len({g.uuid for r in records for g in r.gpus}) == 6
    assert len({r.boot_id for r in records}) == 1


@pytest.mark.parametrize("value", ["", "-1"])
def test_c48_hidden_gpus_mean_cpu_slots_without_asking_the_driver(settings, become, value):
    box = boxes.a10_pair()
    box.set("call", 0, 0, nvmlInitWithFlags="hang")
    become(box)
    assert all(u.startswith("CPU-h-") for u in uuids(replace(settings, visible=Request(value))))


def test_c48_only_visible_devices_are_offered_and_the_type_is_that_of_the_whole_host(settings, become):
    box = become(boxes.hgx_h100())
    found = examine_host(replace(settings, visible=Request("2,5")), "a")
    assert [g.uuid for g in found.record.gpus] == [box.uuid(2), box.uuid(5)]
    assert {g.host_type for g in found.record.gpus} == {"H100 80GB nvswitch"}
    assert len(found.hidden) == 6
    one = examine_host(replace(settings, visible=Request(box.uuid(3))), "a")
    assert [(g.uuid, g.host_type) for g in one.record.gpus] == [(box.uuid(3), "H100 80GB nvswitch")]


def test_c49_indexes_on_a_mixed_host_are_mapped_by_cuda_itself(settings, become):
    box = boxes.gtx_and_rtx()
    # Under CUDA_VISIBLE_DEVICES=0 CUDA lists its fastest card alone; NVML numbers that one 1.
    box.set("system", 0, cuda_count=1)
    become(box)
    assert uuids(replace(settings, visible=Request("0"))) == [box.uuid(1)]
    assert uuids(replace(settings, visible=Request("0", "PCI_BUS_ID"))) == [box.uuid(0)]


def test_c49_without_cuda_indexes_on_a_mixed_host_are_refused(settings, become):
    become(boxes.gtx_and_rtx(), cuda=False)
    with pytest.raises(UsageError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        probe_host(replace(settings, visible=Request("0")), "a")


def test_c49_host_types_do_not_depend_on_the_order_of_nvml(settings, become):
    box = boxes.gtx_and_rtx()
    before = {g.uuid: g.host_type for g in probe_host(become(box) and settings, "a").gpus}
    zero, one = ({k[3]: v for k, v in box.answers.items() if k[:2] == ("gpu", i)} for i in (0, 1))
    box.set("gpu", 0, **one)
    box.set("gpu", 1, **zero)
    become(box)
    assert {g.uuid: g.host_type for g in probe_host(settings, "a").gpus} == before
    assert uuids(replace(settings, visible=Request("0", "PCI_BUS_ID"))) == [box.uuid(1)]  # by address


def test_a_mixed_host_is_two_device_groups_of_one_host(settings, become):
    become(boxes.gtx_and_rtx())
    merged = merge_hosts([probe_host(settings, "a"), probe_host(settings, "b")])["h"]
    assert sorted(g.host_type for g in merged.gpus) == ["GTX 1660 6GB pcie", "RTX 3090 24GB pcie"]


def test_c06_a_gpu_with_a_foreign_process_is_unusable_unless_its_lock_is_held(settings, become):
    box = boxes.a10_pair()
    box.set("gpu", 0, processes=1)
    box.set("process", 0, 0, pid=os.getpid(), memory_mib=100)
    become(box)
    first, second = probe_host(settings, "a").gpus
    assert str(first.unusable).startswith(f"in use by pid {os.getpid()} (")
    assert second.unusable is None
    locks.prepare(settings.lock_dir)
    held = locks.take(settings.lock_dir, box.uuid(0), "job x")
    assert isinstance(held, locks.Held)
    assert [g.unusable for g in probe_host(settings, "b").gpus] == [None, None]
    locks.free(held)


def test_c48_several_workers_on_mig_instances_are_refused_unless_each_sees_its_own(settings, become):
    become(boxes.a100_mig())
    record = probe_host(replace(settings, visible=Request("0")), "a")
    assert len(record.gpus) == 3
    check_workers(record, 1, virtual_local_rank=False)
    check_workers(record, 3, virtual_local_rank=True)
    with pytest.raises(UsageError, match="--nproc-per-node=3 needs --virtual-local-rank"):
        check_workers(record, 3, virtual_local_rank=False)
    become(boxes.a10_pair())
    check_workers(probe_host(settings, "a"), 2, virtual_local_rank=False)


def test_measured_links_outrank_nvml(settings, become, tmp_path):
    box = become(boxes.a40_bridged_pairs())
    measured = tmp_path / "links.toml"
    measured.write_text(
        f'[[pairs]]\ndevices = ["{box.uuid(1)}", "{box.uuid(0)}"]\ngb_s = 9.5\n'
        '[[pairs]]\ndevices = ["GPU-elsewhere", "GPU-other"]\ngb_s = 50\n'
    )
    found = examine_host(HostSettings("h", settings.lock_dir, measured_links=measured), "a")
    assert [g.link for g in found.record.gpus] == ["pcie", "pcie", "nvlink", "nvlink"]
    assert HostSettings.from_environment({"HEET_MEASURED_LINKS": str(measured)}).measured_links == measured


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[pairs]]\ndevices = ["GPU-a", "GPU-a"]\ngb_s = 9.5', "expected two different devices"),
        ('[[pairs]]\ndevices = ["GPU-a", "GPU-b"]\ngb_s = 0.0', "a number > 0"),
        ('[[pairs]]\ndevices = ["GPU-a"]\ngb_s = 1', "length 2"),
        ('[[pairs]]\ndevices = ["GPU-a", "GPU-b"]\nspeed = 1', "unknown field `speed`"),
        ("pairs = ", "Invalid value"),
        (None, "cannot be read"),
    ],
)
def test_mistakes_in_measured_links_are_sentences(settings, become, tmp_path, text, complaint):
    become(boxes.a10_pair())
    if text is not None:
        (tmp_path / "links.toml").write_text(text)
    with pytest.raises(UsageError, match=f"HEET_MEASURED_LINKS=.*links.toml.*{complaint}"):
        probe_host(replace(settings, measured_links=tmp_path / "links.toml"), "a")


def test_a_card_in_mig_mode_without_instances_is_unusable_with_what_to_do(settings, become):
    box = boxes.a10_pair()
    box.set("gpu", 0, mig=1, most_instances=7)
    become(box)
    assert "nvidia-smi mig" in str(probe_host(settings, "a").gpus[0].unusable)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n", "AMD EPYC 7763 64-Core Processor"),
        ("processor : 0\nHardware : BCM2835\n", "BCM2835"),
        ("processor : 0\n", os.uname().machine),
    ],
)
def test_the_cpu_model_is_what_the_kernel_says(tmp_path, text, expected):
    (tmp_path / "cpuinfo").write_text(text)
    assert kernel.cpu_model(tmp_path / "cpuinfo") == expected
    assert kernel.cpu_model(tmp_path / "nothing") == os.uname().machine


def test_a_probe_leaves_no_process_behind(settings, become):
    box = boxes.a10_pair()
    box.set("call", 0, 0, nvmlDeviceGetName="hang")
    become(box)
    probe_host(replace(settings, probe_timeout_s=1.0), "a")
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True, check=False
    ).stdout
    assert "nvml_child" not in children
