"""Designs of cells to measure, the probing policy of a live job, and drift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heet_elastic.model import Configuration
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Covarying
from heet_elastic.predictor.designs import gains, standard
from heet_elastic.predictor.drift import drift, forget
from heet_elastic.predictor.probing import ProbeJob, ProbeSettings, expected_gains, next_probe
from tests.unit.predictor_worlds import CONFIGURATIONS, cell, job, profiles, rng, row, true_speed

EVERYWHERE = np.ones(len(CONFIGURATIONS), dtype=bool)
LIVE = ProbeJob(Configuration("mid", 2), rescale_up_s=9.0, rescale_down_s=2.0, remaining_s=None, ran_s=600.0)


def fitted(history):
    predictor = METHODS["combined"](history, rng())
    assert isinstance(predictor, Covarying)
    return predictor


def ask(measured, live=LIVE, possible=EVERYWHERE, settings=ProbeSettings()):  # noqa: B008
    """On a new cluster: nobody knows how its host types compare."""
    predictor = fitted([])
    new = [job(row(2.0, 0.5, measured))]
    return next_probe(
        predictor.predict(new, CONFIGURATIONS), predictor.covariance(new, CONFIGURATIONS)[0], possible, live, settings
    )


def test_the_standard_design_takes_one_worker_then_most_workers_over_most_hosts_of_each_type():
    chosen = [CONFIGURATIONS[k] for k in standard(CONFIGURATIONS, EVERYWHERE, 6)]
    assert chosen == [Configuration(h, 1) for h in ("fast", "mid", "slow")] + [
        Configuration(h, 8, 2) for h in ("fast", "mid", "slow")
    ]


def test_the_standard_design_has_as_many_cells_as_asked_for_and_only_possible_ones():
    possible = np.array([c.host_type == "mid" for c in CONFIGURATIONS])
    for probes in range(1, 7):
        chosen = standard(CONFIGURATIONS, possible, probes)
        assert len(chosen) == len(set(chosen)) == probes
        assert possible[chosen].all()
    assert len(standard(CONFIGURATIONS, possible, 99)) == possible.sum()


def test_measuring_a_cell_that_others_hang_on_gains_most():
    covariance = np.diag([1.0, 1.0, 1.0, 0.01])
    covariance[0, 1] = covariance[1, 0] = 0.9
    found = gains(covariance[None], [Configuration(h, 2) for h in "abcd"])[0]
    assert found[0] == pytest.approx(found[1])
    assert found[0] > found[2] > found[3]


def test_an_unsure_job_measures_a_cell_that_it_does_not_know_and_says_which():
    answer = ask([Configuration("mid", 1), Configuration("mid", 2)])
    assert answer.column is not None
    where = CONFIGURATIONS[answer.column]
    assert where.host_type != "mid" or where.workers > 2
    assert answer.gain_s > answer.cost_s > 0
    assert answer.reason.startswith(f"measuring {where.workers} worker")
    assert where.host_type in answer.reason
    assert "uncertainty" in answer.reason


def test_a_job_that_is_sure_enough_does_not_probe():
    answer = ask(CONFIGURATIONS)
    assert answer.column is None
    assert "no probe" in answer.reason


def test_a_job_that_ends_soon_does_not_pay_for_a_probe():
    answer = ask([Configuration("mid", 2)], replace(LIVE, remaining_s=20.0))
    assert answer.column is None
    assert "would gain" in answer.reason


def test_a_job_whose_rescales_are_dear_probes_less():
    measured = [Configuration("mid", 1), Configuration("mid", 2)]
    cheap, dear = ask(measured), ask(measured, replace(LIVE, rescale_up_s=900.0, rescale_down_s=900.0))
    assert cheap.column is not None
    assert dear.column is None


def test_the_budget_and_the_number_of_probes_are_kept():
    measured = [Configuration("mid", 1), Configuration("mid", 2)]
    assert "at most 6" in ask(measured, replace(LIVE, probes=6)).reason
    assert "budget" in ask(measured, replace(LIVE, spent_s=121.0)).reason
    assert ask(measured, replace(LIVE, spent_s=121.0, ran_s=86400.0)).column is not None


def test_only_what_is_free_is_measured_and_nothing_where_nothing_is_free():
    measured = [Configuration("mid", 1), Configuration("mid", 2)]
    only = np.array([c == Configuration("fast", 8) for c in CONFIGURATIONS])
    answer = ask(measured, possible=only)
    assert answer.column in (None, CONFIGURATIONS.index(Configuration("fast", 8)))
    assert "nothing is free" in ask(measured, possible=~EVERYWHERE).reason


def test_knowing_more_is_never_expected_to_hurt():
    predictor = fitted([])
    new = [job(row(2.0, 0.5, [Configuration("mid", 2)]))]
    found = predictor.predict(new, CONFIGURATIONS)
    gain = expected_gains(found, predictor.covariance(new, CONFIGURATIONS)[0], EVERYWHERE, 0.5)
    assert (gain >= 0).all()
    assert gain.max() > 0


def test_a_cell_that_contradicts_the_row_is_noticed_and_one_that_agrees_is_not():
    predictor = fitted(profiles())
    known = job(row(2.0, 0.5, [Configuration(h, w) for h in ("slow", "mid", "fast") for w in (1, 8)]))
    where = Configuration("mid", 4)
    truth = true_speed(2.0, 0.5, where)
    same, slower = (drift(predictor, known, [(where, cell(truth * f))]) for f in (1.0, 0.5))
    assert not same[0].noticed
    assert slower[0].noticed
    assert slower[0].deviations < 0
    assert "slower than its row says" in str(slower[0])
    fresh = [(where, cell(truth * 0.5))]
    assert forget(known, same, fresh) is known
    assert forget(known, slower, fresh).cells == tuple(fresh)
    assert drift(predictor, known, [(where, cell(0.0))]) == ()
