"""What holds for every policy on any problem: feasible, deterministic, blind to the order of jobs, calm."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heet_elastic.scheduler.api import Choice, Problem
from heet_elastic.scheduler.market import Market, market_value
from heet_elastic.scheduler.matching import by_assignment, by_prices, match
from heet_elastic.scheduler.options import build_options, permuted, type_gpus_H
from heet_elastic.scheduler.placement import place
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.scheduler.sizes import reprice
from tests.unit.scheduler_worlds import problem

OURS = ("heet", "short-only", "scale-only", "market")
HARD = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
FEWER = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])

WILD = (0.0, 1.0, np.nan, np.inf, -1.0, 1e-300, 1e300)
TAME = (0.0, 1.0, 1.0, 2.0)


def make(seed: int, jobs: int, types: int, most: int, odd: tuple[float, ...]) -> Problem:
    """Any problem: limits, world sizes, rigid jobs, frozen ones, jobs without a single agent, whatever runs now.

    `odd`: speeds that every third cell has. Numbers come from the seed: drawing them one by one is slow.
    """
    rng = np.random.default_rng(seed)
    hosts = [(int(rng.integers(types)), int(rng.integers(5))) for _ in range(rng.integers(1, 6))]
    table = np.exp(rng.uniform(-4, 4, (jobs, types, most)))
    table = np.where(rng.random(table.shape) < 1 / 3, rng.choice(odd, table.shape), table)
    counts = np.arange(1, most + 1)
    sizes = np.array([counts > 0, counts % 2 == 0, np.isin(counts, [1, 2, 4, 8])])
    limit = rng.integers(0, 5, (jobs, len(hosts))) if rng.random() < 0.5 else None
    current, free = [], [n for _, n in hosts]
    for _ in range(jobs):
        where: dict[int, int] = {}
        for group in rng.permutation(len(hosts))[: rng.integers(3)].tolist():
            if free[group] and (not where or hosts[next(iter(where))][0] == hosts[group][0]):
                where[group] = int(rng.integers(1, free[group] + 1))
                free[group] -= where[group]
        current.append(tuple(sorted(where.items())))
    runs = np.array([bool(p) for p in current], dtype=bool)
    return problem(
        table,
        hosts,
        float(rng.choice([1.0, 0.8, 0.1])),
        current=current,
        frozen_J=runs & (rng.random(jobs) < 0.3),
        remaining_J=np.exp(rng.uniform(-10, 20, jobs)),
        min_J=rng.integers(1, 4, jobs),
        max_J=rng.integers(1, most + 1, jobs),
        requested_J=rng.integers(1, most + 1, jobs),
        min_hosts_J=rng.choice([1, 1, 1, 2], jobs),
        max_hosts_J=rng.integers(1, 6, jobs),
        per_host_J=rng.choice([0, 0, 0, 1, 2], jobs),
        priority_J=rng.choice([1.0, 1.0, 0.5, 4.0], jobs),
        age_s_J=rng.uniform(0, 1e5, jobs),
        waited_s_J=np.where(runs, 0.0, rng.uniform(0, 1e5, jobs)),
        since_rescale_s_J=rng.choice([np.inf, 10.0, 1e4], jobs),
        rescale_up_s_J=rng.uniform(0, 300, jobs),
        rescale_down_s_J=rng.uniform(0, 60, jobs),
        rescales_J=rng.integers(0, 20, jobs),
        log_std_JHW=rng.choice([0.0, 0.1, 1.0], table.shape) if rng.random() < 0.5 else None,
        allowed_JW=sizes[rng.integers(0, 3, jobs)],
        limit_JG=limit,
    )


def problems(odd=TAME, most_jobs=5):
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(make, seeds, st.integers(0, most_jobs), st.integers(1, 3), st.integers(1, 5), st.just(odd))


def decide(policy, asked):
    choice = policy.choose(asked, np.random.default_rng(0))
    return choice, place(asked, choice)


def infeasible(asked, placed):
    """What is wrong with a placement, in words; empty = nothing."""
    wrong = []
    used = np.zeros(len(asked.groups), dtype=np.int64)
    for j, where in enumerate(placed):
        for group, workers in where:
            used[group] += workers
        if asked.frozen_J[j]:
            if where != asked.current[j]:
                wrong.append(f"frozen {asked.jobs[j]} changed")
            continue
        if not where:
            continue
        total, hosts, each = sum(n for _, n in where), len(where), int(asked.per_host_J[j])
        if total > asked.allowed_JW.shape[1] or not asked.allowed_JW[j, total - 1]:
            wrong.append(f"{asked.jobs[j]} has {total} workers, which is not an allowed count")
        if not asked.min_J[j] <= total <= asked.max_J[j]:
            wrong.append(f"{asked.jobs[j]} has {total} workers: outside its limits")
        if not asked.min_hosts_J[j] <= hosts <= asked.max_hosts_J[j]:
            wrong.append(f"{asked.jobs[j]} is on {hosts} hosts: outside its limits")
        if each and any(n != each for _, n in where):
            wrong.append(f"{asked.jobs[j]} does not take whole agents of {each}")
        if asked.limit_JG is not None and any(n > asked.limit_JG[j, g] for g, n in where):
            wrong.append(f"{asked.jobs[j]} has more workers on a host than it may have there")
        types = {int(asked.group_type_G[g]) for g, _ in where}
        if len(types) > 1 and any(build_options(asked).speed_JHW[j].any(axis=1)):
            wrong.append(f"{asked.jobs[j]} spans host types although it fits on one")
    if (used > asked.group_gpus_G).any():
        wrong.append("a host gives more GPUs than it has")
    return wrong


@pytest.mark.parametrize("name", list(POLICIES))
@HARD
@given(asked=problems(WILD))
def test_every_decision_is_feasible(name, asked):
    choice, placed = decide(POLICIES[name](), asked)
    assert infeasible(asked, placed) == []
    options = build_options(asked)
    free = ~options.fixed_J & (choice.workers_J > 0)
    used = np.bincount(choice.type_J[free], weights=choice.workers_J[free], minlength=len(asked.host_types))
    for j in np.flatnonzero(asked.frozen_J):
        for group, workers in asked.current[j]:
            used[asked.group_type_G[group]] += workers
    assert (used <= type_gpus_H(asked)).all()
    assert all(options.speed_JHW[j, choice.type_J[j], choice.workers_J[j] - 1] > 0 for j in np.flatnonzero(free))
    assert ((choice.type_J >= 0) == (choice.workers_J > 0)).all()


@pytest.mark.parametrize("name", list(POLICIES))
@FEWER
@given(asked=problems(), data=st.data())
def test_decisions_depend_on_the_problem_alone_and_not_on_the_order_of_jobs(name, asked, data):
    order = np.array(data.draw(st.permutations(range(len(asked.jobs)))), dtype=np.int64)
    choice, placed = decide(POLICIES[name](), asked)
    again, placed_again = decide(POLICIES[name](), asked)
    other, placed_other = decide(POLICIES[name](), permuted(asked, order))
    assert placed == placed_again
    assert np.array_equal(choice.type_J, again.type_J)
    assert np.array_equal(choice.type_J[order], other.type_J)
    assert np.array_equal(choice.workers_J[order], other.workers_J)
    assert tuple(placed[j] for j in order) == placed_other


@pytest.mark.parametrize("name", OURS)
@HARD
@given(asked=problems())
def test_what_was_decided_stays_when_nothing_happens(name, asked):
    """Equal gains leave things as they are: asked again at once, the policy changes no running job."""
    policy = POLICIES[name]()
    asked = replace(asked, frozen_J=np.zeros(len(asked.jobs), dtype=bool), rescale_up_s_J=asked.rescale_up_s_J + 1.0)
    _, placed = decide(policy, asked)
    running = np.array([bool(p) for p in placed], dtype=bool)
    for _ in range(2):
        asked = replace(
            asked,
            current=placed,
            rescales_J=asked.rescales_J + 1,
            since_rescale_s_J=np.zeros(len(asked.jobs)),
            waited_s_J=np.where(running, 0.0, asked.waited_s_J),
        )
        _, placed = decide(policy, asked)
    assert tuple(p for p, r in zip(placed, running, strict=True) if r) == tuple(
        p for p, r in zip(asked.current, running, strict=True) if r
    )


@pytest.mark.parametrize("name", OURS)
@HARD
@given(asked=problems())
def test_no_running_job_is_changed_where_every_configuration_is_equal(name, asked):
    asked = replace(asked, throughput_JHWS=np.ones_like(asked.throughput_JHWS))
    every = all(asked.current)
    _, placed = decide(POLICIES[name](), asked)
    fits = infeasible(asked, asked.current) == []
    if every and fits:
        assert placed == asked.current


# -- exact on small cases ---------------------------------------------------------------------------------------------


def cheapest_full_matching(price, chunks):
    """(jobs matched, sum of prices) by trying everything."""
    best = (0, 0.0)
    for types in itertools.product(range(-1, price.shape[1]), repeat=len(price)):
        used = np.bincount([h for h in types if h >= 0], minlength=price.shape[1])
        if (used > chunks).any():
            continue
        cost = sum(price[j, h] for j, h in enumerate(types) if h >= 0)
        matched = sum(h >= 0 for h in types)
        if np.isfinite(cost) and (matched > best[0] or (matched == best[0] and cost < best[1])):
            best = (matched, cost)
    return best


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_matching_is_of_least_weight_among_the_full_ones(data):
    jobs, types = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    cell = st.one_of(st.floats(0.01, 100.0), st.sampled_from([1.0, 1.0, 2.0, np.inf]))
    price = np.array([[data.draw(cell) for _ in range(types)] for _ in range(jobs)])
    chunks = np.array([data.draw(st.integers(0, 4)) for _ in range(types)], dtype=np.int64)
    best = cheapest_full_matching(price, chunks)
    solvers: list[Any] = [match]
    if np.isfinite(price).any(axis=1).all() and chunks.sum():
        solvers += [by_assignment, by_prices]
    for solve in solvers:
        type_J = solve(price, chunks)
        rows = np.flatnonzero(type_J >= 0)
        assert (np.bincount(type_J[rows], minlength=types) <= chunks).all()
        assert len(rows) == best[0]
        assert float(price[rows, type_J[rows]].sum()) == pytest.approx(best[1], rel=1e-9)


def best_value(value, gpus):
    """The most that any allocation is worth, by trying everything."""
    jobs, types, most = value.shape
    cells = [None, *itertools.product(range(types), range(1, most + 1))]
    best = 0.0
    for picked in itertools.product(cells, repeat=jobs):
        used, worth = np.zeros(types, dtype=np.int64), 0.0
        for j, cell in enumerate(picked):
            if cell is not None:
                used[cell[0]] += cell[1]
                worth += value[j, cell[0], cell[1] - 1] if value[j, cell[0], cell[1] - 1] > 0 else -np.inf
        if (used <= gpus).all():
            best = max(best, worth)
    return best


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(asked=problems(most_jobs=3))
def test_market_is_the_best_allocation_of_small_cases(asked):
    value, gpus = market_value(Market(), asked)
    if value.shape[1] * value.shape[2] > 8:
        return
    choice = Market().choose(asked, np.random.default_rng(0))
    free = ~build_options(asked).fixed_J & (choice.workers_J > 0)
    worth = sum(value[j, choice.type_J[j], choice.workers_J[j] - 1] for j in np.flatnonzero(free))
    assert worth >= (1 - 1e-6) * best_value(value, gpus)


# -- density ----------------------------------------------------------------------------------------------------------


@HARD
@given(asked=problems())
def test_a_job_placed_alone_is_as_fast_as_its_configuration_was_priced(asked):
    jobs = len(asked.jobs)
    options = build_options(asked)
    empty = replace(asked, current=((),) * jobs, frozen_J=np.zeros(jobs, dtype=bool))
    for j, h, w in np.argwhere(options.speed_JHW > 0).tolist()[:8]:
        type_J, workers_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
        type_J[j], workers_J[j] = h, w + 1
        placed = place(empty, Choice(type_J, workers_J, np.zeros(jobs)))
        assert reprice(empty, placed).speed_J[j] == options.speed_JHW[j, h, w]
