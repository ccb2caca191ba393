"""Every way to start a worker group reaches the same handler: torchrun's variables, module, Python function."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from tests.integration.harness import LAB_WORKER, Cluster, Event
from tests.integration.processes import wait_until

SLOW = 60.0


def test_pet_variables_start_a_job(lab: Cluster):
    env = {
        "PET_RDZV_BACKEND": "heet",
        "PET_RDZV_ENDPOINT": lab.endpoint,
        "PET_RDZV_ID": "j",
        "PET_NNODES": "1:2",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_CONF": "ttl_s=2",
        "HEET_HOST": "a",
        "HEET_LOCK_DIR": str(lab.folder),
        "LAB_LOG": str(lab.event_log("j")),
    }
    command = [sys.executable, "-m", "torch.distributed.run", str(LAB_WORKER), "--no-group", "--steps=2"]
    agent = lab.start("torchrun", command, **env)
    assert agent.wait(SLOW) == 0, agent.tail()
    assert sorted(e.rank for e in lab.events(kind="DONE")) == [0, 1]


def test_elastic_launch_of_a_python_function_returns_its_values_and_raises_its_errors(lab: Cluster, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys
            from torch.distributed.launcher.api import LaunchConfig, elastic_launch

            def work(n):
                return (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), n)

            def config(job, **conf):
                return LaunchConfig(min_nodes=1, max_nodes=2, nproc_per_node=2, run_id=job, rdzv_backend="heet",
                                    rdzv_endpoint=sys.argv[1], rdzv_configs={"ttl_s": 2, **conf}, max_restarts=0)

            if __name__ == "__main__":
                print(sorted(elastic_launch(config("j"), work)(7).values()))
                try:
                    elastic_launch(config("k", nonsense=1), work)(7)
                except ValueError as e:
                    print("caught", e)
            """
        )
    )
    agent = lab.start(
        "program", [sys.executable, str(program), lab.endpoint], HEET_HOST="a", HEET_LOCK_DIR=str(tmp_path)
    )
    assert agent.wait(SLOW * 2) == 0, agent.tail()
    assert "[(0, 2, 7), (1, 2, 7)]" in agent.output
    assert "caught --rdzv-conf: unknown key 'nonsense'" in agent.output


def all_started(lab: Cluster, world: int) -> list[Event]:
    """The starts of a world of this size, once there are as many: without a group workers do not wait for others."""
    starts = lab.events(kind="START", world=world)
    return starts if len(starts) >= world else []


def test_c43_different_numbers_of_workers_per_host_have_contiguous_ranks(lab: Cluster):
    flags = ["--no-group"]
    for host, nproc in (("a", 2), ("b", 1), ("c", 4)):
        lab.torchrun(host=host, nnodes="1:3", nproc=nproc, args=flags)
    starts = wait_until(lambda: all_started(lab, 7), SLOW, "7 workers in one round")
    assert sorted(e.rank for e in starts) == list(range(7))
    for host, nproc in (("a", 2), ("b", 1), ("c", 4)):
        mine = sorted((e for e in starts if e.host == host), key=lambda e: e.rank)
        assert [e.local_rank for e in mine] == list(range(nproc))
        assert {e.local_world for e in mine} == {nproc}
        assert [e.rank - mine[0].rank for e in mine] == list(range(nproc))


def test_c44_two_jobs_share_one_host_without_sharing_a_device(lab: Cluster, tmp_path: Path):
    inventory = tmp_path / "inventory.toml"
    inventory.write_text('[hosts.box]\ngpus = [{model = "T4", memory_mib = 15360, count = 4}]\n')
    env = {"HEET_INVENTORY": str(inventory)}
    flags = ["--no-group", "--steps=20", "--step-s=0.1"]
    one, two = (lab.torchrun(host="box", job=j, nnodes="1:2", nproc=2, args=flags, env=env) for j in ("one", "two"))
    assert [a.wait(SLOW * 2) for a in (one, two)] == [0, 0], two.tail()
    devices = {job: {d for e in lab.events(job, "START") for d in e.devices.split(",")} for job in ("one", "two")}
    assert len(devices["one"]) == len(devices["two"]) == 2
    assert not devices["one"] & devices["two"]


def test_c26_workers_that_make_their_own_store_find_their_port_free_round_after_round(lab: Cluster, tmp_path: Path):
    """With use_agent_store=false the port is held from its choice until the worker listens, so nobody can take it."""
    flags = ["--steps=8", "--step-s=0.1", "--fail-step=3", f"--fail-once={tmp_path / 'once'}"]
    conf = {"ttl_s": 2, "use_agent_store": "false"}
    agents = [lab.torchrun(host=h, nnodes="2:2", max_restarts=1, args=flags, conf=conf) for h in "ab"]
    assert [a.wait(SLOW * 2) for a in agents] == [0, 0], agents[0].tail()
    assert {e.restarts for e in lab.events(kind="START")} == {0, 1}
    masters = [e.master for e in lab.events(kind="START")]
    assert len(set(masters)) == 2
