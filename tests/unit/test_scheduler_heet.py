"""Heet's policy part by part, on cases worked out by hand: price, chunks, matching, extension, trading, gate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from heet_elastic.scheduler.chunks import adaptive_chunk, chunk_sizes_H, entry_counts_JH
from heet_elastic.scheduler.extension import extend
from heet_elastic.scheduler.heet import Heet
from heet_elastic.scheduler.matching import match
from heet_elastic.scheduler.options import build_options
from heet_elastic.scheduler.pricing import price_JH
from heet_elastic.scheduler.trading import Terms, trade
from tests.unit.scheduler_worlds import NOTHING, chosen, decided, problem, then

ALL = np.ones(1)


def prices(asked, objective, workers):
    options = build_options(asked)
    count = np.full((len(asked.jobs), len(asked.host_types)), workers)
    return price_JH(asked, options, count, objective, np.ones(len(asked.jobs))).tolist()


def test_the_price_is_the_remaining_time_and_the_product_of_its_two_factors():
    # 600 units; one worker does 2 a second, two do 3: e = 3 / (2 x 2) = 0.75.
    asked = problem([[[2.0, 3.0]]], [(0, 2)], remaining_J=600.0)
    assert prices(asked, "both", 2) == [[pytest.approx(200.0)]]
    assert prices(asked, "short", 2) == [[pytest.approx(300.0)]]
    assert prices(asked, "scale", 2) == [[pytest.approx(1 / 0.75)]]
    assert pytest.approx(300.0 / (2 * 0.75)) == 200.0


def test_a_move_to_another_type_costs_its_rescale_in_the_price():
    asked = problem([[[2.0], [2.0]]], [(0, 1), (1, 1)], remaining_J=600.0, rescale_up_s_J=30.0, current=(((0, 1),),))
    assert prices(asked, "both", 1) == [[pytest.approx(300.0), pytest.approx(330.0)]]


def test_ablations_choose_by_one_factor_alone():
    # a is short and scales badly, b is long and scales well; there are two GPUs, in one chunk of two.
    table = [[[1.0, 1.1]], [[1.0, 2.0]]]
    asked = problem(table, [(0, 2)], remaining_J=[100.0, 150.0], min_J=2)
    assert chosen("short-only", asked) == [("A", 2), ("", 0)]
    assert chosen("scale-only", asked) == [("", 0), ("A", 2)]
    assert chosen("heet", asked) == [("", 0), ("A", 2)]  # 100/1.1 = 91 s against 150/2 = 75 s


SHARES = [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 5, 1), (8, 20, 1), (12, 2, 4)]


@pytest.mark.parametrize(("gpus", "jobs", "chunk"), SHARES)
def test_chunks_are_the_largest_power_of_two_that_everybody_can_have(gpus, jobs, chunk):
    hosts = [(0, 8)] if gpus == 8 else [(0, 8), (0, 4)]
    asked = problem(np.ones((jobs, 1, 8)), hosts)
    assert chunk_sizes_H(asked, build_options(asked), None).tolist() == [chunk]


def test_a_chunk_never_crosses_a_host():
    asked = problem(np.ones((1, 2, 8)), [(0, 2), (0, 2), (1, 8)])
    assert chunk_sizes_H(asked, build_options(asked), None).tolist() == [2, 8]


def test_a_job_enters_with_the_fastest_allowed_count_in_a_chunk_else_its_least():
    table = np.tile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (2, 1, 1))
    asked = problem(table, [(0, 8)], allowed_JW=[[w in (1, 3) for w in range(1, 9)], [w >= 6 for w in range(1, 9)]])
    assert entry_counts_JH(build_options(asked), np.array([4])).tolist() == [[3], [6]]


def test_chunks_do_not_flip_while_agents_come_and_go():
    """G / N going 3.9, 4.0, 3.9, 4.1 leaves jobs that hold two GPUs in chunks of two; 5.7 does not."""
    held = np.array([2, 2, 2])
    assert [adaptive_chunk(s, held) for s in (3.9, 4.0, 3.9, 4.1, 5.6, 5.7)] == [2, 2, 2, 2, 2, 4]
    assert [adaptive_chunk(s, np.array([4, 4])) for s in (4.1, 3.9)] == [4, 2]  # down at once: all must find one
    assert adaptive_chunk(4.1, np.array([], dtype=np.int64)) == 4


def test_no_job_is_resized_back_and_forth_as_agents_arrive():
    """GPUs of arriving hosts come one by one; the size of the job that runs goes up only."""
    table = np.tile(np.arange(1.0, 13.0) ** 0.9, (3, 1, 1))
    placed, sizes = NOTHING * 3, []
    for gpus in range(4, 13):
        hosts = [(0, min(4, gpus - at)) for at in range(0, gpus, 4)]
        asked = problem(table, hosts, rescale_up_s_J=1.0, age_s_J=10.0 * gpus, rescales_J=gpus - 4, current=placed)
        placed = decided("heet", asked)
        sizes.append([sum(n for _, n in p) for p in placed])
    for before, after in pairwise(sizes):
        assert all(a >= b for a, b in zip(after, before, strict=True)), sizes


def test_matching_seats_as_many_as_it_can_and_then_the_cheapest():
    price = np.array([[1.0, 9.0], [1.0, 2.0], [np.inf, 5.0]])
    assert match(price, np.array([1, 1])).tolist() == [0, 1, -1]  # 1 + 2 against 1 + 5: the cheapest two
    assert match(price, np.array([1, 2])).tolist() == [0, 1, 1]
    assert match(price, np.array([3, 0])).tolist() == [0, 0, -1]


def test_left_over_gpus_extend_the_job_with_the_cheapest_marginal_price():
    # Both hold one GPU; the second one is worth 100 / (1.9 - 1) = 111 to a and 50 / (1.4 - 1) = 125 to b.
    speed = np.array([[[1.0, 1.9]], [[1.0, 1.4]]])
    workers, free = np.array([1, 1]), np.array([1])
    extend(speed, np.array([100.0, 50.0]), free, np.array([0, 0]), workers)
    assert (workers.tolist(), free.tolist()) == ([2, 1], [0])


def test_extension_stops_where_nobody_gains():
    workers, free = np.array([1]), np.array([2])
    extend(np.array([[[1.0, 1.0, 0.9]]]), ALL, free, np.array([0]), workers)
    assert (workers.tolist(), free.tolist()) == ([1], [2])


@pytest.mark.parametrize(
    ("taker", "remaining", "result"),
    [
        # The taker b (1 -> 2 workers) is shorter: it needs a gain (T' - T) / T above the donor's loss (4 - 3.4) / 4.
        (1.2, [1000.0, 10.0], [1, 2]),
        (1.1, [1000.0, 10.0], [2, 1]),
        # It is longer: (T' - T) / T' above (4 - 3.4) / 3.4 = 0.176, which 1.2 (0.167) misses and 1.3 (0.231) does not.
        (1.2, [10.0, 1000.0], [2, 1]),
        (1.3, [10.0, 1000.0], [1, 2]),
    ],
)
def test_trading_follows_the_inequality_of_afs(taker, remaining, result):
    speed = np.array([[[3.4, 4.0]], [[1.0, taker]]])
    workers, kind, nothing = np.array([2, 1]), np.array([0, 0]), np.zeros(2)
    terms = Terms(np.array(remaining), np.full(2, 1e9), nothing, nothing)
    trade(speed, terms, kind, workers, np.array([], dtype=np.int64))
    assert workers.tolist() == result


def test_a_job_without_workers_always_wins_over_more_than_a_minimum():
    speed = np.array([[[1.0, 2.0]], [[0.1, 0.1]]])
    workers, kind, nothing = np.array([2, 0]), np.array([0, -1]), np.zeros(2)
    trade(speed, Terms(np.full(2, 100.0), np.full(2, 1e9), nothing, nothing), kind, workers, np.array([1]))
    assert workers.tolist() == [1, 1]


def test_a_trade_must_pay_for_the_rescales_that_it_causes():
    speed = np.array([[[3.4, 4.0]], [[1.0, 2.0]]])
    for lasting, result in ((10.0, [2, 1]), (1000.0, [1, 2])):
        workers, kind = np.array([2, 1]), np.array([0, 0])
        terms = Terms(np.array([1e6, 1e4]), np.full(2, lasting), np.full(2, 30.0), np.full(2, 5.0))
        trade(speed, terms, kind, workers, np.array([], dtype=np.int64))
        assert workers.tolist() == result


def test_a_change_that_does_not_pay_leaves_the_job_as_it_is():
    """From 1.0 to 1.9 for the remaining 100 s saves 47 s: worth a rescale of 40 s and not one of 60 s."""
    for cost, result in ((40.0, 2), (60.0, 1)):
        runs = {"remaining_J": 100.0, "age_s_J": 1e4, "current": (((0, 1),),)}
        asked = problem([[[1.0, 1.9]]], [(0, 2)], rescale_up_s_J=cost, **runs)
        assert chosen("heet", asked) == [("A", result)]


def test_free_gpus_go_to_who_waits_and_to_who_gains():
    """Nothing lies idle that a waiting or a running job could use: also what chunks of equal size leave over."""
    table = np.tile(np.arange(1.0, 9.0), (3, 1, 1))
    asked = problem(table, [(0, 8)], remaining_J=1e5, current=(((0, 2),), ((0, 2),), ()))
    counts = [w for _, w in chosen("heet", asked)]
    assert sum(counts) == 8
    assert min(counts) >= 2


def test_a_waiting_job_gets_gpus_that_the_gate_left_free():
    # b needs three at once; a keeps its two of five because growing does not pay.
    asked = problem(
        [[[1.0, 2.0, 2.01, 2.02, 2.03]], [[1.0, 2.0, 3.0, 4.0, 5.0]]],
        [(0, 5)],
        min_J=[1, 3],
        rescale_up_s_J=500.0,
        current=(((0, 2),), ()),
    )
    assert chosen("heet", asked) == [("A", 2), ("A", 3)]


def test_rigid_jobs_take_exactly_their_size_or_wait():
    table = np.tile(np.arange(1.0, 9.0), (2, 1, 1))
    asked = problem(table, [(0, 4), (0, 4)], per_host_J=[4, 0], min_J=[8, 1], max_J=8)
    assert chosen("heet", asked)[0][1] in (0, 8)
    alone = problem(table[:1], [(0, 4), (0, 4)], per_host_J=4, min_J=8, max_J=8)
    assert decided("heet", alone) == (((0, 4), (1, 4)),)
    assert decided("heet", problem(table[:1], [(0, 4), (0, 3)], per_host_J=4, min_J=8, max_J=8)) == ((),)


def test_a_suspended_job_holds_nothing_and_nobody_waits_for_it():
    asked = problem(np.ones((2, 1, 4)), [(0, 4)], limit_JG=[[0], [4]], current=(((0, 2),), ()))
    assert decided("heet", asked)[0] == ()
    assert decided("market", asked)[0] == ()


def test_priorities_decide_between_equal_jobs():
    for name in ("heet", "market"):
        asked = problem(np.ones((2, 1, 1)), [(0, 1)], priority_J=[1.0, 2.0])
        assert chosen(name, asked) == [("", 0), ("A", 1)]


def test_the_placed_configuration_is_priced_where_it_spreads():
    """Four workers would be faster, but not over two hosts: the growth is not applied."""
    curve = [[1.0, 2.0, 3.0, 4.0]]
    current = (((0, 2),), ((0, 2),), ((1, 2),))
    asked = problem([curve] * 3, [(0, 4), (0, 4)], spread=0.3, current=current, frozen_J=[False, True, True])
    assert chosen("heet", asked)[0] == ("A", 4)
    assert decided("heet", asked)[0] == ((0, 2),)


def test_a_job_that_may_use_half_of_each_host_is_priced_on_two_of_them():
    asked = problem([[[1.0, 2.0, 3.0, 4.0]]], [(0, 4), (0, 4)], spread=0.4, limit_JG=[[2, 2]])
    assert build_options(asked).speed_JHW[0, 0].tolist() == [1.0, 2.0, pytest.approx(1.2), pytest.approx(1.6)]
    assert chosen("heet", asked) == [("A", 2)]
    assert chosen("market", asked) == [("A", 2)]


def test_chunk_and_trading_can_be_set():
    table = np.tile(np.arange(1.0, 9.0) ** 0.5, (2, 1, 1))
    asked = problem(table, [(0, 8)])
    assert chosen(Heet(chunk=1, trading=False), asked) == [("A", 4), ("A", 4)]
    assert then(asked, ((), ())).current == replace(asked, current=((), ())).current
