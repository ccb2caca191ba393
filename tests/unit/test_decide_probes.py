"""Probe rounds of live jobs: when one is begun, on what, what it is charged with, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from heet_elastic.coordinator.api import Table
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.model import AgentState, CellCounters, Configuration, RoundProgress, SampleRecord
from heet_elastic.predictor import METHODS
from heet_elastic.scheduler.api import Choice, Problem
from tests.unit.decide_worlds import SETTINGS, Lab, agent, host, spec

PREDICTOR = METHODS["combined"]([], np.random.default_rng(0))
V100, A10 = Configuration("V100", 1), Configuration("A10", 1)
PROBING = replace(SETTINGS, rescale_up_s=4.0, rescale_down_s=1.0, probe_s=10.0)


class Fastest:
    """Every job has one worker on the type where the table says that it is fastest; remembers what it was asked."""

    name = "fastest"
    interval_s = 300.0

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        self.problems.append(problem)
        speed_JH = problem.throughput_JHWS[:, :, 0, 0]
        jobs = len(problem.jobs)
        return Choice(speed_JH.argmax(axis=1), np.ones(jobs, dtype=np.int64), np.full(jobs, np.nan), "fastest")


@dataclass
class Gives:
    """Every job has one worker on the type that the test says."""

    types: dict[str, str]
    name: str = "gives"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        jobs = len(problem.jobs)
        type_J = np.array([problem.host_types.index(self.types[j]) for j in problem.jobs])
        return Choice(type_J, np.ones(jobs, dtype=np.int64), np.full(jobs, np.nan))


class Live:
    """A lab whose jobs are sampled: `speed` says what each configuration would show."""

    def __init__(
        self, policy: Any = None, *, asked: Any = None, settings: Any = PROBING, predictor: Any = PREDICTOR
    ) -> None:
        self.predictor = predictor
        self.policy = policy or Fastest()
        self.lab = Lab([host("a", "A10", 1), host("v", "V100", 1)], self.policy)
        self.lab.settings = settings
        self.speed = {V100: 1.0, A10: 3.0}
        self.cells: dict[tuple[str, Configuration], float] = {}
        self.lab.table = Table()
        self.add("j", asked)

    def add(self, job: str, asked: Any = None) -> None:
        self.lab.submit(asked or spec(job, (1, 2), max_workers=1, total_work=1e6))
        for name in ("a", "v"):
            self.lab.put_agent(job, agent(f"{job}-{name}", name, most=1))

    def pass_time(self, seconds: float = 1.0, job: str = "j", marks: int = 1) -> None:
        """The job works for so long, is sampled, and agents and coordinator do what follows."""
        lab = self.lab
        round_ = lab.round(job)
        if round_ is not None and round_.members and lab.views[job].result is None and self.begun(job):
            key = (job, round_.configuration)
            self.cells[key] = self.cells.get(key, 0.0) + seconds
            lab._put(job, samples={"s": self._record(job, round_.round, marks)})
        lab.now += seconds - 1.0
        assert lab.table is not None
        lab.table = refresh(lab.table, lab.snapshot(), self.predictor, 64)
        lab.decide()
        for j, view in list(lab.views.items()):
            for name in list(view.agents):
                lab.react(j, name)

    def begun(self, job: str) -> bool:
        newest = self.lab.round(job)
        agents = self.lab.views[job].agents
        states = [agents[m.agent].record for m in newest.members]
        return all(r.state is AgentState.RUNNING and r.round == newest.round for r in states)

    def _record(self, job: str, round_: int, marks: int) -> SampleRecord:
        cells = tuple(
            CellCounters(c, seconds, int(seconds * self.speed[c]) + 1, 0.0, 0.0, 1.0 / self.speed[c], 0.0, 5, c.workers)
            for (j, c), seconds in self.cells.items()
            if j == job
        )
        steps = sum(c.steps for c in cells)
        progress = RoundProgress(round_, steps=steps, marks=marks, marked_steps=float(steps) if marks else 0.0)
        return SampleRecord("s", round_, cells=cells, rounds=(progress,))

    def run(self, seconds: int, **more: Any) -> None:
        for _ in range(seconds):
            self.pass_time(**more)

    @property
    def trials(self) -> Any:
        return self.lab.memory.trials

    @property
    def account(self) -> Any:
        return self.lab.memory.entries["j"].account

    def where(self, job: str = "j") -> Any:
        return self.lab.round(job).configuration


def probed(live: Live, seconds: int = 60) -> None:
    """Time passes until a probe round runs."""
    for _ in range(seconds):
        live.pass_time()
        newest = live.lab.round("j")
        if newest is not None and newest.probe and newest.members and live.begun("j"):
            return
    raise AssertionError(f"no probe: {live.lab.decision.reasons}, {live.lab.round('j')}")


def test_a_job_that_is_known_where_it_runs_is_measured_where_it_never_ran():
    live = Live()
    probed(live)
    where = live.where()
    other = A10 if where == V100 else V100
    assert where in (A10, V100)
    reason = live.lab.decision.reasons["j"]
    assert reason.startswith(f"measuring 1 worker on {where.host_type}: uncertainty ")
    assert reason.endswith(f" %; its own place is {other}")
    assert live.account.probes == 1
    assert live.account.probe_s >= 2 * 1.0, "there and back, at what rescales have cost it"
    assert live.account.rescales == 0


def test_the_job_stays_where_it_turns_out_to_be_faster():
    live = Live()
    probed(live)
    there = live.where()
    live.speed = {c: (3.0 if c == there else 1.0) for c in (V100, A10)}
    live.run(20)
    assert live.where() == there
    assert not live.trials
    newest = live.lab.round("j")
    assert newest.probe
    assert live.lab.decision.reasons["j"] == f"stays on {there}, where a probe round has measured it"
    assert len({c for (_, c) in live.cells}) == 2


def test_the_job_goes_back_where_it_is_not_and_no_cool_down_keeps_it():
    live = Live(settings=replace(PROBING, cooldown_s=30.0))
    probed(live, 120)
    there = live.where()
    live.speed = {c: (0.5 if c == there else 1.0) for c in (V100, A10)}
    live.run(13)
    assert live.where() != there
    assert "was measured by a probe round" in live.lab.round("j").reason
    live.run(60)
    assert live.account.rescales == 0, "there and back are one trip, charged to the probe"
    assert live.account.probes == 1, "what is known is not measured again"


def test_for_the_policy_the_job_stays_at_home_while_it_is_measured():
    live = Live()
    live.run(8)
    home = live.where()
    probed(live)
    policy, lab = live.policy, live.lab
    asked = len(policy.problems)
    lab.hosts["x"] = host("x", "K80", 1)
    live.pass_time()
    assert len(policy.problems) == asked + 1
    problem = policy.problems[-1]
    ((group, workers),) = problem.current[0]
    assert problem.host_types[problem.group_type_G[group]] == home.host_type
    assert workers == 1
    assert live.trials.keys() == {"j"}, "its choice for the job is the same: the probe goes on"


def test_what_a_probe_measures_calls_for_a_choice_once_it_is_over():
    live = Live()
    probed(live)
    asked = len(live.policy.problems)
    live.run(5)
    assert len(live.policy.problems) == asked
    live.run(10)
    assert len(live.policy.problems) == asked + 1
    assert "job j was measured by a probe round" in live.lab.memory.reason


def test_a_probe_ends_at_once_when_the_devices_are_wanted():
    policy = Gives({"j": "A10"})
    live = Live(policy)
    probed(live)
    assert live.where() == V100
    policy.types["k"] = "V100"
    live.add("k")
    live.run(6)
    assert (live.where("j"), live.where("k")) == (A10, V100)
    assert not live.trials
    assert not live.lab.overlaps


def test_a_probe_that_measures_nothing_is_given_up():
    live = Live()
    probed(live)
    there = live.where()
    lab = live.lab
    for _ in range(60):
        lab.decide()
        for name in list(lab.views["j"].agents):
            lab.react("j", name)
        if not live.trials:
            break
    assert not live.trials
    lab.calm()
    assert live.where() != there


def test_a_lost_member_ends_the_probe():
    live = Live()
    probed(live)
    (member,) = live.lab.round("j").members
    live.lab.drop_agent("j", member.agent)
    live.lab.decide()
    assert not live.trials


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"settings": replace(PROBING, probes_per_job=0)}, "none are allowed"),
        ({"settings": replace(PROBING, rescale_up_s=4.0, probe_s=1000.0)}, "it was not seen long enough at home"),
        ({"asked": spec("j", (1, 1), total_work=1e6)}, "it is rigid"),
        ({"asked": spec("j", (1, 2), max_workers=1, total_work=40.0)}, "it ends soon"),
    ],
)
def test_no_probe_where(change, why):
    live = Live(**change)
    live.run(60)
    assert live.lab.memory.entries["j"].account.probes == 0, why
    assert len(live.cells) == 1


def test_no_probe_of_a_job_that_might_lose_all_its_work():
    live = Live()
    live.run(60, marks=0)
    assert live.account.probes == 0


def test_no_probe_while_somebody_waits():
    live = Live()
    live.lab.submit(spec("w", (3, 3)))
    live.lab.put_agent("w", agent("w-a", "a"))
    live.run(60)
    assert live.account.probes == 0


def test_the_budget_of_a_job_is_kept():
    live = Live()
    live.run(5)
    spent = replace(live.account, probes=2, probe_s=121.0)
    live.lab.memory = replace(live.lab.memory, entries={"j": replace(live.lab.memory.entries["j"], account=spent)})
    live.run(40)
    assert live.account.probes == 2, "a young job may spend 120 s"


def test_one_job_at_a_time_is_measured():
    live = Live(Fastest())
    live.lab.hosts |= {"a2": host("a2", "A10", 2), "v2": host("v2", "V100", 2)}
    live.add("k")
    for name in ("a2", "v2"):
        live.lab.put_agent("k", agent(f"k-{name}", name))
    for _ in range(40):
        live.pass_time(job="j")
        live.pass_time(job="k")
        assert len(live.trials) <= 1
    assert live.lab.memory.entries["j"].account.probes + live.lab.memory.entries["k"].account.probes >= 2


def test_a_new_leader_takes_the_probe_for_what_it_is():
    live = Live()
    probed(live)
    memory = live.lab.memory
    live.lab.memory = type(memory)()
    live.pass_time()
    assert not live.trials
    assert live.lab.views["j"].account.record.probes == 1, "the charge outlives the leader"


def test_a_predictor_that_knows_no_covariance_begins_none():
    live = Live(predictor=METHODS["svd-log"]([], np.random.default_rng(0)))
    live.run(60)
    assert live.account.probes == 0
