"""Whole runs: hand-computed completion times, costs, failures, and the same log for the same seed."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from heet_elastic.model import Configuration
from heet_elastic.predictor.samples import job_progress, merge
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.simulator.cluster import HostGroup, build_hosts
from heet_elastic.simulator.engine import Simulation
from heet_elastic.simulator.feed import Sampler
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.progress import Body
from heet_elastic.simulator.settings import Costs, Failures, SimulationSettings
from heet_elastic.simulator.sweep import make_feed
from heet_elastic.simulator.truth import Row, Truth

LINEAR = {(w, 1): float(w) for w in (1, 2, 4)}
TRUTH = Truth(
    [
        Row("linear", "linear", "u", {"T4": LINEAR, "V100": {k: 2 * v for k, v in LINEAR.items()}}),
        Row("t4-only", "t4-only", "u", {"T4": LINEAR}),
    ]
)
T4 = (HostGroup("T4", 1, 4),)
MIXED = (HostGroup("T4", 2, 4), HostGroup("V100", 1, 4))


def job(name, work=100.0, submit=0.0, requested=1, row="linear", least=1, most=4, **more):
    return SimJob(name, row, work, requested, submit, least, most, **more)


def simulate(jobs, policy="fifo", cluster=T4, report=lambda _: False, **settings):
    chosen = SimulationSettings(**settings)
    hosts = build_hosts(cluster)
    feed = make_feed(policy, jobs, TRUTH, chosen, hosts)
    return Simulation(jobs, TRUTH, POLICIES[policy](), feed, chosen, hosts, {}, report).run()


def finishes(result):
    return {j.job: j.finish_s for j in result.jobs}


def busy_gpus(result):
    """Most devices in use at one time, by host, from the log alone."""
    held: dict[str, dict[str, int]] = {}
    most: Counter[str] = Counter()
    for line in result.log:
        event = json.loads(line)
        if event["event"] in ("round", "probe"):
            held[event["name"]] = {h: int(n) for h, n in (m.rsplit(":", 1) for m in event["new"])}
        elif event["event"] in ("done", "arrive"):
            held.pop(event["name"], None)
        now: Counter[str] = Counter()
        for where in held.values():
            now.update(where)
        for host, n in now.items():
            most[host] = max(most[host], n)
    return most


def test_a_job_alone_ends_when_its_work_over_its_speed_and_its_start_say():
    result = simulate([job("a", work=100.0, requested=2, submit=50.0)], costs=Costs(up_s=9.0))
    assert finishes(result) == {"a": 50.0 + 9.0 + 50.0}
    (a,) = result.jobs
    assert (a.waited_s, a.rescales, a.gpu_s, a.efficient_gpu_s) == (0.0, 0, 100.0, 100.0)


def test_fifo_makes_the_third_job_wait_for_the_first_that_ends():
    jobs = [job("a", 400.0, 0.0, 2), job("b", 100.0, 1.0, 2), job("c", 100.0, 2.0, 2)]
    ends = finishes(simulate(jobs, costs=Costs(up_s=10.0)))
    assert ends["a"] == 210.0
    assert ends["b"] == 61.0
    assert ends["c"] == 61.0 + 60.0


def test_work_since_the_last_checkpoint_is_lost_with_its_host_and_done_again():
    settings = {"costs": Costs(up_s=0.0, checkpoint_interval_s=30.0), "failures": Failures(mtbf_s=80.0, repair_s=20.0)}
    result = simulate([job("a", work=400.0, most=1)], **settings, seed=3)
    kinds = Counter(json.loads(line)["event"] for line in result.log)
    (a,) = result.jobs
    assert kinds["host down"] > 0
    assert a.finish_s == pytest.approx(400.0 + a.waited_s + a.lost_s)
    assert a.lost_s > 0
    assert a.rescales == kinds["host down"]


def test_a_failed_host_comes_back_and_a_job_elsewhere_goes_on():
    jobs = [job(str(i), 500.0, row="t4-only") for i in range(8)]
    result = simulate(jobs, cluster=MIXED, failures=Failures(mtbf_s=1500.0, repair_s=50.0), seed=1)
    kinds = Counter(json.loads(line)["event"] for line in result.log)
    assert kinds["host down"] >= kinds["host up"] > 0
    assert all(j.finish_s is not None for j in result.jobs)


def test_a_type_on_which_a_job_was_never_measured_is_closed_to_it():
    jobs = [job(str(i), 2000.0, 10.0 * i, row="t4-only") for i in range(6)]
    for policy in ("heet", "fifo"):
        result = simulate(jobs, policy, MIXED)
        assert not any("v100" in line for line in result.log)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_ends_all_jobs_within_the_clusters_gpus_and_repeats_itself_byte_for_byte(policy):
    jobs = [
        job(str(i), 300.0 * (1 + i % 5), 40.0 * i, 1 + i % 4, priority=1.0 + i % 2, rigid=i % 7 == 0)
        if i % 7
        else job(str(i), 900.0, 40.0 * i, 2, least=2, most=2, rigid=True)
        for i in range(12)
    ]
    one, two = (simulate(jobs, policy, MIXED, seed=5) for _ in range(2))
    assert all(j.finish_s is not None for j in one.jobs)
    assert one.log == two.log
    assert one.jobs == two.jobs
    assert all(n <= 4 for n in busy_gpus(one).values())
    for line in one.log:
        event = json.loads(line)
        if event["event"] == "round" and event["name"] in ("0", "7"):
            assert sum(int(m.rsplit(":", 1)[1]) for m in event["new"]) in (0, 2)


def test_another_seed_measures_otherwise():
    jobs = [job(str(i), 3000.0, 100.0 * i) for i in range(6)]
    one, two = (simulate(jobs, "heet", MIXED, seed=s, noise=0.2) for s in (1, 2))
    assert one.log != two.log


def test_predictions_that_are_off_change_decisions_and_perfect_curves_can_be_asked_for():
    jobs = [job(str(i), 3000.0, 100.0 * i) for i in range(6)]
    logs = [
        simulate(jobs, "heet", MIXED, **settings).log
        for settings in ({}, {"error": 0.3}, {"predictor": "true"}, {"predictor": "true", "error": 0.3})
    ]
    assert len({tuple(log) for log in logs}) == 4


def test_a_run_that_is_stopped_keeps_what_was_done():
    jobs = [job(str(i), 100.0, 500.0 * i) for i in range(10)]
    result = simulate(jobs, report=lambda share: share >= 0.5)
    assert sum(j.finish_s is not None for j in result.jobs) == 5
    assert not result.complete


def test_jobs_that_can_never_start_end_the_run_and_are_said():
    jobs = [job("fits", 100.0), job("waits", 100.0, least=4, most=4, requested=4, row="t4-only")]
    # The only T4 host is down for longer than a run may stall.
    result = simulate(jobs, failures=Failures(mtbf_s=30.0, repair_s=1e9), seed=0)
    assert any(j.finish_s is None for j in result.jobs)
    assert "had not ended" in result.notes[0]


def test_a_shrink_costs_less_than_a_growth():
    # One elastic job has the host to itself, shrinks when the second comes, and grows again after it.
    jobs = [job("a", 4000.0), job("b", 200.0, 400.0, least=1, most=2)]
    cheap, dear = (simulate(jobs, "heet", costs=Costs(up_s=up, down_s=1.0), predictor="true") for up in (1.0, 120.0))
    assert finishes(dear)["a"] > finishes(cheap)["a"]


@pytest.mark.parametrize(("interval_s", "saved"), [(0.0, 200.0), (60.0, 120.0)])
def test_simulated_agents_report_the_work_that_a_restart_would_not_lose(interval_s, saved):
    body = Body(job("a", work=1e6), interval_s)
    body.start(0.0, {"t4-00": ("g0", "g1")}, Configuration("T4", 2, 1), rate=2.0, efficiency=1.0, cost_s=0.0)
    body.advance(100.0)
    record = Sampler(TRUTH, 0.0, 0).record(body, 1, 100.0)
    progress = job_progress([record])
    assert (progress.steps, progress.samples) == (200.0, 200.0)
    assert (progress.marked_steps, progress.marked_samples) == (saved, saved)
    (cell,) = merge([record], "samples").values()
    assert cell.throughput == pytest.approx(2.0)
