"""Work, checkpoints, costs and waiting of one job, computed by hand."""

from __future__ import annotations

import math

from heet_elastic.model import Configuration
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.progress import Body

ONE = Configuration("T4", 1)
TWO = Configuration("T4", 2)


def body(work=100.0, checkpoint_interval_s=0.0):
    return Body(SimJob("j", "m", work, 1, 0.0, 1, 4), checkpoint_interval_s)


def start(b, now, gpus=1, rate=1.0, cost_s=0.0, efficiency=1.0):
    b.start(now, {"h": tuple(f"g{i}" for i in range(gpus))}, TWO if gpus == 2 else ONE, rate, efficiency, cost_s)


def test_a_job_works_at_its_rate_once_it_has_paid_for_its_start():
    b = body()
    start(b, 10.0, rate=2.0, cost_s=5.0)
    assert b.completion() == 65.0
    b.advance(25.0)
    assert (b.done, b.gpu_s, b.waited_s) == (20.0, 10.0, 10.0)
    assert b.completion() == 65.0


def test_a_rescale_loses_no_work_without_a_checkpoint_interval_and_is_charged():
    b = body()
    start(b, 0.0)
    b.stop(40.0)
    start(b, 40.0, gpus=2, rate=2.0, cost_s=9.0, efficiency=0.5)
    b.advance(59.0)
    assert (b.done, b.gpu_s, b.efficient_gpu_s, b.rescale_s, b.starts) == (60.0, 60.0, 50.0, 9.0, 2)


def test_a_restart_goes_on_from_the_last_checkpoint():
    b = body(checkpoint_interval_s=30.0)
    start(b, 0.0, cost_s=5.0)
    b.advance(20.0)
    b.advance(79.0)  # 74 s of work: checkpoints at 30 and 60
    assert b.saved == 60.0
    b.stop(79.0)
    assert (b.done, b.lost_s) == (60.0, 14.0)
    start(b, 79.0)
    b.advance(100.0)
    b.stop(100.0)  # 21 s since the restart: no checkpoint
    assert (b.done, b.lost_s) == (60.0, 35.0)


def test_a_change_that_is_cut_short_costs_only_what_passed_of_it():
    b = body()
    start(b, 0.0, cost_s=9.0)
    b.stop(4.0)
    assert (b.rescale_s, b.done) == (4.0, 0.0)


def test_waiting_counts_only_time_without_workers():
    b = body()
    start(b, 30.0)
    b.stop(50.0)
    assert b.completion() == math.inf
    start(b, 60.0)
    outcome = b.outcome(100.0, 80.0)
    assert (outcome.waited_s, outcome.longest_wait_s, outcome.rescales) == (40.0, 30.0, 1)


def test_a_job_that_never_started_waited_all_the_time():
    outcome = body().outcome(100.0, 80.0)
    assert (outcome.waited_s, outcome.longest_wait_s, outcome.start_s, outcome.rescales) == (80.0, 80.0, None, 0)
