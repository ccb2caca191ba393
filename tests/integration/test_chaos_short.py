"""The chaos run and the control plane's benchmark in their short forms, as programs: what they report, and that nothing
hung, was lost, ran twice or stayed behind. The long forms are run by hand (docs/reliability.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.checkout import ROOT


def report(*command: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of a benchmark."""
    run = subprocess.run(
        [sys.executable, *command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.stdout, run.stderr[-3000:]
    return run.returncode, json.loads(run.stdout)


@pytest.mark.slow
def test_after_some_random_faults_every_job_ends_well_and_nothing_is_left():
    code, found = report("benchmarks/chaos.py", "--events=6", "--seed=3", "--jobs=2", "--hosts=2", "--devices=1")
    assert found["events"] == sum(found["by_kind"].values()) == 6
    for what in ("hung_jobs", "lost_jobs", "double_grants", "orphans", "steps_lost_beyond_checkpoint"):
        assert found[what] == 0, found
    assert found["worst_recovery_s"] > 0
    assert code == 0


@pytest.mark.slow
def test_a_small_control_plane_forms_its_rounds_and_forgets_ended_jobs():
    command = ("--agents=8", "--jobs=2", "--changes=6", "--ended=60", "--processes=2")
    code, found = report("benchmarks/control_plane.py", *command)
    assert code == 0
    assert found["rounds_8"] > 0
    assert found["rounds_1000"] > 0
    for name in ("round_ms_p50_8", "round_ms_p99_1000", "start_s_10000_jobs", "etcd_mb_10000_jobs"):
        assert found[name] > 0, found
    assert found["start_s_10000_jobs"] < 60
