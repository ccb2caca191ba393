"""Every job has one sentence: what it has and why, or what it lacks."""

from __future__ import annotations

import pytest

from heet_elastic.coordinator.api import SetResult, SetStatus
from heet_elastic.coordinator.decide.phases import step
from heet_elastic.model import (
    TRANSITIONS,
    Account,
    AgentState,
    Exclusion,
    Failure,
    Frozen,
    Phase,
    Result,
    Versioned,
)
from tests.unit.decide_worlds import Lab, agent, ask, host, planned, snapshot, spec, view


def reason(views, hosts=(), policy=None, job="a") -> str:
    return ask(snapshot(hosts or [host("h1")], views), policy or {}).reasons[job]


def test_no_agent_at_all():
    assert reason([view(spec("a", (2, 4)))]) == "no agent of it is here: start torchrun with --rdzv-id=a on 2 hosts"


def test_fewer_hosts_than_the_minimum():
    text = reason([view(spec("a", (2, 4)), [agent("a1", "h1")])])
    assert text == "1 of at least 2 hosts are here: start torchrun on 1 more"


def test_limits_that_no_offer_meets():
    text = reason([view(spec("a", min_workers=16), [agent("a1", "h1")])])
    assert text == "needs at least 16 workers, the hosts where it can run have room for 4: start it on more hosts"


def test_a_submitted_job_without_any_heet_agent():
    assert reason([view(spec("a", submitted=True))]).startswith("no host runs a heet-agent")


def test_an_excluded_host():
    shut = Account("run1", exclusions=(Exclusion("h1", 95.0, 2, "agent a1 was lost within 4 s of joining"),))
    text = reason([view(spec("a"), [agent("a1", "h1")], account=Versioned(shut, 1, 1))])
    assert text == ("waits for 1 more of 1 host; h1 is excluded for 100 s: agent a1 was lost within 4 s of joining")


def test_no_capacity_names_position_and_who_holds_the_gpus():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 2)})
    for job in "abc":
        lab.submit(spec(job))
        lab.put_agent(job, agent(f"{job}1", "h1"))
    lab.calm()
    assert lab.decision.reasons["b"] == (
        "waits in queue position 1 of 2: needs at least 1 GPU, none free where it can run, the others are held: 2 by a"
    )
    assert lab.views["c"].status.record.queue_position == 2
    assert lab.views["a"].status.record.queue_position is None


def test_a_running_job_says_what_it_got_and_why():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 2)})
    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    lab.calm()
    assert lab.decision.reasons["a"] == "granted 2 x T4 on 1 host: this coordinator has begun to lead"


def test_a_job_that_finishes_or_whose_members_agree_on_a_failure():
    running = planned(3, [("a1", "h1", ("h1-g0",)), ("a2", "h1", ("h1-g1",))])
    both = [agent("a1", "h1", AgentState.RUNNING, 3), agent("a2", "h1", AgentState.FAILED, 3)]
    assert reason([view(spec("a"), both, running)]) == "a worker failed in round 3: its agents agree on what follows"
    frozen = view(spec("a"), both, running, frozen=Versioned(Frozen("a1", 3, "run1"), 5, 5))
    assert reason([frozen]).startswith("finishes: 0 of 2 agents have ended well")


def test_an_ended_job_says_how_while_agents_of_it_are_there():
    ended = Versioned(Result("failed", "ImportError: no module named x", "run1"), 6, 6)
    text = reason([view(spec("a"), [agent("a1", "h1", AgentState.FAILED, 3)], result=ended)])
    assert text == "failed: ImportError: no module named x"


def test_every_live_job_gets_a_status_with_a_reason_and_no_second_write_when_nothing_changed():
    lab = Lab([host("h1", gpus=1)], {"a": ("T4", 1)})
    for job in "ab":
        lab.submit(spec(job))
        lab.put_agent(job, agent(f"{job}1", "h1"))
    lab.calm()
    assert {j: bool(v.status.record.reason) for j, v in lab.views.items()} == {"a": True, "b": True}
    assert not [a for a in lab.decide().actions if isinstance(a, SetStatus)]


# ---- phases


def test_phases_follow_a_job_from_start_to_end():
    lab = Lab([host("h1", gpus=2)], {"a": ("T4", 1)})
    seen: list[Phase] = []

    def look() -> None:
        lab.decide()
        phase = lab.views["a"].status.record.phase
        if not seen or seen[-1] is not phase:
            seen.append(phase)

    lab.submit(spec("a"))
    lab.put_agent("a", agent("a1", "h1"))
    for _ in range(4):
        look()
        lab.react("a", "a1")
    lab.policy = {"a": ("T4", 2)}
    lab.put_agent("a", agent("a2", "h1"))
    for _ in range(4):
        look()
        lab.react("a", "a1")
    lab.control("a", action="pause")
    look()
    look()
    lab.control("a", action="run")
    look()
    look()
    for _ in range(4):
        lab.react("a", "a1")
        lab.react("a", "a2")
        look()
    lab._put("a", frozen=Versioned(Frozen("a1", 9, "run1"), 5, 5))
    look()
    lab._put("a", result=Versioned(Result("succeeded", "", "run1"), 6, 6))
    look()
    p = Phase
    assert seen == [
        *(p.WAITING, p.STARTING, p.RUNNING, p.RESCALING, p.RUNNING),
        *(p.PAUSED, p.WAITING, p.STARTING, p.RUNNING, p.FINISHING, p.SUCCEEDED),
    ]


@pytest.mark.parametrize("last", list(Phase))
@pytest.mark.parametrize("wanted", list(Phase))
def test_a_phase_is_reached_along_allowed_steps_only(last: Phase, wanted: Phase):
    now, path = last, [last]
    for _ in range(len(Phase)):
        following = step(now, wanted)
        if following is now:
            break
        assert following in TRANSITIONS[now]
        now = following
        path.append(now)
    if TRANSITIONS[last]:
        assert now is wanted, path
    else:
        assert now is last, "an end is never left"


def test_a_job_that_ended_between_two_looks_passes_through_the_phases_in_between():
    ended = view(spec("a"), result=Versioned(Result("succeeded", "", "run1"), 6, 6))
    lab = Lab([host("h1")])
    lab.submit(spec("a"))
    lab.decide()
    lab._put("a", result=ended.result)
    phases = []
    for _ in range(4):
        lab.decide()
        phases.append(lab.views["a"].status.record.phase)
    assert phases == [Phase.STARTING, Phase.SUCCEEDED, Phase.SUCCEEDED, Phase.SUCCEEDED]


def test_failures_alone_do_not_end_a_job():
    running = planned(3, [("a1", "h1", ("h1-g0",))])
    failures = {(3, "a1"): Versioned(Failure(3, "a1", "h1", 0, 1, "boom"), 9, 9)}
    shot = snapshot(
        [host("h1")], [view(spec("a"), [agent("a1", "h1", AgentState.FAILED, 3)], running, failures=failures)]
    )
    assert all(not isinstance(a, SetResult) for a in ask(shot).actions)
