"""Known answers of the baselines, on cases small enough to work out by hand (docs/scheduling.md)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from heet_elastic.scheduler.afs import afs_counts
from heet_elastic.scheduler.gavel import Gavel, solve_jct, solve_las
from heet_elastic.scheduler.optimus import optimus_counts
from heet_elastic.scheduler.pollux import least_cost_counts
from heet_elastic.scheduler.sia import restart_factor_J, sia_configurations_HW, sia_weights, solve_assignment
from heet_elastic.scheduler.srsf import srsf_counts
from tests.unit.scheduler_worlds import chosen, decided, problem

ONE_TYPE = [(0, 4)]


# -- AFS-L -----------------------------------------------------------------------------------------------------------


def test_afs_gives_everybody_one_gpu_before_anybody_a_second():
    curves = np.array([[1.0, 5.0, 9.0], [1.0, 1.1, 1.2], [1.0, 1.1, 1.2]])
    assert afs_counts(curves, np.array([3.0, 2.0, 1.0]), np.arange(3), 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("longer_with_two", "winner"),
    # The shorter one gains (1.5 - 1) / 1 = 0.5. The longer one needs (p' - p) / p' > 0.5, so more than twice its speed.
    [(1.8, 0), (2.0, 0), (2.2, 1)],
)
def test_afs_compares_the_longer_jobs_gain_by_what_it_would_have(longer_with_two, winner):
    curves = np.array([[1.0, 1.5], [1.0, longer_with_two]])
    counts = afs_counts(curves, np.array([10.0, 100.0]), np.arange(2), 3).tolist()
    assert counts[winner] == 2
    assert sum(counts) == 3


def test_afs_leaves_gpus_idle_when_nobody_is_faster_with_more():
    curves = np.array([[1.0, 1.0, 0.9], [2.0, 3.0, 3.0]])
    assert afs_counts(curves, np.array([10.0, 10.0]), np.arange(2), 6).tolist() == [1, 2]


def test_afs_scans_in_the_given_order_where_the_relation_is_a_cycle():
    # Remaining times in order of length a < b < c; each beats the next one in a circle with these gains.
    curves = np.array([[1.0, 1.35], [1.0, 1.4], [1.0, 1.55]])
    work = np.array([10.0, 20.0, 30.0])

    def beats(i, j):  # i over j with a third GPU
        counts = afs_counts(curves[[min(i, j), max(i, j)]], work[[min(i, j), max(i, j)]], np.arange(2), 3)
        return counts[0 if i < j else 1] == 2

    assert [beats(0, 1), beats(1, 2), beats(2, 0)] == [True, True, True]
    assert {afs_counts(curves, work, np.array(o), 4).argmax() for o in itertools.permutations(range(3))} == {0, 1, 2}


def test_afs_is_blind_to_types_and_fills_the_emptiest_one():
    asked = problem([[[1.0, 2.0], [9.0, 18.0]], [[1.0, 1.0], [9.0, 9.0]]], [(0, 3), (1, 2)], age_s_J=[2.0, 1.0])
    # a takes two GPUs; both types are equally dear to it, and A is emptier although it is nine times as slow.
    assert chosen("afs", asked) == [("A", 2), ("B", 1)]


# -- SRSF ------------------------------------------------------------------------------------------------------------

LINEAR = np.array([[1.0, 2.0, 3.0, 4.0]] * 3)


def test_srsf_gives_the_requested_count_or_nothing_in_order_of_remaining_service():
    asked = problem(LINEAR[:, None], ONE_TYPE, remaining_J=[60.0, 10.0, 20.0], requested_J=[2, 3, 2])
    # Services on linear curves are the work left: b (3 GPUs), then c (2 do not fit), then a (neither).
    assert chosen("srsf", asked) == [("", 0), ("A", 3), ("", 0)]
    asked = problem(LINEAR[:, None], ONE_TYPE, remaining_J=[60.0, 30.0, 20.0], requested_J=[1, 3, 2])
    assert chosen("srsf", asked) == [("A", 1), ("", 0), ("A", 2)]


def test_srsf_preempts_a_longer_job():
    asked = problem(
        LINEAR[:2, None],
        ONE_TYPE,
        remaining_J=[60.0, 10.0],
        requested_J=4,
        current=(((0, 4),), ()),
    )
    assert chosen("srsf", asked) == [("", 0), ("A", 4)]


def test_srsf_e_gives_leftover_gpus_to_the_largest_absolute_gain():
    curves = np.array([[1.0, 1.5, 1.6, 1.7], [10.0, 10.6, 11.2, 11.25], [1.0, 1.0, 1.0, 1.0]])
    counts = srsf_counts(curves, np.array([1, 1, 0]), np.arange(3), 4, "elastic")
    assert counts.tolist() == [1, 3, 0]  # 0.6 against 0.5, twice
    counts = srsf_counts(curves, np.array([1, 1, 0]), np.arange(3), 5, "elastic")
    assert counts.tolist() == [2, 3, 0]


def test_srsf_max_lets_each_job_take_all_it_can():
    curves, one = np.array([[1.0, 2.0, 3.0, 0.0], LINEAR[0], LINEAR[0]]), np.ones(3, dtype=np.int64)
    counts = srsf_counts(curves, one, np.arange(3), 6, "max")
    assert counts.tolist() == [3, 3, 0]


# -- Gavel -----------------------------------------------------------------------------------------------------------

PUBLISHED = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])


def test_gavel_las_reaches_the_objective_of_the_published_allocation():
    one = np.ones(3, dtype=np.int64)
    share = solve_las(PUBLISHED, one, np.array([1, 1]), np.ones(3), 10.0)
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert (share.sum(axis=0) <= 1 + 1e-9).all()

    def objective(x):
        return float(((PUBLISHED * x).sum(axis=1) / PUBLISHED.mean(axis=1)).min())

    published = np.array([[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]])  # rounded to two digits
    assert objective(share) == pytest.approx(objective(published), abs=0.01)
    assert objective(share) >= objective(published) - 1e-9


def test_gavel_las_favours_by_weight():
    speed, one = np.array([[1.0], [1.0]]), np.ones(2, dtype=np.int64)
    assert solve_las(speed, one, np.array([1]), np.array([3.0, 1.0]), 10.0).ravel() == pytest.approx([0.75, 0.25])


def test_gavel_minjct_shares_by_the_square_root_of_the_work():
    # min 1/x + 4/(1-x): x = 1/3
    speed, one = np.array([[1.0], [1.0]]), np.ones(2, dtype=np.int64)
    share = solve_jct(speed, one, np.array([1]), np.array([1.0, 4.0]), 10.0)
    assert share.ravel() == pytest.approx([1 / 3, 2 / 3], abs=0.02)


def test_gavel_serves_who_got_least_of_its_share_and_lets_a_young_round_run():
    table = [[[1.0]], [[1.0]]]
    shares = {"age_s_J": 1000.0, "received_s_JH": [[900.0], [100.0]], "current": (((0, 1),), ())}
    assert chosen("gavel", problem(table, [(0, 1)], **shares)) == [("", 0), ("A", 1)]
    young = problem(table, [(0, 1)], since_rescale_s_J=[100.0, np.inf], **shares)
    assert chosen("gavel", young) == [("A", 1), ("", 0)]
    assert chosen(Gavel(interval_s=50.0), young) == [("", 0), ("A", 1)]


def test_gavel_gives_leftover_gpus_to_jobs_without_a_share():
    table = [[[1.0], [9.0]], [[1.0], [9.0]]]
    assert sorted(chosen("gavel", problem(table, [(0, 1), (1, 1)]))) == [("A", 1), ("B", 1)]


# -- Sia -------------------------------------------------------------------------------------------------------------


def test_sia_finds_the_published_assignment():
    goodput = np.array([[1.0, 1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 1.0, 2.0, 3.0]])
    need = np.array([[1, 0], [2, 0], [0, 1], [0, 2], [0, 4]])
    weight = sia_weights(goodput, np.ones_like(goodput), -0.5)
    assert weight[0].tolist() == pytest.approx([1.0, 1.0, 2**-0.5, 3**-0.5, 0.5])
    assert solve_assignment(weight, need, np.array([2, 4]), 1.1, 10.0).tolist() == [4, 1]


def test_sia_leaves_a_job_out_when_it_has_to_and_not_otherwise():
    weight = np.array([[1.0], [1.0]])
    assert sorted(solve_assignment(weight, np.array([[1]]), np.array([1]), 1.1, 10.0).tolist()) == [-1, 0]
    assert solve_assignment(weight, np.array([[1]]), np.array([1]), 0.9, 10.0).tolist() == [-1, -1]


def test_sia_configurations_are_powers_of_two_in_a_host_then_whole_hosts():
    asked = problem(np.ones((1, 1, 24)), [(0, 8), (0, 8), (0, 8)])
    assert np.flatnonzero(sia_configurations_HW(asked, 24)[0]).tolist() == [0, 1, 3, 7, 15, 23]


def test_sia_restart_factor():
    asked = problem(
        np.ones((4, 1, 1)),
        [(0, 4)],
        current=(((0, 1),), ((0, 1),), (), ((0, 1),)),
        age_s_J=[1000.0, 50.0, 1000.0, 1000.0],
        rescales_J=[3, 0, 3, 20],
        rescale_up_s_J=100.0,
    )
    # (T - N S) / (T + S) of running jobs; 1 while younger than S; floored at 0.
    assert restart_factor_J(asked).tolist() == pytest.approx([700 / 1100, 1.0, 1.0, 0.0])


def test_sia_moves_a_job_only_where_it_pays_for_the_restart():
    table = [[[1.0], [1.1]]]
    here = {"current": (((0, 1),),), "age_s_J": 1000.0, "rescale_up_s_J": 100.0}
    assert chosen("sia", problem(table, [(0, 1), (1, 1)], **here)) == [("A", 1)]  # 1.1 x 1000/1100 = 1
    assert chosen("sia", problem([[[1.0], [1.2]]], [(0, 1), (1, 1)], **here)) == [("B", 1)]


# -- Pollux, Optimus, FIFO, most throughput ----------------------------------------------------------------------------


def test_pollux_counts_have_the_least_sum_of_all():
    rng = np.random.default_rng(1)
    for _ in range(20):
        cost = rng.uniform(0.1, 1.0, (3, 3))
        cost[rng.random((3, 3)) < 0.2] = np.inf
        counts = least_cost_counts(cost, np.full(3, 5.0), 4)
        table = np.c_[np.full(3, 5.0), cost]
        best = min(
            sum(table[j, w] for j, w in enumerate(ws)) for ws in itertools.product(range(4), repeat=3) if sum(ws) <= 4
        )
        assert counts.sum() <= 4
        assert table[np.arange(3), counts].sum() == pytest.approx(best)


def test_pollux_gives_more_to_the_job_that_scales():
    # Speedups over the fair share of two: with p = -1 the second GPU of b is worth 1/0.95 - 1 only.
    table = [[[1.0, 2.0, 3.0, 4.0]], [[1.0, 1.05, 1.05, 1.05]]]
    assert chosen("pollux", problem(table, ONE_TYPE)) == [("A", 3), ("A", 1)]


def test_optimus_gives_each_gpu_where_the_remaining_time_falls_most():
    curves = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 1.5, 1.8, 2.0]])
    # From one GPU each: a saves 100 - 50 = 50, b 300 - 200 = 100; then b saves 200 - 166.7 = 33 and a 50.
    assert optimus_counts(curves, np.array([100.0, 300.0]), np.arange(2), 3).tolist() == [1, 2]
    assert optimus_counts(curves, np.array([100.0, 300.0]), np.arange(2), 4).tolist() == [2, 2]


def test_fifo_holds_back_those_behind_a_job_that_does_not_fit_and_never_moves_what_runs():
    table = [[[1.0] * 4]] * 3
    asked = problem(table, ONE_TYPE, requested_J=[2, 3, 1], age_s_J=[30.0, 20.0, 10.0])
    assert chosen("fifo", asked) == [("A", 2), ("", 0), ("", 0)]
    assert chosen("fifo", problem(table, ONE_TYPE, requested_J=[2, 2, 1], age_s_J=[30.0, 20.0, 10.0])) == [
        ("A", 2),
        ("A", 2),
        ("", 0),
    ]
    running = problem(
        table, ONE_TYPE, requested_J=[4, 1, 1], age_s_J=[30.0, 20.0, 10.0], current=((), ((0, 1),), ((0, 1),))
    )
    assert decided("fifo", running)[1:] == (((0, 1),), ((0, 1),))


def test_fifo_puts_a_job_where_it_is_fastest():
    assert chosen("fifo", problem([[[1.0], [2.0]]], [(0, 1), (1, 1)])) == [("B", 1)]


def test_most_throughput_counts_each_job_in_its_own_fastest_gpu():
    # On B a is ten times as fast in its own unit but only equal to itself; b doubles there.
    table = [[[50.0], [100.0]], [[0.9], [1.0]]]
    assert chosen("max-throughput", problem(table, [(0, 1), (1, 1)])) == [("B", 1), ("A", 1)]
    scales = [[[1.0, 2.0, 3.0, 4.0]], [[1.0, 1.1, 1.2, 1.3]]]
    assert chosen("max-throughput", problem(scales, ONE_TYPE)) == [("A", 3), ("A", 1)]


def test_most_throughput_lets_a_job_starve():
    table = [[[1.0, 2.1]], [[1.0, 1.0]]]
    assert chosen("max-throughput", problem(table, [(0, 2)])) == [("A", 2), ("", 0)]
