"""The market on cases worked out by hand, its gap to the best allocation, and the bounds that heet shares with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heet_elastic.scheduler.bargain import Bargain
from heet_elastic.scheduler.charges import DEARER, EARNS, FREE_RESCALES, owed_J, settled_J
from heet_elastic.scheduler.clearing import clear
from heet_elastic.scheduler.density import fewest_hosts_JHW, table_hosts_HW
from heet_elastic.scheduler.market import Market, duality_gap
from heet_elastic.scheduler.steady import steadied
from tests.unit.scheduler_worlds import NOTHING, chosen, decided, problem


def best_by_dynamic_programming(value, gpus):
    """The most that any allocation is worth: over jobs, one state for every vector of GPUs given away."""
    best = np.zeros(tuple(gpus + 1))
    for job in value:
        new = best.copy()
        for h, w in np.argwhere(job > 0):
            if w + 1 <= gpus[h]:
                take = [slice(None)] * len(gpus)
                give = [slice(None)] * len(gpus)
                take[h], give[h] = slice(w + 1, None), slice(None, gpus[h] - w)
                new[tuple(take)] = np.maximum(new[tuple(take)], best[tuple(give)] + job[h, w])
        best = new
    return float(best.max())


def test_the_market_gives_each_type_to_who_gains_most_by_it():
    # B is four times as fast for a and twice for b: a on B and b on A are worth 4/4 + 1/2 of their best, not 1/4 + 2/2.
    assert chosen("market", problem([[[1.0], [4.0]], [[1.0], [2.0]]], [(0, 1), (1, 1)])) == [("B", 1), ("A", 1)]


def test_the_shorter_job_gets_more():
    table = np.tile(np.arange(1.0, 5.0) ** 0.6, (2, 1, 1))
    counts = [w for _, w in chosen("market", problem(table, [(0, 4)], remaining_J=[1000.0, 100.0]))]
    assert counts == [1, 3]


def test_shortness_weighs_short_jobs_against_speed():
    # One GPU: a finishes in 10 s, b in 1000 s; b's GPU is worth as much to it.
    asked = problem(np.ones((2, 1, 1)), [(0, 1)], remaining_J=[1000.0, 10.0])
    assert chosen(Market(shortness=1.0), asked) == [("", 0), ("A", 1)]


def test_clearing_fills_and_bounds():
    value = np.array([[[1.0, 1.8]], [[1.0, 1.2]], [[0.5, 0.6]]])
    cleared = clear(value, np.array([3]))
    assert cleared.value == pytest.approx(2.8)
    assert cleared.bound >= cleared.value
    assert cleared.workers_J.tolist() == [2, 1, 0]


def lumpy(seed, jobs):
    """Values that grow in jumps, which is the hard case: no price tells where the jumps are."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.lognormal(0, 1, (jobs, 3, 6)), axis=2) * rng.lognormal(0, 1, (jobs, 1, 1))


@pytest.mark.parametrize("seed", range(8))
def test_small_clusters_are_cleared_exactly(seed):
    value, gpus = lumpy(seed, 12), np.array([5, 4, 3])
    best = best_by_dynamic_programming(value, gpus)
    cleared = clear(value, gpus)
    assert cleared.value == pytest.approx(best)
    assert cleared.bound >= best * (1 - 1e-9)
    start = Bargain(value, gpus, np.r_[[0] * 5, [1] * 4, [2] * 3], np.ones(12, dtype=np.int64))
    start.polish()
    assert start.value() == pytest.approx(best)


@pytest.mark.parametrize("seed", range(8))
def test_larger_ones_are_within_a_few_percent_of_the_best(seed, monkeypatch):
    """Made the best one type after another instead of all at once, from prices as from what runs."""
    monkeypatch.setattr("heet_elastic.scheduler.exact.MOST_STEPS", 0)
    rng = np.random.default_rng(seed)
    curve = np.arange(1.0, 7.0) ** rng.uniform(0.4, 1.0, (40, 3, 1))
    value, gpus = curve * rng.lognormal(0, 1, (40, 1, 1)) * rng.lognormal(0, 0.5, (40, 3, 1)), np.array([9, 8, 7])
    best = best_by_dynamic_programming(value, gpus)
    assert clear(value, gpus).value >= 0.95 * best
    kind = np.r_[[0] * 9, [1] * 8, [2] * 7, [-1] * 16]
    start = Bargain(value, gpus, kind, (kind >= 0).astype(np.int64))
    start.trade()
    start.polish()
    assert start.value() >= 0.85 * best  # the start was arbitrary, and no price told where to go


def test_the_gap_is_reported_and_small_with_many_jobs():
    rng = np.random.default_rng(0)
    table = rng.lognormal(0, 0.5, (200, 2, 1)) * np.arange(1, 9) ** rng.uniform(0.5, 0.95, (200, 1, 1))
    names = tuple(f"{j:03d}" for j in range(200))
    asked = problem(table, [(0, 8)] * 4 + [(1, 8)] * 4, remaining_J=rng.lognormal(7, 2, 200), jobs=names)
    assert 0 <= duality_gap(Market(), asked) < 0.02


def test_a_rescale_must_pay_within_the_time_that_is_left():
    for cost, result in ((40.0, ("A", 2)), (60.0, ("A", 1))):
        runs = {"remaining_J": 100.0, "age_s_J": 1e4, "current": (((0, 1),),)}
        asked = problem([[[1.0, 1.9]]], [(0, 2)], rescale_up_s_J=cost, **runs)
        assert chosen("market", asked) == [result]


@pytest.mark.parametrize("policy", ["heet", "market"])
def test_no_job_is_rescaled_for_ever(policy):
    """However often speeds change, at most FREE + age / (EARNS cost) + ln(time left / cost) / ln(DEARER) times."""
    rng = np.random.default_rng(0)
    cost, work, rescales, placed, age = 9.0, 86400.0, 0, NOTHING, 0.0
    rich = FREE_RESCALES + np.log(work / cost) / np.log(DEARER) + 1
    for _ in range(600):
        asked = problem(
            rng.uniform(0.5, 4.0, (1, 2, 4)),
            [(0, 4), (1, 4)],
            remaining_J=work,
            rescale_up_s_J=cost,
            rescale_down_s_J=cost / 6,
            age_s_J=age,
            rescales_J=rescales,
            received_s_JH=np.full((1, 2), 1e9),
            current=placed,
        )
        before, placed = placed[0], decided(policy, asked)
        rescales += bool(before) and before != placed[0]
        age += 300.0
    assert FREE_RESCALES < rescales <= rich + age / (EARNS * cost)


def test_the_bound_of_a_job_grows_with_the_logarithm_of_its_length():
    asked = problem(np.ones((3, 1, 1)), [(0, 3)], remaining_J=9.0 * DEARER**4, rescale_up_s_J=9.0, rescales_J=[6, 7, 8])
    assert settled_J(asked, np.ones(3)).tolist() == [False, True, True]
    assert settled_J(asked, np.zeros(3)).tolist() == [False] * 3


def test_dear_rescales_leave_more_jobs_as_they_are():
    """The same arrivals with dearer rescales never rescale more."""
    rng = np.random.default_rng(3)
    changes = []
    for cost in (1.0, 30.0, 300.0):
        placed, changed = NOTHING * 4, 0
        rng = np.random.default_rng(3)
        for turn in range(40):
            speed = rng.uniform(0.5, 1.5, (4, 2, 1)) * np.arange(1.0, 5.0) ** 0.8
            asked = problem(
                speed, [(0, 4), (1, 4)], remaining_J=3000.0, rescale_up_s_J=cost, age_s_J=60.0 * turn, current=placed
            )
            before, placed = placed, decided("market", asked)
            changed += sum(a != b for a, b in zip(before, placed, strict=True) if a)
        changes.append(changed)
    assert changes[0] > changes[1] >= changes[2]


@pytest.mark.parametrize("policy", ["heet", "market"])
def test_who_waited_long_enough_comes_first_whatever_it_is_worth(policy):
    asked = problem([[[1.0, 2.0]], [[1.0, 2.0]]], [(0, 2)], remaining_J=[1.0, 1e9], min_J=[2, 2])
    assert chosen(policy, asked) == [("A", 2), ("", 0)]
    assert chosen(policy, replace(asked, waited_s_J=np.array([0.0, 4000.0]))) == [("", 0), ("A", 2)]


def test_a_job_is_owed_gpus_after_an_hour_or_while_it_had_too_little():
    asked = problem(
        np.ones((4, 1, 1)),
        [(0, 4)],
        age_s_J=[3000.0, 9000.0, 9000.0, 9000.0],
        waited_s_J=[3000.0, 3600.0, 0.0, 0.0],
        received_s_JH=[[0.0], [5000.0], [100.0], [600.0]],  # a tenth of 5400 s is 540 s
    )
    assert owed_J(asked, 3600.0).tolist() == [False, True, True, False]


# -- uncertain predictions --------------------------------------------------------------------------------------------


def curve(log_std, wrong=0.3):
    counts = np.arange(1.0, 9.0)
    speed = counts**0.8
    speed[4] *= 1 + wrong
    std = np.full((1, 1, 8), log_std)
    return problem(speed[None, None], [(0, 8)], log_std_JHW=std), counts**0.8


def test_a_prediction_that_sticks_out_is_pulled_to_its_neighbours():
    asked, true = curve(0.3)
    before, after = asked.throughput_JHWS[0, 0, :, 0], steadied(asked).throughput_JHWS[0, 0, :, 0]
    assert abs(after[4] / true[4] - 1) < 0.5 * abs(before[4] / true[4] - 1)


def test_smooth_curves_and_measured_cells_stay_as_they_are():
    smooth, true = curve(0.3, wrong=0.0)
    assert steadied(smooth).throughput_JHWS[0, 0, :, 0] == pytest.approx(true)
    measured, _ = curve(0.0)
    assert steadied(measured) is measured
    assert steadied(replace(measured, log_std_JHW=None)) == replace(measured, log_std_JHW=None)


@pytest.mark.parametrize("policy", ["heet", "market"])
def test_a_running_job_does_not_move_for_a_gain_within_the_error_of_a_prediction(policy):
    std = np.array([[[0.0], [0.3]]])
    here = {"current": (((0, 1),),), "remaining_J": 1e6, "rescale_up_s_J": 1.0, "age_s_J": 1e6}
    assert chosen(policy, problem([[[1.0], [1.2]]], [(0, 1), (1, 1)], log_std_JHW=std, **here)) == [("A", 1)]
    assert chosen(policy, problem([[[1.0], [1.2]]], [(0, 1), (1, 1)], **here)) == [("B", 1)]


@pytest.mark.parametrize("policy", ["heet", "market"])
@pytest.mark.parametrize("std", [0.2, 0.5, 1.0])
def test_a_job_grows_beside_idle_gpus_however_uncertain_more_workers_are(policy, std):
    asked = problem(
        np.arange(1.0, 4.0)[None, None, :] ** 0.9,
        [(0, 1)] * 3,
        current=(((0, 1), (1, 1)),),
        log_std_JHW=np.array([[[std, 0.0, std]]]),
        remaining_J=1000.0,
        rescale_up_s_J=5.0,
        age_s_J=120.0,
    )
    assert chosen(policy, asked) == [("A", 3)]


# -- density ----------------------------------------------------------------------------------------------------------


def test_fewest_hosts_know_limits_sizes_whole_agents_and_least_hosts():
    asked = problem(
        np.ones((4, 2, 8)),
        [(0, 4), (0, 4), (1, 2), (1, 2), (1, 4)],
        limit_JG=[[4, 4, 2, 2, 4], [1, 4, 0, 2, 4], [4] * 5, [4] * 5],
        per_host_J=[0, 0, 2, 0],
        min_hosts_J=[1, 1, 1, 2],
    )
    fewest = fewest_hosts_JHW(asked, np.arange(4))
    assert fewest[0, 0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert fewest[0, 1, :8].tolist() == [1, 1, 1, 1, 2, 2, 3, 3]
    assert fewest[1, 0, :5].tolist() == [1, 1, 1, 1, 2]
    assert fewest[1, 1, :6].tolist() == [1, 1, 1, 1, 2, 2]
    assert fewest[2, 0].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert fewest[3, 0].tolist() == [2] * 8
    assert table_hosts_HW(asked).tolist() == [[1] * 4 + [2] * 4] * 2
