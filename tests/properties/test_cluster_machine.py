"""Two jobs, two coordinators and `decide` over one store: invariants under any order of everything.

What the protocol's machine does, and coordinators that come, stall, wake on an old picture, and lead again.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import JobSpec
from heet_elastic.rendezvous.values import WorkerState
from tests.properties.protocol_lab import FATES, SETTINGS, Lab, LabAgent, LabCoordinator

LONG = os.environ.get("HEET_NIGHTLY") == "1"
TIMES = CoordinatorSettings(
    cooldown_s=2, settle_s=0.5, settle_most_s=1, ttl_s=2, recovery_window_s=4, lock_report_s=1, exclusion_s=5
)


class ClusterMachine(RuleBasedStateMachine):
    """Three hosts with one or two devices each."""

    @initialize(devices=st.integers(1, 2), least=st.integers(1, 2))
    def begin(self, devices: int, least: int) -> None:
        self.specs = [
            JobSpec("j", "j", "i", min_hosts=1, max_hosts=3),
            JobSpec("k", "k", "i", min_hosts=least, max_hosts=3, multiple_of=least, min_workers=least),
        ]
        self.lab = Lab(self.specs[0], hosts=3, devices=devices)
        LabCoordinator(self.lab, "c1", TIMES)
        LabCoordinator(self.lab, "c2", TIMES)

    def pick(self, number: int) -> LabAgent | None:
        agents = sorted(self.lab.agents.values(), key=lambda a: a.id)
        return agents[number % len(agents)] if agents else None

    @precondition(lambda self: len(self.lab.agents) < 6)
    @rule(host=st.integers(0, 2), job=st.integers(0, 1), restarts=st.integers(0, 2))
    def join(self, host: int, job: int, restarts: int) -> None:
        self.lab.start(self.lab.hosts[host], restarts, self.specs[job])

    @rule(seconds=st.sampled_from([1.0, 2.0, 4.0]))
    def quiet_time(self, seconds: float) -> None:
        self.lab.settle(seconds, dt=0.5)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.lab.advance(seconds)

    @rule(n=st.integers(0, 9))
    def turn(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None:
            self.lab.tick(agent)

    @rule(n=st.integers(0, 1), fresh=st.booleans())
    def coordinator_turn(self, n: int, fresh: bool) -> None:
        """One look, perhaps at an old picture."""
        coordinator = self.lab.coordinators[n]
        if fresh and not coordinator.frozen:
            coordinator.fetch()
        coordinator.step()

    @rule(n=st.integers(0, 1))
    def coordinator_stalls_or_wakes(self, n: int) -> None:
        coordinator = self.lab.coordinators[n]
        if coordinator.frozen:
            coordinator.frozen = False
        else:
            coordinator.stall()

    @rule(n=st.integers(0, 9))
    def crash(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None:
            self.lab.crash(agent)

    @rule(n=st.integers(0, 9))
    def worker_fails(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None and not agent.frozen:
            self.lab.worker_fails(agent)

    @rule(n=st.integers(0, 9))
    def worker_succeeds(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None:
            self.lab.worker_succeeds(agent)

    @rule(n=st.integers(0, 9))
    def leave(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None and not agent.frozen:
            self.lab.leave(agent)

    @rule(n=st.integers(0, 9))
    def cut_or_reconnect(self, n: int) -> None:
        agent = self.pick(n)
        if agent is not None:
            (self.lab.reconnect if agent.cut else self.lab.cut)(agent)

    @rule(fates=st.lists(st.sampled_from(FATES), max_size=3))
    def disturbed_writes(self, fates: list[str]) -> None:
        self.lab.disturb(fates)

    @rule()
    def emptied_store(self) -> None:
        self.lab.wipe()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "lab"):
            self.lab.check()

    def teardown(self) -> None:
        """When faults end, every job with enough agents runs, has ended, or waits with a reason."""
        if not hasattr(self, "lab"):
            return
        lab = self.lab
        for coordinator in lab.coordinators:
            coordinator.frozen = False
        for agent in list(lab.agents.values()):
            if agent.cut or agent.lease is None or not agent.lease.alive:
                lab.reconnect(agent)
        lab.undisturbed()
        lab.settle(SETTINGS.stop_limit_s + TIMES.exclusion_s * 8, dt=0.5)
        for job in {a.job for a in lab.agents.values()}:
            self._check_job(job)

    def _check_job(self, job: str) -> None:
        lab = self.lab
        view = lab.view(job)
        mine = [a for a in lab.agents.values() if a.job == job]
        able = [a for a in mine if not a.local.leaving and a.local.workers is not WorkerState.SUCCEEDED]
        if view.result is not None or view.frozen is not None or not able:
            return
        assert view.status is not None
        assert view.status.record.reason
        alone = {a.job for a in lab.agents.values()} == {job}
        enough = len(able) >= 3
        held = "vanished" in view.status.record.reason or "quiet" in view.status.record.reason
        if alone and enough and not held:
            stuck = {a.id: (a.local.host, a.target.order.value, a.target.reason) for a in mine}
            assert any(a.running for a in mine), (view.status.record.reason, stuck)


TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(
    max_examples=1000 if LONG else 30,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
