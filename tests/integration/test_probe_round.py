"""A live job is moved for a moment to be measured where it never ran, and the decision follows what was found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heet_elastic.model import Configuration, JobView
from tests.integration.harness import Cluster
from tests.integration.processes import wait_until

SLOW = 150.0
SCRIPT = Path(__file__).with_name("probe_worker.py")
FLAGS = ("--ttl-s=2", "--recovery-window-s=3", "--cooldown-s=2", "--probe-s=3")
A10, V100 = Configuration("A10 16GB pcie", 1), Configuration("V100 16GB pcie", 1)


@pytest.fixture
def pool(lab: Cluster, tmp_path: Path) -> dict[str, str]:
    """Host a has an A10, host v a V100; the datasheets say that the A10 is the faster one."""
    file = tmp_path / "inventory.toml"
    kinds = {"a": "A10", "v": "V100"}
    file.write_text(
        "".join(f'[hosts.{h}]\ngpus = [{{model = "{k}", memory_mib = 16384, count = 1}}]\n' for h, k in kinds.items())
    )
    return {"HEET_INVENTORY": str(file), "CHECKPOINT": str(tmp_path / "checkpoint.pt")}


def start(lab: Cluster, env: Mapping[str, str], step_s: str) -> None:
    for host in "av":
        lab.torchrun(
            host=host,
            nnodes="1:2",
            script=SCRIPT,
            conf={"ttl_s": 2, "sample_interval_s": 0.5, "max_workers": 1, "total_steps": 100_000},
            env={**env, "STEP_S": step_s},
        )


def explained(lab: Cluster) -> Any:
    command = [sys.executable, "-m", "heet_elastic.cli.main", "explain", "j", "--json"]
    env = {**lab.environment(), "HEET_ETCD": lab.endpoint}
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout)


def status(view: JobView) -> str:
    return "" if view.status is None else view.status.record.reason


def await_probe(lab: Cluster) -> JobView:
    """The job as it is while it is measured on the V100."""

    def measuring() -> JobView | None:
        view = lab.view()
        return view if status(view).startswith("measuring 1 worker on V100 16GB pcie: uncertainty ") else None

    def what() -> str:
        return f"a probe round; the job says {status(lab.view())!r}"

    found = wait_until(measuring, SLOW, what)
    assert found is not None
    return found


def where(view: JobView) -> Configuration | None:
    return None if view.allocation is None else view.allocation.record.configuration


def test_a_live_job_is_measured_on_an_idle_host_and_stays_where_it_is_faster(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FLAGS)
    start(lab, pool, "a=0.2,v=0.02")
    first = lab.wait_event("j", "STEP", timeout_s=SLOW)
    assert first.host == "a", "datasheets say that the A10 is faster"
    await_probe(lab)
    cost_s = wait_until(lambda: (v := lab.view()).account is not None and v.account.record.probe_s, SLOW, "its cost")
    assert cost_s > 0
    lab.wait_event("j", "STEP", timeout_s=SLOW, host="v")
    wait_until(lambda: status(lab.view()).startswith(f"stays on {V100}"), SLOW, "the changed decision")
    view = lab.view()
    assert where(view) == V100
    assert view.account is not None
    assert (view.account.record.probes, view.account.record.rescales) == (1, 0)
    picture = explained(lab)
    measured = {s["configuration"]["host_type"] for s in picture["speeds"] if s["measured"]}
    assert {A10.host_type, V100.host_type} <= measured, "the cell is there"
    assert any("1 probe round to measure it elsewhere: charged with" in s for s in picture["sentences"])


def test_a_live_job_goes_home_when_it_was_faster_there(lab: Cluster, pool: dict[str, str]):
    lab.start_coordinator(*FLAGS)
    start(lab, pool, "a=0.02,v=0.2")
    lab.wait_event("j", "STEP", timeout_s=SLOW, host="a")
    await_probe(lab)
    there = lab.wait_event("j", "STEP", timeout_s=SLOW, host="v")
    back = lab.wait_event("j", "STEP", after=there.t, timeout_s=SLOW, host="a")
    assert back.step > there.step, "it went on from its checkpoint"
    assert where(lab.view()) == A10
    assert "was measured by a probe round" in status(lab.view())
