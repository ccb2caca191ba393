"""From samples to cells and positions: hand-computed answers, and agents that come and go."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from heet_elastic.model import CellCounters, Configuration, RoundProgress, SampleRecord
from heet_elastic.predictor.samples import fold, job_progress, merge, merge_rounds, weighted_median, work, work_done

FOUR = Configuration("A10", 4, 2)
TWO = Configuration("A10", 2, 1)


def counters(configuration=FOUR, local_workers=2, steps=100, step_s=0.5, samples_per_step=32.0, windows=10):
    return CellCounters(
        configuration=configuration,
        seconds=steps * step_s,
        steps=steps,
        local_samples=steps * local_workers * samples_per_step,
        local_tokens=0.0,
        step_s=step_s,
        step_spread_s=step_s * 0.02,
        windows=windows,
        local_workers=local_workers,
    )


def record(agent="a", cells=(), rounds=()):
    return SampleRecord(agent=agent, round=1, cells=tuple(cells), rounds=tuple(rounds))


def test_steps_count_once_and_samples_add_up_over_agents():
    records = [record("a", [counters(local_workers=1)]), record("b", [counters(local_workers=3)])]
    assert math.isclose(merge(records, "steps")[FOUR].throughput, 2.0)
    assert math.isclose(merge(records, "samples")[FOUR].throughput, 2.0 * 4 * 32)
    assert math.isclose(merge(records, "steps")[FOUR].seconds, 50.0)
    assert merge(records, "steps")[FOUR].count == 10
    assert math.isclose(merge(records, "steps")[FOUR].spread, 0.02)


def test_agents_that_shared_a_configuration_in_different_rounds_do_not_inflate_it():
    # a+b made 100 steps, then a+c another 100: three agents, but always four workers.
    records = [
        record("a", [counters(steps=200)]),
        record("b", [counters(steps=100)]),
        record("c", [counters(steps=100)]),
    ]
    assert math.isclose(merge(records, "samples")[FOUR].throughput, 2.0 * 4 * 32)


def test_a_worker_split_that_changed_within_one_configuration_is_weighed_by_worker_steps():
    records = [record("a", [counters(local_workers=1), counters(local_workers=2)])]
    assert math.isclose(merge(records, "samples")[FOUR].throughput, 2.0 * 4 * 32)


def test_a_configuration_without_a_window_or_without_samples_has_no_cell():
    assert merge([record(cells=[counters(windows=0)])], "steps") == {}
    no_samples = replace(counters(), local_samples=0.0)
    assert merge([record(cells=[no_samples])], "samples") == {}
    assert math.isclose(merge([record(cells=[no_samples])], "steps")[FOUR].throughput, 2.0)
    assert merge([record(cells=[counters(step_s=5e-324)])], "steps") == {}


def test_one_agent_with_an_odd_clock_does_not_move_the_cell():
    records = [record("a", [counters()]), record("b", [counters()]), record("c", [counters(step_s=50.0)])]
    assert math.isclose(merge(records, "steps")[FOUR].throughput, 2.0)


def test_a_first_round_is_certain_and_loses_nothing():
    progress = fold([RoundProgress(1, steps=50, samples=1600)])
    assert (progress.steps, progress.samples, progress.lost_steps, progress.certain) == (50, 1600, 0, True)
    assert fold([]).certain is False


def test_steps_after_the_mark_are_lost_at_a_restart_and_not_counted_twice():
    first = RoundProgress(1, steps=50, samples=500, marks=2, marked_steps=40, marked_samples=400)
    second = RoundProgress(2, steps=5, samples=50, loads=1)
    progress = fold([first, second])
    assert (progress.steps, progress.samples) == (45, 450)
    assert (progress.highest_steps, progress.lost_steps, progress.certain) == (50, 10, True)


def test_a_step_count_in_the_loaded_optimizer_outranks_the_mark():
    first = RoundProgress(1, steps=50, samples=500, marks=1, marked_steps=45, marked_samples=450)
    second = RoundProgress(2, steps=10, samples=100, loads=1, loaded_steps=40.0)
    progress = fold([first, second])
    assert (progress.steps, progress.samples, progress.marked_steps) == (50, 500, 40)
    assert progress.certain


def test_restarts_without_any_sign_of_a_checkpoint_are_counted_and_called_uncertain():
    progress = fold([RoundProgress(1, steps=50, samples=500), RoundProgress(2, steps=10, samples=100)])
    assert (progress.steps, progress.samples, progress.lost_steps, progress.certain) == (60, 600, 0, False)


def test_a_restart_that_only_may_have_loaded_the_mark_is_uncertain():
    marked = RoundProgress(1, steps=50, samples=500, marks=1, marked_steps=40, marked_samples=400)
    assert fold([marked, RoundProgress(2, steps=5)]).certain is False
    assert fold([marked, RoundProgress(2, steps=5)]).steps == 45
    assert fold([marked, RoundProgress(2, steps=5, weight_loads=1)]).certain


def test_a_mark_survives_a_round_that_made_none_and_a_round_without_steps_changes_nothing():
    marked = RoundProgress(1, steps=50, marks=1, marked_steps=40)
    progress = fold(
        [marked, RoundProgress(2, loads=1), RoundProgress(3, steps=2, loads=1), RoundProgress(4, steps=3, loads=1)]
    )
    assert (progress.steps, progress.lost_steps) == (43, 12)


def test_a_first_round_that_resumes_an_older_run_begins_where_its_optimizer_says():
    assert fold([RoundProgress(1, steps=10, loads=1, loaded_steps=900.0)]).steps == 910
    assert fold([RoundProgress(1, steps=10, loads=1)]).certain is False
    assert fold([RoundProgress(1, steps=10, weight_loads=1)]).certain  # fine-tuning


def test_a_job_goes_on_where_an_agent_that_left_has_stopped():
    old = record("a", rounds=[RoundProgress(1, steps=100, samples=1000, marks=1, marked_steps=90, marked_samples=900)])
    new = record("b", rounds=[RoundProgress(2, steps=20, samples=400, loads=1)])
    progress = job_progress([new, old])
    assert (progress.steps, progress.samples, progress.lost_steps) == (110, 1300, 10)


def test_rounds_seen_by_several_agents_add_samples_and_share_steps():
    a = record("a", rounds=[RoundProgress(1, steps=10, samples=100)])
    b = record("b", rounds=[RoundProgress(1, steps=9, samples=300, done=3.0, total=9.0)])
    assert merge_rounds([a, b]) == (RoundProgress(1, steps=10, samples=400, done=3.0, total=9.0),)


def test_what_the_script_tells_outranks_what_was_counted():
    told = [record(rounds=[RoundProgress(1, steps=500, samples=5000, done=3.0, total=12.0)])]
    assert work_done(told, "epochs", 12.0) == (3.0, True)
    assert work_done(told, "steps", 2000.0) == (500.0, True)
    assert work(told, "steps").total == 2000.0
    assert work_done([record(rounds=[RoundProgress(1, steps=5, done=70.0)])], "steps", 100.0) == (70.0, True)
    assert work_done([record(rounds=[RoundProgress(1, steps=5)])], "epochs", 3.0) == (0.0, False)
    assert work_done([], "steps", 3.0) == (0.0, False)


def test_an_epochs_job_is_measured_in_epochs_once_the_script_told_how_far_it_is():
    rounds = [RoundProgress(1, steps=500, done=5.0, total=90.0)]
    told = [record(cells=[counters(TWO)], rounds=rounds)]
    assert math.isclose(merge(told, "epochs", 90.0)[TWO].throughput, 2.0 / 100)
    assert math.isclose(merge([record(cells=[counters(TWO)])], "epochs")[TWO].throughput, 2.0)


def test_weighted_median_is_a_value_that_holds_half_of_the_weight():
    assert weighted_median([(1.0, 1), (2.0, 1), (9.0, 1)]) == 2.0
    assert weighted_median([(1.0, 1), (2.0, 5), (9.0, 1)]) == 2.0
    assert weighted_median([]) == 0.0


counts = st.integers(min_value=0, max_value=1000)


@given(st.lists(st.tuples(counts, counts, st.booleans()), min_size=1, max_size=8))
def test_positions_never_exceed_the_steps_made_and_lost_steps_explain_the_difference(plan):
    rounds, made = [], 0
    for number, (steps, marked, loads) in enumerate(plan, 1):
        marked = min(steps, marked)
        rounds.append(RoundProgress(number, steps, 10 * steps, int(marked > 0), marked, 10 * marked, int(loads)))
        made += steps
    progress = fold(rounds)
    assert progress.steps + progress.lost_steps == made
    assert progress.marked_steps <= progress.steps <= progress.highest_steps <= made


@given(st.permutations(range(4)))
def test_the_order_of_records_does_not_matter(order):
    records = [
        record(
            str(i), [counters(local_workers=1, steps=50 + i, step_s=0.5 + i / 100)], [RoundProgress(i, steps=10 + i)]
        )
        for i in range(4)
    ]
    shuffled = [records[i] for i in order]
    assert merge(shuffled, "samples") == merge(records, "samples")
    assert job_progress(shuffled) == job_progress(records)
