"""The real nvidia-ml-py against the stand-in library: every topology, every call failing, old and odd libraries."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import msgspec
import pytest

from heet_elastic.agents import probe
from heet_elastic.agents.facts import GpuFacts, Snapshot
from heet_elastic.agents.hosts import HostSettings, examine_host
from heet_elastic.agents.topology import find_links
from tests.fake_nvml import boxes, build

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, LOST, UNKNOWN = 3, 4, 13, 15, 999
MISMATCH = "the NVIDIA driver and its library have different versions: reboot after the update"
MANDATORY = {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that turns this host into a box, and back to one of another driver."""
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "box"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def become(box: boxes.Box, **kind: bool) -> boxes.Box:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries(**kind)))
        box.write(tmp_path / "box")
        return box

    return become


def settings(tmp_path, **changes) -> HostSettings:
    return HostSettings(**({"host": "h", "lock_dir": tmp_path / "locks"} | changes))


def types(tmp_path) -> list[str]:
    return [g.host_type for g in examine_host(settings(tmp_path), "a").record.gpus]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (boxes.a10_pair, ["A10 24GB pcie"] * 2),
        (boxes.t4_two_sockets, ["T4 16GB pcie"] * 4),
        (boxes.dgx_1v, ["V100-SXM2 16GB nvlink"] * 8),
        (boxes.hgx_h100, ["H100 80GB nvswitch"] * 8),
        (boxes.a40_bridged_pairs, ["A40 48GB nvlink-pairs"] * 4),
        (boxes.a100_vm, ["A100-SXM4 40GB nvswitch"] * 8),
        (boxes.gtx_and_rtx, ["GTX 1660 6GB pcie", "RTX 3090 24GB pcie"]),
        (boxes.vgpu, ["GRID V100D-8Q 8GB pcie"]),
        (boxes.orin, ["Orin (nvgpu) pcie"]),
        (boxes.unified_memory, ["GB10 pcie"]),
    ],
)
def test_host_types_are_the_same_with_an_old_and_a_new_driver(machine, tmp_path, make, expected):
    for old in (False, True):
        machine(make(), old=old)
        assert types(tmp_path) == expected


def test_a_snapshot_says_what_nvml_says(machine):
    box = machine(boxes.a10_pair())
    snapshot = probe.take_snapshot(30)
    assert (snapshot.driver, snapshot.cuda, snapshot.failure, snapshot.problems) == ("570.86.15", 12080, None, ())
    gpu = snapshot.gpus[1]
    assert (gpu.uuid, gpu.name, gpu.pci) == (box.uuid(1), "NVIDIA A10", "00000000:11:00.0")
    assert (gpu.memory_mib, gpu.capability, gpu.minor, gpu.numa_node) == (23028, "8.6", 1, 0)
    assert (gpu.pcie_generation, gpu.pcie_width, gpu.mig, gpu.links) == (4, 16, False, ())
    assert (gpu.usage.temperature_c, gpu.usage.remap, gpu.usage.processes) == (35, (False, False), ())
    assert gpu.problems == ()


def test_an_old_library_without_the_newest_symbols_gives_the_same_addresses_and_links(machine):
    machine(boxes.a40_bridged_pairs())
    new = probe.take_snapshot(30)
    machine(boxes.a40_bridged_pairs(), old=True)
    old = probe.take_snapshot(30)
    assert [g.pci for g in old.gpus] == ["0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"]
    assert [str(p) for p in find_links(old).pairs] == [str(p) for p in find_links(new).pairs]
    assert old.cuda == new.cuda
    assert old.gpus[0].mig is None


def test_mig_instances_are_found_in_any_place(machine, tmp_path):
    box = machine(boxes.a100_mig())
    gpus = examine_host(settings(tmp_path), "a").record.gpus
    assert [g.uuid[:5] for g in gpus] == ["MIG-0", "MIG-1", "MIG-3", "GPU-0"]
    assert [g.host_type for g in gpus[:3]] == [f"A100-SXM4 MIG {p}" for p in ("3g.20gb", "2g.10gb", "1g.5gb")]
    assert (gpus[1].memory_mib, gpus[1].link) == (9856, "none")
    box.unset("mig", 0, 0, "uuid")
    box.unset("mig", 0, 1, "uuid")
    box.unset("mig", 0, 3, "uuid")
    machine(box)
    assert "has no instance" in str(examine_host(settings(tmp_path), "a").record.gpus[0].unusable)


EVERY_CALL = """
import dataclasses, json, os, pathlib, sys
from heet_elastic.agents import nvml
path = pathlib.Path(os.environ["FAKE_NVML"])
whole = path.read_text()
for function, code in json.load(sys.stdin):
    path.with_suffix(".new").write_text(f"{whole}call 0 0 {function} {code}\\n")
    path.with_suffix(".new").rename(path)
    print(json.dumps([function, code, dataclasses.asdict(nvml.take_snapshot())]))
"""


def failing(functions, codes) -> list[tuple[str, int, Snapshot]]:
    run = subprocess.run(
        [sys.executable, "-c", EVERY_CALL],
        input=json.dumps([(f, c) for f in functions for c in codes]),
        env=probe.child_environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return [(f, c, msgspec.convert(s, Snapshot)) for f, c, s in lines]


def same_or_unknown(whole: object, now: object) -> bool:
    """Whether every value is as it was, or None: never 0, never another value."""
    if now is None or now == whole:
        return True
    if dataclasses.is_dataclass(whole) and type(now) is type(whole):
        fields = [f.name for f in dataclasses.fields(whole) if f.name not in ("problems", "lost")]
        return all(same_or_unknown(getattr(whole, f), getattr(now, f)) for f in fields)
    if isinstance(whole, tuple) and isinstance(now, tuple) and len(now) == len(whole):
        return all(map(same_or_unknown, whole, now))
    return False


def test_c46_every_call_failing_in_turn_leaves_a_class_and_unknown_is_never_zero(machine):
    box = boxes.box(*[("NVIDIA A40", 46068, 86)] * 2)
    box.wire(0, 1, 4, version=5)
    box.set("gpu", 0, processes=1)
    box.set("process", 0, 0, pid=4711, memory_mib=100)
    machine(box)
    whole = probe.take_snapshot(30)
    assert find_links(whole).labels == {0: "nvlink", 1: "nvlink"}
    tried = failing(build.functions(), (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, LOST, UNKNOWN))
    assert len(tried) > 150
    for function, code, snapshot in tried:
        case = f"{function} answering {code}"
        if function in MANDATORY:
            assert snapshot.failure, case
            assert not snapshot.gpus, case
            continue
        assert snapshot.failure is None, case
        assert len(snapshot.gpus) == 2, case
        if "HandleByIndex" in function and snapshot.gpus[0].uuid is None:
            assert all(g.lost for g in snapshot.gpus), case
            continue
        for before, now in zip(whole.gpus, snapshot.gpus, strict=True):
            if (function, code) == ("nvmlDeviceGetNvLinkState", NOT_SUPPORTED):
                assert now.links == ()  # that is an answer: no such link
                before = dataclasses.replace(before, links=())
            assert same_or_unknown(before, now), f"{case}: {now}"
        labels = find_links(snapshot).labels
        if not any(g.lost for g in snapshot.gpus):
            assert set(labels.values()) <= {"nvlink", "pcie", "unknown"}, case
            assert len(labels) == 2, case


def test_c46_with_every_optional_call_failing_the_host_still_gets_a_class(machine, tmp_path):
    keep = MANDATORY | {f for f in build.functions() if "HandleByIndex" in f} | {"nvmlDeviceGetUUID", "nvmlShutdown"}
    for code in (NOT_SUPPORTED, NO_PERMISSION, UNKNOWN):
        box = boxes.a10_pair()
        for function in build.functions():
            if function not in keep:
                box.set("call", 0, 0, **{function: code})
        machine(box)
        for gpu in examine_host(settings(tmp_path), "a").record.gpus:
            assert gpu.host_type in ("unknown GPU pcie", "unknown GPU unknown-link")
            assert (gpu.memory_mib, gpu.capability, gpu.numa_node, gpu.unusable) == (None, None, None, None)


def shim(tmp_path, monkeypatch, text: str) -> None:
    """Put another module of the name pynvml before the real one."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "pynvml.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shim"))


BYTES = """
import functools, importlib.util, pathlib, sys
for folder in sys.path:
    path = pathlib.Path(folder or ".", "pynvml.py")
    if path.exists() and path != pathlib.Path(__file__):
        spec = importlib.util.spec_from_file_location("real_pynvml", path)
        real = sys.modules["real_pynvml"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(real)
        break
def as_bytes(function):
    @functools.wraps(function)
    def call(*arguments):
        answer = function(*arguments)
        return answer.encode() if isinstance(answer, str) else answer
    return call
globals().update({n: as_bytes(v) if n.startswith("nvml") and callable(v) else v
                  for n, v in vars(real).items() if not n.startswith("__")})
marker = b"shim"
"""


def test_c46_a_binding_that_returns_bytes_gives_the_same_host(machine, tmp_path, monkeypatch):
    machine(boxes.a100_mig())
    before = probe.take_snapshot(30)
    shim(tmp_path, monkeypatch, BYTES)
    after = probe.take_snapshot(30)
    assert after == before
    assert isinstance(after.gpus[0].uuid, str)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not NVIDIA's: pip install nvidia-ml-py"),
        ("raise ImportError", "nvidia-ml-py is not installed"),
        ("def nvmlInit(): pass\ndef nvmlDeviceGetCount(): return 1\ndef nvmlDeviceGetHandleByIndex(i): return i", None),
    ],
)
def test_a_foreign_or_missing_binding_is_told_or_tolerated(machine, tmp_path, monkeypatch, text, reason):
    machine(boxes.a10_pair())
    shim(tmp_path, monkeypatch, text)
    snapshot = probe.take_snapshot(30)
    if reason is None:
        assert [g.uuid for g in snapshot.gpus] == [None]
    else:
        assert reason in str(snapshot.failure)


def test_without_the_binding_a_host_with_a_driver_is_refused_and_one_without_offers_cpus(
    machine, tmp_path, monkeypatch
):
    machine(boxes.a10_pair())
    shim(tmp_path, monkeypatch, "raise ImportError")
    assert examine_host(settings(tmp_path), "a", root=tmp_path).source == "cpu"
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    (gpu,) = examine_host(settings(tmp_path), "a", root=tmp_path).record.gpus
    assert gpu.unusable == "the package nvidia-ml-py is not installed: pip install nvidia-ml-py"


def test_c47_a_lost_gpu_does_not_hide_the_others(machine, tmp_path):
    for how in ("lost", "closed"):
        box = boxes.a10_pair()
        box.set("gpu", 0, **{how: 1})
        machine(box)
        gpus = examine_host(settings(tmp_path), "a").record.gpus
        assert len(gpus) == 2
        assert "GPU is lost" in str(gpus[0].unusable)
        assert (gpus[1].uuid, gpus[1].host_type, gpus[1].unusable) == (box.uuid(1), "A10 24GB pcie", None)


def test_c47_a_library_that_does_not_fit_the_driver_refuses_the_host_with_the_reason(machine, tmp_path):
    box = boxes.a10_pair()
    box.set("call", 0, 0, nvmlInitWithFlags=18)
    machine(box)
    kernel = tmp_path / "proc/driver/nvidia/gpus/0000:10:00.0"
    kernel.mkdir(parents=True)
    (kernel / "information").write_text(f"Model: \t\t NVIDIA A10\nGPU UUID: \t {box.uuid(0)}\n")
    found = examine_host(settings(tmp_path), "a", root=tmp_path)
    (gpu,) = found.record.gpus
    assert (gpu.uuid, gpu.model) == (box.uuid(0), "A10")
    assert gpu.unusable == MISMATCH
    (gpu,) = examine_host(settings(tmp_path), "a", root=tmp_path / "nothing").record.gpus
    assert gpu.unusable == MISMATCH


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetName"])
@pytest.mark.parametrize(("how", "sentence"), [("crash", "crashed the probe (SIGABRT)"), ("hang", "within 0.5 s")])
def test_c47_a_driver_that_crashes_or_hangs_refuses_the_host_and_the_agent_lives(
    machine, tmp_path, function, how, sentence
):
    box = boxes.a10_pair()
    box.set("call", 0, 0, **{function: how})
    machine(box)
    timeout = 0.5 if how == "hang" else 30.0
    (gpu,) = examine_host(settings(tmp_path, probe_timeout_s=timeout), "a").record.gpus
    assert sentence in str(gpu.unusable)


def test_a_driver_without_its_library_is_a_fault_and_no_driver_is_a_cpu_host(machine, tmp_path, monkeypatch):
    machine(boxes.a10_pair())
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "absent"))
    assert examine_host(settings(tmp_path, slots=2), "a", root=tmp_path).source == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    (gpu,) = examine_host(settings(tmp_path, slots=2), "a", root=tmp_path).record.gpus
    assert gpu.unusable == "NVML does not start: Driver Not Loaded"


def test_a_uuid_that_cannot_be_read_makes_a_gpu_unusable_and_twice_the_same_leaves_one_out(machine, tmp_path):
    box = boxes.a10_pair()
    box.unset("gpu", 1, 0, "uuid")
    machine(box)
    gpus = examine_host(settings(tmp_path), "a").record.gpus
    assert gpus[0].unusable is None
    assert "UUID cannot be read" in str(gpus[1].unusable)
    box.set("gpu", 1, uuid=box.uuid(0))
    machine(box)
    found = examine_host(settings(tmp_path), "a")
    assert [g.uuid for g in found.record.gpus] == [box.uuid(0)]
    assert any("that of another GPU" in p for p in found.problems)


def test_unanswered_questions_are_listed_once(machine):
    box = boxes.a10_pair()
    box.set("call", 0, 0, nvmlDeviceGetName=UNKNOWN, nvmlDeviceGetUtilizationRates=NOT_SUPPORTED)
    machine(box)
    assert probe.take_snapshot(30).gpus[0].problems == ("nvmlDeviceGetName: Unknown Error",)


def test_same_or_unknown_sees_a_zero():
    assert same_or_unknown(GpuFacts(0, uuid="u", memory_mib=5), GpuFacts(0, uuid="u"))
    assert not same_or_unknown(GpuFacts(0, uuid="u", memory_mib=5), GpuFacts(0, uuid="u", memory_mib=0))
