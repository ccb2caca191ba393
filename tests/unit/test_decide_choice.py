"""When the policy is asked again, and when a job is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from heet_elastic.coordinator.api import Allocate, Axes, Table
from heet_elastic.model import AgentState, Control, Versioned
from heet_elastic.scheduler.api import Choice, Problem
from tests.unit.decide_worlds import SETTINGS, Lab, agent, ask, host, row, snapshot, spec, view


@dataclass
class Counting:
    """Gives every job one worker of its first possible type; remembers what it was asked."""

    problems: list[Any] = field(default_factory=list)
    name: str = "counting"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        self.problems.append(problem)
        jobs = len(problem.jobs)
        type_J, workers_J = problem.current_type_J(), problem.current_workers_J()
        idle = workers_J == 0
        type_J[idle], workers_J[idle] = 0, np.maximum(problem.min_J[idle], 1)
        return Choice(type_J, workers_J, np.full(jobs, np.nan), "one each")


def lab_of(policy: Counting, *jobs: str, **settings: Any) -> Lab:
    lab = Lab([host("h1"), host("h2")], policy)
    lab.settings = replace(SETTINGS, **settings)
    for job in jobs:
        lab.submit(spec(job))
        lab.put_agent(job, agent(f"{job}1", "h1"))
    return lab


def test_the_policy_is_not_asked_while_nothing_calls_for_it():
    policy = Counting()
    lab = lab_of(policy, "a", "b")
    lab.calm()
    assert len(policy.problems) == 1
    lab.decide(seconds=200.0)
    assert len(policy.problems) == 1
    assert lab.decision.wake_in_s == pytest.approx(300.0 - (lab.now - 1.0))
    lab.decide(seconds=100.0)
    assert len(policy.problems) == 2
    assert lab.decision.reason == "300 s have passed (one each)"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lab: (lab.submit(spec("c")), lab.put_agent("c", agent("c1", "h1"))), "job c came"),
        (lambda lab: lab.views.pop("b"), "job b went"),
        (lambda lab: lab.hosts.pop("h2"), "host h2 went"),
        (lambda lab: lab.hosts.update(h3=host("h3")), "host h3 came"),
        (lambda lab: lab.put_agent("a", agent("a2", "h2")), "agents of job a came or went"),
        (lambda lab: lab.control("a", priority=3.0), "a person changed job a"),
    ],
)
def test_it_is_asked_at_every_change_that_matters(change, why):
    policy = Counting()
    lab = lab_of(policy, "a", "b")
    lab.calm()
    lab.views = dict(lab.views)
    change(lab)
    lab.decide()
    assert len(policy.problems) == 2
    assert lab.decision.reason == f"{why} (one each)"


def test_new_measurements_call_for_a_choice_only_if_they_say_something_new():
    policy = Counting()
    lab = lab_of(policy, "a")
    axes = Axes(("T4",), 8, (4,))
    lab.table = Table(axes, {"a": row(axes, {"T4": 1.0}, picture=1)})
    lab.calm()
    lab.table = Table(axes, {"a": row(axes, {"T4": 1.05}, picture=1)})
    lab.decide()
    assert len(policy.problems) == 1
    lab.table = Table(axes, {"a": row(axes, {"T4": 3.0}, picture=2)})
    lab.decide()
    assert len(policy.problems) == 2
    assert "measurements of job a say something new" in lab.decision.reason


def test_a_running_job_is_left_alone_within_its_cooldown_and_asked_about_after_it():
    policy = Counting()
    lab = lab_of(policy, "a", cooldown_s=30.0)
    lab.calm()
    lab.submit(spec("b"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.decide()
    assert policy.problems[-1].frozen_J.tolist() == [True, False]
    asked = len(policy.problems)
    assert lab.decision.wake_in_s < 30.0
    lab.decide(seconds=lab.decision.wake_in_s)
    assert len(policy.problems) == asked + 1
    assert policy.problems[-1].frozen_J.tolist() == [False, True], "b has only just begun"
    assert "may be changed again" in lab.decision.reason


def test_its_own_agents_coming_lift_the_cooldown():
    policy = Counting()
    lab = lab_of(policy, "a", cooldown_s=30.0)
    lab.calm()
    lab.put_agent("a", agent("a2", "h2"))
    lab.decide()
    assert not policy.problems[-1].frozen_J.any()


def test_c10_agents_that_come_together_are_waited_for_a_moment_but_never_for_nobody():
    lab = Lab([host(f"h{i}", gpus=1) for i in range(6)], "heet")
    lab.settings = replace(SETTINGS, settle_s=1.0, settle_most_s=3.0)
    lab.submit(spec("a", (1, 6)))
    lab.decide(seconds=0.0)
    for i in range(6):  # six agents within three seconds
        lab.put_agent("a", agent(f"a{i}", f"h{i}"))
        lab.decide(seconds=0.6)
        for member in lab.gpus("a"):
            lab.react("a", member)
    for _ in range(4):
        lab.decide(seconds=0.5)
    assert lab.round("a").round <= 2
    assert len(lab.gpus("a")) == 6


def test_an_agent_alone_starts_after_the_settling_time():
    lab = Lab([host("h1", gpus=1)], "heet")
    lab.settings = replace(SETTINGS, settle_s=1.0, settle_most_s=3.0)
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.decide()
    assert lab.decision.reasons["a"] == "an agent of it has just come: waits a moment for others"
    assert lab.decision.wake_in_s == pytest.approx(1.0)
    lab.decide(seconds=1.0)
    assert set(lab.gpus("a")) == {"a1"}


def test_when_all_possible_agents_are_there_nobody_is_waited_for():
    lab = Lab([host("h1", gpus=1)], "heet")
    lab.settings = replace(SETTINGS, settle_s=1.0, settle_most_s=3.0)
    lab.submit(spec("a", (1, 1)))
    lab.put_agent("a", agent("a1", "h1", most=1))
    lab.decide()
    assert set(lab.gpus("a")) == {"a1"}


def test_a_paused_job_gives_everything_back_and_goes_on_when_resumed():
    lab = lab_of(Counting(), "a")
    lab.calm()
    lab.control("a", action="pause")
    lab.decide()
    assert lab.round("a").members == ()
    assert lab.round("a").reason == "paused by a person: 1 x T4 on 1 host given back"
    lab.calm()
    assert lab.views["a"].status.record.phase == "paused"
    assert lab.decision.reasons["a"] == "paused by a person (heet resume a: goes on)"
    lab.control("a", action="run")
    lab.calm()
    assert set(lab.gpus("a")) == {"a1"}


def test_a_persons_priority_outranks_the_jobs_own():
    policy = Counting()
    lab = lab_of(policy, "a")
    lab._put("a", control=Versioned(Control(priority=7.0), 1, 1))
    lab.decide()
    assert policy.problems[-1].priority_J.tolist() == [7.0]


def test_the_problem_says_what_the_jobs_want_and_hold():
    policy = Counting()
    lab = Lab([host("h1", gpus=4), host("v1", "V100", 2)], policy)
    axes = Axes(("T4", "V100"), 8, (4, 2))
    lab.table = Table(axes, {"a": row(axes, {"T4": 2.0, "V100": 4.0}, done=100.0, total=1000.0)})
    lab.submit(spec("a", (1, 2), min_workers=2, max_workers=6, allowed_workers=(2, 4, 6), priority=2.0))
    lab.put_agent("a", agent("a1", "h1", most=3))
    lab.put_agent("a", agent("a2", "v1", most=8))
    lab.calm()
    lab.submit(spec("b", multiple_of=2))
    lab.put_agent("b", agent("b1", "h1"))
    lab.decide(seconds=97.0)
    p = policy.problems[-1]
    assert (p.jobs, p.host_types, p.groups) == (("a", "b"), ("T4", "V100"), ("h1", "v1"))
    assert p.group_gpus_G.tolist() == [4, 2]
    assert p.limit_JG.tolist() == [[3, 2], [4, 0]]
    assert (p.min_J.tolist(), p.max_J.tolist()) == ([2, 1], [6, 8])
    assert p.allowed_JW[0].nonzero()[0].tolist() == [1, 3, 5]
    assert p.allowed_JW[1].nonzero()[0].tolist() == [1, 3, 5, 7]
    assert (p.min_hosts_J.tolist(), p.max_hosts_J.tolist()) == ([1, 1], [2, 4])
    assert p.current == (((0, 2),), ())
    assert p.remaining_J[0] == 900.0
    assert p.priority_J.tolist() == [2.0, 1.0]
    assert p.age_s_J[0] == pytest.approx(lab.now - 1.0)
    assert p.received_s_JH[0].tolist() == pytest.approx([2 * (lab.now - 2.0), 0.0])
    assert p.waited_s_J.tolist() == pytest.approx([0.0, 0.0])
    assert (p.rescales_J.tolist(), p.since_rescale_s_J[1]) == ([0, 0], np.inf)
    assert p.throughput_JHWS[0, 1, 0, 0] == 4.0
    assert (p.throughput_JHWS[1] > 0).all(), "a job without a row gets a neutral guess"


def test_a_frozen_job_still_counts_for_what_it_holds():
    policy = Counting()
    lab = lab_of(policy, "a")
    lab.calm()
    lab.put_agent("a", agent("a1", "h1", AgentState.FAILED, 1))
    lab.submit(spec("b"))
    lab.put_agent("b", agent("b1", "h1"))
    lab.decide()
    assert policy.problems[-1].frozen_J.tolist() == [True, False]
    assert policy.problems[-1].current == (((0, 1),), ())


def test_spares_on_its_hosts_do_not_keep_a_job_from_starting():
    # One GPU a host and an even number of workers: two hosts are needed, of six agents only two can take part.
    agents = [agent(f"a{n}-{i}", f"h{n}") for n, count in ((1, 3), (2, 1), (3, 2)) for i in range(count)]
    hosts = [host(f"h{n}", gpus=1) for n in (1, 2, 3)]
    asked = spec("a", (1, 3), multiple_of=2, min_workers=2)
    decision = ask(snapshot(hosts, [view(asked, agents)]))
    (granted,) = [x.allocation for x in decision.actions if isinstance(x, Allocate)]
    assert granted.world_size == 2
    assert len({m.host for m in granted.members}) == 2
