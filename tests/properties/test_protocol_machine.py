"""Any order of joins, deaths, stalls, cuts, lost and unknown writes, emptied stores: the protocol's invariants."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heet_elastic.model import JobSpec
from heet_elastic.rendezvous.values import WorkerState
from heet_elastic.store.memory import MemoryStore
from tests.properties.protocol_lab import FATES, JOB, SETTINGS, Lab, LabAgent

LONG = os.environ.get("HEET_NIGHTLY") == "1"


class ProtocolMachine(RuleBasedStateMachine):
    """One job, up to five agents on four hosts."""

    def store(self, clock: Callable[[], float]) -> Any:
        """The store under the lab."""
        return MemoryStore(clock, threads=False)

    @initialize(least=st.integers(1, 2), most=st.integers(2, 4))
    def begin(self, least: int, most: int) -> None:
        spec = JobSpec(JOB, "n", "i", min_hosts=least, max_hosts=max(most, least + 1))
        self.lab = Lab(spec, hosts=4, store=self.store)
        self.wiped = 0.0

    def pick(self, number: int) -> LabAgent | None:
        agents = sorted(self.lab.agents.values(), key=lambda a: a.id)
        return agents[number % len(agents)] if agents else None

    @precondition(lambda self: len(self.lab.agents) < 5)
    @rule(host=st.integers(0, 3), restarts=st.integers(0, 3))
    def join(self, host: int, restarts: int) -> None:
        self.lab.start(self.lab.hosts[host], restarts)

    @rule(n=st.integers(0, 9), turns=st.integers(1, 4))
    def turn(self, n: int, turns: int) -> None:
        agent = self.pick(n)
        for _ in range(turns):
            if agent is not None and agent.id in self.lab.agents:
                self.lab.tick(agent)

    @rule(n=st.integers(0, 9))
    def stale_turn(self, n: int) -> None:
        """A step on an old picture: events late or lost."""
        agent = self.pick(n)
        if agent is not None:
            agent.step()
            agent.obey()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.lab.advance(seconds)

    @rule(seconds=st.sampled_from([2.0, 4.0]))
    def quiet_time(self, seconds: float) -> None:
        self.lab.settle(seconds)

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
    def stall_or_wake(self, n: int) -> None:
        """SIGSTOP, SIGCONT: the lease runs out meanwhile, workers train on."""
        agent = self.pick(n)
        if agent is None:
            return
        agent.frozen = not agent.frozen
        if agent.frozen and agent.lease is not None and agent.lease.alive:
            agent.lease.abandon()
        elif not agent.frozen:
            agent.lease = None
            agent.connected_since = self.lab.now

    @rule(n=st.integers(0, 9))
    def cut_or_reconnect(self, n: int) -> None:
        agent = self.pick(n)
        if agent is None:
            return
        if agent.cut:
            self.lab.reconnect(agent)
        else:
            self.lab.cut(agent)

    @rule(fates=st.lists(st.sampled_from(FATES), max_size=3))
    def disturbed_writes(self, fates: list[str]) -> None:
        self.lab.disturb(fates)

    @rule()
    def emptied_store(self) -> None:
        self.lab.wipe()
        self.wiped = self.lab.now

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "lab"):
            self.lab.check()

    def teardown(self) -> None:
        """When faults end, the job ends or runs: enough live agents make a round, or there is a result."""
        if not hasattr(self, "lab"):
            return
        lab = self.lab
        for agent in list(lab.agents.values()):
            agent.frozen = False
            if agent.cut or agent.lease is None or not agent.lease.alive:
                lab.reconnect(agent)
        lab.undisturbed()
        lab.settle(SETTINGS.stop_limit_s * 2 + 2 * SETTINGS.ttl_s)
        view = lab.view()
        if view.result is not None or lab.agents == {}:
            return
        able = [a for a in lab.agents.values() if not a.local.leaving and a.local.workers is not WorkerState.SUCCEEDED]
        if view.frozen is not None or len({a.local.host for a in able}) < lab.spec.min_hosts:
            return
        stuck = {a.id: (a.local.workers.value, a.target.order.value, a.target.reason) for a in lab.agents.values()}
        why = " ".join(a.target.reason for a in able)
        held = any(words in why for words in ("vanished with workers", "cannot use", "is left alone for"))
        assert held or any(a.running for a in lab.agents.values()), stuck


TestProtocol = ProtocolMachine.TestCase
TestProtocol.settings = settings(
    max_examples=2000 if LONG else 80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
