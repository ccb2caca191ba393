"""Lower bounds against the best of all schedules on cases small enough to try them all."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heet_elastic.simulator.bound import Bounds, Demand, alone, binned_lp, hull, lower_bound, pooled_srpt, srpt
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.truth import Row, Truth


def best_schedule(demands, gpus):
    """Smallest sum of completion times over all schedules that change only at whole seconds."""

    @cache
    def best(now, left):
        if all(work <= 1e-9 for work in left):
            return 0.0
        result = np.inf
        idle = ((None, 0, 0.0),)
        choices = [
            [*d.options, *idle] if work > 1e-9 and d.release_s <= now else idle
            for d, work in zip(demands, left, strict=True)
        ]
        for chosen in itertools.product(*choices):
            used = np.zeros(len(gpus))
            for h, w, _ in chosen:
                if h is not None:
                    used[h] += w
            if (used > gpus).any():
                continue
            running = any(h is not None for h, _, _ in chosen)
            waiting = any(d.release_s > now for d in demands)
            if not running and not waiting:
                continue
            rest = tuple(round(max(work - speed, 0.0), 6) for work, (_, _, speed) in zip(left, chosen, strict=True))
            # Every job with work left at the start of this second adds the part of it that it still needed.
            ends = sum(
                min(1.0, work / speed) if speed > 0 and work <= speed else 1.0
                for work, (_, _, speed), d in zip(left, chosen, demands, strict=True)
                if work > 1e-9 and d.release_s <= now
            )
            result = min(result, ends + best(now + 1, rest))
        return result

    return best(0, tuple(d.work for d in demands)) + sum(d.release_s for d in demands)


option = st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(1, 3)).map(lambda o: (o[0], o[1], float(o[2])))
demand = st.builds(
    Demand,
    release_s=st.integers(0, 2).map(float),
    work=st.integers(1, 4).map(float),
    options=st.lists(option, min_size=1, max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(demand, min_size=1, max_size=3))
def test_no_bound_is_above_the_best_schedule_of_a_small_case(demands):
    # A real schedule may also change within a second, so whole-second schedules are no better than the best.
    gpus = np.array([2.0, 2.0])
    best = best_schedule(tuple(demands), gpus)
    for bound in (alone(demands), pooled_srpt(demands, gpus), binned_lp(demands, gpus, 3, 8)):
        assert bound <= best + 1e-6 * best


def test_two_equal_jobs_on_one_gpu_are_bounded_by_what_one_of_them_must_wait():
    demands = [Demand(0.0, 10.0, ((0, 1, 1.0),)), Demand(0.0, 10.0, ((0, 1, 1.0),))]
    gpus = np.array([1.0])
    assert alone(demands) == 20.0
    assert pooled_srpt(demands, gpus) == pytest.approx(30.0)
    assert 20.0 < binned_lp(demands, gpus, 2, 40) <= 30.0


def test_srpt_by_hand():
    # 0-1 the long job, 1-2 the short one, 2-11 the long one again.
    assert srpt([(0.0, 10.0), (1.0, 1.0)]) == 13.0
    assert srpt([(5.0, 1.0), (0.0, 1.0)]) == 7.0
    assert srpt([]) == 0.0


def test_options_below_the_hull_are_left_out():
    options = [(0, 1, 1.0), (0, 2, 1.2), (0, 4, 3.0), (0, 8, 2.9), (1, 2, 5.0)]
    assert hull(options) == [(0, 1, 1.0), (0, 4, 3.0), (1, 2, 5.0)]


def test_the_bound_of_a_job_alone_is_its_time_at_the_best_configuration_with_its_start():
    truth = Truth([Row("m", "m", "u", {"A": {(1, 1): 1.0, (2, 1): 1.8}, "B": {(1, 1): 1.5}})])
    job = SimJob("j", "m", 90.0, 1, 100.0, 1, 2)
    bounds = lower_bound([job], truth, {"A": 4, "B": 4}, start_s=9.0)
    assert bounds.alone_s == pytest.approx(59.0)
    assert bounds.best_s == pytest.approx(59.0)


def test_the_largest_of_the_three_counts():
    assert Bounds(1.0, 3.0, 2.0).best_s == 3.0


def test_a_job_that_fits_on_no_single_type_keeps_every_bound_valid():
    truth = Truth([Row("m", "m", "u", {"A": {(1, 1): 1.0, (4, 2): 4.0}})])
    job = SimJob("j", "m", 40.0, 4, 0.0, 4, 4)
    assert lower_bound([job], truth, {"A": 2}).best_s == pytest.approx(10.0)
