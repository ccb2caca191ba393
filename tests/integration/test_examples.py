"""The example scripts under torch's own rendezvous: they are plain DDP scripts that any launcher can restart."""

from __future__ import annotations

import pytest

from tests.checkout import ROOT
from tests.integration.harness import Agent, Cluster
from tests.integration.processes import free_port, wait_until

SMALL = {"train_cnn.py": ["--batch=4", "--size=4"], "train_transformer.py": ["--batch=4", "--size=8"]}


def start(lab: Cluster, script: str, *args: str, nproc: int = 1) -> Agent:
    endpoint = f"127.0.0.1:{free_port()}"
    command = [*SMALL[script], f"--checkpoints={lab.folder / script}", *args]
    return lab.torchrun(
        host="a",
        nnodes="1",
        nproc=nproc,
        script=ROOT / "examples" / script,
        backend="c10d",
        endpoint=endpoint,
        args=command,
    )


@pytest.mark.parametrize("script", SMALL)
def test_an_example_goes_on_from_its_checkpoint_at_another_world_size(lab: Cluster, script: str):
    first = start(lab, script, "--steps=4", "--every=2")
    assert first.wait(90) == 0, first.tail()
    second = start(lab, script, "--steps=6", "--every=2", nproc=2)
    assert second.wait(90) == 0, second.tail()
    assert "1 workers start at step 0 of 4" in first.output
    assert "2 workers start at step 4 of 6" in second.output
    assert "step 6: loss" in second.output


def test_an_example_that_is_told_to_stop_leaves_one_whole_checkpoint(lab: Cluster):
    script = "train_cnn.py"
    stopped = start(lab, script, "--steps=100000", "--every=100000", nproc=2)
    wait_until(lambda: "2 workers start" in stopped.output, 90, lambda: f"training: {stopped.tail()}")
    stopped.terminate()
    assert stopped.wait(60) != 0
    assert [p.name for p in (lab.folder / script).iterdir()] == ["checkpoint.pt"]
