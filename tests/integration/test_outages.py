"""etcd away, frozen, or emptied, while a job trains: case C34 and its kind."""

from __future__ import annotations

import time

from tests.integration.harness import Cluster
from tests.integration.processes import wait_until

SLOW = 60.0


def test_c34_training_goes_on_without_etcd_and_a_join_works_when_it_is_back(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:3")
    b = lab.torchrun(host="b", nnodes="1:3")
    lab.wait_step(world=2, timeout_s=SLOW)
    lab.etcd.kill()
    away = time.monotonic()
    wait_until(lambda: time.monotonic() > away + 8, SLOW, "four leases' time", poll_s=0.5)
    before = len(lab.events(kind="START"))
    lab.wait_step(world=2, after=time.monotonic(), timeout_s=SLOW)
    lab.etcd.start()
    back = time.monotonic()
    lab.torchrun(host="c", nnodes="1:3")
    lab.wait_step(world=3, after=back, timeout_s=SLOW)
    assert a.alive
    assert b.alive
    starts = lab.events(kind="START")
    assert len(starts) == before + 3, "one round after etcd came back, for the join alone"


def test_c34_an_emptied_store_is_rebuilt_from_the_agents_and_nobody_restarts(lab: Cluster):
    a = lab.torchrun(host="a", nnodes="1:3")
    b = lab.torchrun(host="b", nnodes="1:3")
    lab.wait_step(world=2, timeout_s=SLOW)
    starts = len(lab.events(kind="START"))
    lab.etcd.kill()
    lab.etcd.wipe()
    lab.etcd.start()
    wait_until(lambda: lab.has_record("a") and lab.has_record("b"), SLOW, "the agents register again")
    lab.wait_step(world=2, after=time.monotonic() + 5, timeout_s=SLOW)
    assert len(lab.events(kind="START")) == starts
    start = time.monotonic()
    lab.torchrun(host="c", nnodes="1:3")
    lab.wait_step(world=3, after=start, timeout_s=SLOW)
    assert a.alive
    assert b.alive
