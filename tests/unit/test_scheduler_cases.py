"""What research schedulers trip over: strange numbers, equal gains, streams of short jobs, pins, typed-in types."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heet_elastic.scheduler.policies import POLICIES
from tests.unit.scheduler_worlds import NOTHING, chosen, decided, problem

ROOT = Path(__file__).resolve().parents[2]
OURS = ("heet", "market")


@pytest.mark.parametrize("policy", list(POLICIES))
def test_s1_a_type_or_job_without_a_usable_speed_is_no_error(policy):
    """0, NaN, infinite, negative and unseen (all zero) cells: what can run runs, the rest waits."""
    table = [
        [[1.0, 2.0], [0.0, 0.0]],
        [[np.nan, np.nan], [np.inf, -1.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[1.0, np.nan], [np.nan, 3.0]],
    ]
    asked = problem(table, [(0, 2), (1, 2)], log_std_JHW=np.full((4, 2, 2), np.nan))
    placed = decided(policy, asked)
    assert placed[1] == placed[2] == ()
    assert placed[0] or placed[3]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_s1_a_host_that_went_takes_no_decision_with_it(policy):
    """A job ran on a host of which no GPU is left: it runs elsewhere."""
    table = np.ones((1, 1, 2))
    asked = problem(table, [(0, 0), (0, 2)], current=(((0, 2),),), age_s_J=100.0)
    placed = decided(policy, asked)
    assert all(group == 1 for group, _ in placed[0])
    nobody = problem(np.ones((0, 1, 2)), [(0, 2)])
    assert decided(policy, nobody) == ()


@pytest.mark.parametrize("policy", OURS)
def test_s1_an_unknown_job_has_a_prior_and_its_uncertainty(policy):
    """A flat guess with a large uncertainty next to a measured job: both are served."""
    table = [[[1.0, 1.8, 2.5, 3.0]], [[1.0, 1.8, 2.5, 3.2]]]
    std = np.array([np.full((1, 4), 0.02), np.full((1, 4), 3.0)])
    assert all(w > 0 for _, w in chosen(policy, problem(table, [(0, 4)], log_std_JHW=std)))


@pytest.mark.parametrize("policy", OURS)
def test_s2_with_equal_gains_the_current_placement_wins(policy):
    table = np.ones((2, 2, 2))
    current = (((2, 1),), ((0, 1),))
    asked = problem(table, [(0, 2), (1, 2), (1, 2)], current=current, age_s_J=1e4)
    assert decided(policy, asked) == current


@pytest.mark.parametrize("policy", OURS)
def test_s2_the_total_rescale_cost_stays_below_what_it_gained(policy):
    """Over a day of changing neighbours the seconds spent in rescales are a small share of the job's life."""
    rng = np.random.default_rng(5)
    cost, work, spent, age, rescales, placed = 30.0, 86400.0, 0.0, 0.0, 0, NOTHING * 3
    while work > 0 and age < 86400.0:
        table = np.arange(1.0, 5.0) ** 0.8 * np.array([[[1.0]], [[rng.uniform(0.1, 9.0)]], [[rng.uniform(0.1, 9.0)]]])
        left = [max(work, 1.0), float(rng.uniform(10, 1e4)), float(rng.uniform(10, 1e4))]
        asked = problem(
            table,
            [(0, 4)],
            remaining_J=left,
            rescale_up_s_J=cost,
            rescale_down_s_J=cost / 6,
            age_s_J=age,
            rescales_J=rescales,
            current=placed,
            received_s_JH=np.full((3, 1), 1e9),
        )
        before, placed = placed[0], decided(policy, asked)
        workers = sum(n for _, n in placed[0])
        if before and placed[0] != before:
            rescales, spent = rescales + 1, spent + cost
        work -= 300.0 * workers**0.8
        age += 300.0
    assert spent <= 0.05 * age


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("rigid", [False, True])
def test_s3_a_stream_of_short_jobs_starves_nobody(policy, rigid):
    """Every decision meets fresh short jobs that would fill the cluster; the long one gets its least count anyway."""
    waited, longest, received = 0.0, 0.0, 0.0
    placed = NOTHING * 5
    table = np.tile(np.arange(1.0, 5.0), (5, 1, 1))
    for turn in range(80):
        asked = problem(
            table,
            [(0, 4)],
            remaining_J=[1e7, *[20.0] * 4],
            min_J=[4 if rigid else 2, 1, 1, 1, 1],
            per_host_J=[4 if rigid else 0, 0, 0, 0, 0],
            age_s_J=[turn * 300.0, 0.0, 0.0, 0.0, 0.0],
            waited_s_J=[waited, 0.0, 0.0, 0.0, 0.0],
            received_s_JH=[[received], [0.0], [0.0], [0.0], [0.0]],
            rescale_up_s_J=9.0,
            current=(placed[0], (), (), (), ()),
        )
        placed = decided(policy, asked)
        workers = sum(n for _, n in placed[0])
        waited = 0.0 if workers else waited + 300.0
        received += 300.0 * workers
        longest = max(longest, waited)
    assert longest <= 3900.0
    # ... and it goes on getting a tenth of its least count, not one short turn an hour.
    assert received >= 0.1 * (4 if rigid else 2) * (80 * 300.0 - 3600.0 - 600.0)


def test_s4_dependencies_are_few_and_free_above():
    """No upper pins but where a newer version is known to break; nothing that a scheduler does not need."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[^A-Za-z0-9-]", w)[0] for w in wanted}
    assert len(names) <= 12
    assert not names & {"pymoo", "kubernetes-asyncio", "kubernetes_asyncio", "torch", "cvxpy", "pandas"}
    pinned = {re.split(r"[^A-Za-z0-9-]", w)[0] for w in wanted if "==" in w}
    assert pinned <= {"etcd3"}  # 0.12.0 is its last release


@pytest.mark.parametrize("policy", list(POLICIES))
def test_s5_host_types_are_whatever_the_hosts_say(policy):
    """Names nobody ever typed in, in any order and number: a policy knows them by the problem alone."""
    asked = problem([[[1.0], [3.0], [2.0]]], [(0, 1), (1, 1), (2, 1)])
    named = replace(asked, host_types=("Präzision 9000 / NVLink", "zx81", "a"))
    assert [w for _, w in chosen(policy, named)] == [1]
    assert decided(policy, named) == decided(policy, asked)


def test_s5_the_scheduler_names_no_gpu():
    """No file of the scheduler knows a model by name."""
    for path in (ROOT / "heet_elastic" / "scheduler").glob("*.py"):
        found = re.findall(r"\b(?:V100|A100|H100|T4|P100|K80|RTX ?\w+)\b", path.read_text())
        assert not found, (path.name, found)
