"""What makes a GPU unusable while the host runs, and for how long."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from heet_elastic.agents import locks
from heet_elastic.agents.facts import GpuFacts, Usage
from heet_elastic.agents.health import CRITICAL_XIDS, History, HostMonitor, foreign_process, judge
from heet_elastic.agents.hosts import HostSettings, monitor_host, probe_host
from tests.fake_nvml import boxes, build
from tests.integration.processes import wait_until

DEADLINE_S = 30.0


def gpu(lost: str | None = None, **usage) -> GpuFacts:
    return GpuFacts(0, uuid="GPU-0", usage=Usage(**usage), lost=lost)


def looks(facts: GpuFacts, count: int, foreign: str | None = None, before: History | None = None):
    """Judge the same look `count` times, a second apart."""
    history, reasons = before or History(), []
    for now in range(count):
        reason, history = judge(float(now), facts, foreign, history)
        reasons.append(reason)
    return reasons, history


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {
            "utilization": 100,
            "temperature_c": 95,
            "throttle": 0x4 | 0x20,
            "ecc_uncorrected": 0,
            "remap": (False, False),
        },
        {"xids": (13, 31, 43, 45)},  # what faulty programs cause
        {"throttle": None, "retirement_pending": None, "processes": None},
    ],
)
def test_a_busy_or_silent_gpu_is_usable(usage):
    assert looks(gpu(**usage), 5)[0] == [None] * 5


@pytest.mark.parametrize(
    ("usage", "part"),
    [
        ({"ecc_uncorrected": 2}, "2 uncorrectable memory errors"),
        ({"remap": (True, False)}, "reset the GPU or reboot"),
        ({"remap": (True, True)}, "needs service"),
        ({"retirement_pending": True}, "reset the GPU or reboot"),
        *[({"xids": (13, xid)}, f"Xid {xid} ({text})") for xid, text in CRITICAL_XIDS.items()],
    ],
)
def test_damage_excludes_at_once(usage, part):
    assert part in looks(gpu(**usage), 1)[0][0]


def test_a_lost_gpu_is_excluded_at_once():
    assert looks(gpu(lost="GPU is lost"), 1)[0] == ["NVML has lost it (GPU is lost)"]


def test_a_foreign_process_excludes_when_it_is_seen_twice_and_no_longer_when_it_is_gone():
    reasons, history = looks(gpu(), 3, "pid 7 (python of eve)")
    assert reasons == [None, "in use by pid 7 (python of eve)", "in use by pid 7 (python of eve)"]
    assert looks(gpu(), 1, None, history)[0] == [None]


@pytest.mark.parametrize("bit", [0x08, 0x40, 0x80])
def test_a_gpu_that_is_slowed_down_for_three_looks_is_spared_for_five_minutes(bit):
    reasons, history = looks(gpu(throttle=bit, temperature_c=93), 3)
    assert reasons[:2] == [None, None]
    assert reasons[2] == "the hardware slows it down because of heat or power, at 93 C now"
    cool = gpu(throttle=0, temperature_c=50)
    assert (judge(100.0, cool, None, history)[0] or "").endswith("at 50 C now")
    assert judge(303.0, cool, None, history)[0] is None


def test_a_short_slowdown_is_nothing():
    _, history = looks(gpu(throttle=0x08), 2)
    _, history = looks(gpu(throttle=0), 1, before=history)
    assert looks(gpu(throttle=0x08), 2, before=history)[0] == [None, None]


def test_who_is_foreign():
    me = os.getpid()
    on_it = gpu(processes=((me, 100),))
    assert foreign_process(gpu(processes=()), False, False, tuple) is None
    assert foreign_process(gpu(processes=None), False, False, tuple) is None
    assert str(foreign_process(on_it, held=False, locked=False, own=tuple)).startswith(f"pid {me} (")
    assert foreign_process(on_it, held=False, locked=True, own=tuple) is None  # another agent's worker
    assert foreign_process(on_it, held=True, locked=False, own=lambda: (me,)) is None
    assert str(foreign_process(on_it, held=True, locked=False, own=lambda: (me + 1,))).startswith(f"pid {me} (")


def test_processes_that_cannot_be_seen_are_foreign_on_a_free_gpu_alone():
    gone = subprocess.Popen(["true"])
    gone.wait()
    hidden = gpu(processes=((gone.pid, None),))  # as in a container: NVML counts as the host does
    assert "cannot be seen from here" in str(foreign_process(hidden, held=False, locked=False, own=tuple))
    assert foreign_process(hidden, held=True, locked=False, own=tuple) is None


@pytest.fixture
def box(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries()))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "box"))
    box = boxes.a10_pair()
    box.write(tmp_path / "box")
    return box


@pytest.fixture
def monitor(tmp_path, box):
    settings = HostSettings(host="h", lock_dir=tmp_path / "locks", address="127.0.0.1")
    monitor = monitor_host(settings, probe_host(settings, "a"), interval_s=0.05)
    monitor.start()
    yield monitor
    monitor.close()


def wait_for(condition):
    return wait_until(condition, DEADLINE_S, "the condition comes true", poll_s=0.02)


def reason(monitor: HostMonitor, index: int = 0, **arguments: Any) -> str:
    """Why a GPU must not be granted; "" = it may."""
    return monitor.current(**arguments).gpus[index].unusable or ""


def test_a_healthy_host_keeps_its_record(monitor):
    before = monitor.current()
    wait_for(lambda: monitor.looks > 3)
    assert monitor.current() == before
    assert [c.usage.temperature_c for c in monitor.conditions()] == [35, 35]


def test_c47_a_gpu_lost_while_running_is_unusable_and_the_other_is_not(monitor, box, tmp_path):
    wait_for(lambda: monitor.looks > 1)
    box.set("gpu", 0, lost=1)
    box.write(tmp_path / "box")
    assert "lost" in wait_for(lambda: reason(monitor))
    assert reason(monitor, 1) == ""
    assert monitor.current().gpus[0].uuid == box.uuid(0)
    box.unset("gpu", 0, 0, "lost")
    box.write(tmp_path / "box")
    wait_for(lambda: reason(monitor) == "")


def test_a_critical_xid_is_seen_where_nvml_reports_events(monitor, box, tmp_path):
    wait_for(lambda: monitor.looks > 1)
    box.set("event", 0, gpu=1, xid=31)
    box.set("event", 1, gpu=1, xid=79)
    box.write(tmp_path / "box")
    assert "Xid 79 (fallen off the bus)" in wait_for(lambda: reason(monitor, 1))
    assert reason(monitor, 0) == ""


def test_a_foreign_process_comes_and_goes(monitor, box, tmp_path):
    box.set("gpu", 0, processes=1)
    box.set("process", 0, 0, pid=os.getpid(), memory_mib=10)
    box.write(tmp_path / "box")
    assert wait_for(lambda: reason(monitor)).startswith("in use by pid")
    locks.prepare(tmp_path / "locks")
    held = locks.take(tmp_path / "locks", box.uuid(0), "job x")
    assert isinstance(held, locks.Held)
    wait_for(lambda: reason(monitor) == "")  # the worker of another agent
    locks.free(held)
    wait_for(lambda: reason(monitor))
    wait_for(lambda: reason(monitor, held={box.uuid(0)}, own=lambda: [os.getpid()]) == "")


def test_a_driver_that_stops_answering_excludes_all_and_is_asked_again(tmp_path, box):
    settings = HostSettings(host="h", lock_dir=tmp_path / "locks", address="127.0.0.1")
    monitor = monitor_host(settings, probe_host(settings, "a"), interval_s=0.05)
    monitor._patience_s = 0.5
    monitor.start()
    try:
        wait_for(lambda: monitor.looks > 1)
        box.set("call", 0, 0, nvmlDeviceGetUUID="hang")
        box.write(tmp_path / "box")
        assert "has not answered" in wait_for(lambda: reason(monitor))
        assert "has not answered" in reason(monitor, 1)
        box.unset("call", 0, 0, "nvmlDeviceGetUUID")
        box.write(tmp_path / "box")
        wait_for(lambda: reason(monitor) == "")
    finally:
        monitor.close()


def test_a_crash_of_the_watching_child_is_survived(monitor, box, tmp_path):
    wait_for(lambda: monitor.looks > 1)
    box.set("call", 0, 0, nvmlDeviceGetUUID="crash")
    box.write(tmp_path / "box")
    wait_for(lambda: monitor._child is None)
    seen = monitor.looks
    box.unset("call", 0, 0, "nvmlDeviceGetUUID")
    box.write(tmp_path / "box")
    wait_for(lambda: monitor.looks > seen)
    wait_for(lambda: reason(monitor) == "")


def test_a_monitor_ends_with_its_child(monitor):
    wait_for(lambda: monitor.looks > 0)
    child = monitor._child
    monitor.close()
    assert child.poll() is not None


def test_cpu_slots_are_not_watched(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "no driver"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries()))
    (tmp_path / "i.toml").write_text('[hosts.h]\ngpus=[{model="T4", count=2}]\n')
    for inventory in (None, tmp_path / "i.toml"):
        settings = HostSettings(host="h", lock_dir=tmp_path, address="127.0.0.1", inventory=inventory)
        record = probe_host(settings, "a")
        monitor = monitor_host(settings, record)
        monitor.start()
        assert monitor._thread is None
        assert monitor.current() == record
        monitor.close()
