"""What every method promises, whatever it is fitted to."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heet_elastic.model import Configuration, Profile
from heet_elastic.predictor import DEFAULT, METHODS
from heet_elastic.predictor.api import Covarying, Observations, Source
from heet_elastic.predictor.finish import SUPERLINEAR_CAP
from tests.unit.predictor_worlds import CONFIGURATIONS, cell, job, profiles, rng, row, true_speed

HISTORIES = {"no history": [], "one past job": profiles(1), "a history": profiles()}
FOUR = [Configuration("slow", 1), Configuration("mid", 1), Configuration("mid", 8), Configuration("fast", 8, 2)]


@pytest.fixture(params=list(METHODS))
def method(request):
    return request.param


@pytest.fixture(params=list(HISTORIES))
def predictor(request, method):
    return METHODS[method](HISTORIES[request.param], rng())


def test_the_default_is_a_method_and_methods_know_their_names(method):
    assert DEFAULT in METHODS
    assert METHODS[method]([], rng()).name == method


def test_predictions_are_positive_finite_and_measured_cells_as_measured(predictor):
    new = job(row(2.0, 0.5, FOUR))
    found = predictor.predict([new, job([])], CONFIGURATIONS)
    assert found.throughput_JK.shape == found.log_std_JK.shape == found.source_JK.shape == (2, len(CONFIGURATIONS))
    assert np.isfinite(found.throughput_JK).all()
    assert (found.throughput_JK > 0).all()
    assert np.isfinite(found.log_std_JK).all()
    assert (found.log_std_JK >= 0).all()
    for c in FOUR:
        k = CONFIGURATIONS.index(c)
        assert found.throughput_JK[0, k] == pytest.approx(true_speed(2.0, 0.5, c))
        assert found.source_JK[0, k] == Source.MEASURED
    assert (found.source_JK == Source.MEASURED).sum() == len(FOUR)


def test_no_prediction_is_above_the_stated_factor_times_w_times_one_worker(predictor):
    cells = [(c, cell(3.0 * c.workers**2)) for c in (Configuration("mid", 2), Configuration("mid", 4))]
    found = predictor.predict([job([*cells, (Configuration("mid", 1), cell(3.0))])], CONFIGURATIONS)
    for k, c in enumerate(CONFIGURATIONS):
        if found.source_JK[0, k] != Source.MEASURED:
            one = found.throughput_JK[0, CONFIGURATIONS.index(Configuration(c.host_type, 1))]
            assert found.throughput_JK[0, k] <= SUPERLINEAR_CAP * c.workers * one * (1 + 1e-9)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_cell_that_is_no_speed_is_as_good_as_none(predictor, bad):
    known = row(2.0, 0.5, FOUR)
    without = predictor.predict([job(known)], CONFIGURATIONS)
    with_bad = predictor.predict([job([*known, (Configuration("slow", 4), cell(bad))])], CONFIGURATIONS)
    np.testing.assert_allclose(with_bad.throughput_JK, without.throughput_JK, rtol=1e-9)
    np.testing.assert_array_equal(with_bad.source_JK, without.source_JK)


def test_host_types_that_nobody_has_seen_get_a_prior_that_says_so(predictor):
    strange = [Configuration("never seen", w) for w in (1, 2, 16)]
    found = predictor.predict([job(row(2.0, 0.5, FOUR))], strange)
    assert (found.source_JK == Source.PRIOR).all()
    assert (found.log_std_JK > 0.2).all()


def test_cells_of_a_host_type_that_is_gone_meanwhile_still_count(predictor):
    gone = (Configuration("gone", 1), cell(123.0))
    found = predictor.predict([job([gone])], CONFIGURATIONS)
    assert np.isfinite(found.throughput_JK).all()


def test_a_row_does_not_depend_on_the_rows_beside_it(predictor):
    some = [job(row(w, d, FOUR[: 1 + i % 4])) for i, (w, d) in enumerate([(1.0, 0.1), (5.0, 9.0), (0.2, 0.2)] * 30)]
    together = predictor.predict(some, CONFIGURATIONS)
    for j in (0, 1, 2, 3, 89):
        alone = predictor.predict([some[j]], CONFIGURATIONS)
        np.testing.assert_allclose(together.throughput_JK[j], alone.throughput_JK[0], rtol=1e-6)
        np.testing.assert_allclose(together.log_std_JK[j], alone.log_std_JK[0], rtol=1e-5, atol=1e-8)


def test_the_same_history_and_seed_give_the_same_numbers(method):
    first, second = (
        METHODS[method](profiles(), rng()).predict([job(row(2.0, 0.5, FOUR))], CONFIGURATIONS) for _ in "ab"
    )
    np.testing.assert_array_equal(first.throughput_JK, second.throughput_JK)
    np.testing.assert_array_equal(first.log_std_JK, second.log_std_JK)


def test_nothing_to_predict_is_an_empty_table(predictor):
    assert predictor.predict([], CONFIGURATIONS).throughput_JK.shape == (0, len(CONFIGURATIONS))
    assert predictor.predict([job(row(2.0, 0.5, FOUR))], []).throughput_JK.shape == (1, 0)


def test_a_history_of_unusable_profiles_is_no_history(method):
    useless = [Profile("a", ()), Profile("b", ((CONFIGURATIONS[0], cell(math.nan)),))]
    empty = METHODS[method]([], rng()).predict([job(row(2.0, 0.5, FOUR))], CONFIGURATIONS)
    found = METHODS[method](useless, rng()).predict([job(row(2.0, 0.5, FOUR))], CONFIGURATIONS)
    np.testing.assert_allclose(found.throughput_JK, empty.throughput_JK)


def test_a_covariance_is_symmetric_and_agrees_with_the_uncertainty(predictor):
    if not isinstance(predictor, Covarying):
        pytest.skip("this method knows no covariance")
    new = [job(row(2.0, 0.5, FOUR)), job([])]
    cov_JKK = predictor.covariance(new, CONFIGURATIONS)
    found = predictor.predict(new, CONFIGURATIONS)
    np.testing.assert_allclose(cov_JKK, cov_JKK.transpose(0, 2, 1), atol=1e-9)
    assert (np.linalg.eigvalsh(cov_JKK) > -1e-7).all()
    for j in range(2):
        free = found.source_JK[j] != Source.MEASURED
        np.testing.assert_allclose(np.sqrt(np.diag(cov_JKK[j])[free]), found.log_std_JK[j][free], rtol=1e-3, atol=2e-5)


def test_observations_may_be_of_any_sequence_type(predictor):
    new = Observations("j", cells=row(2.0, 0.5, FOUR))
    found = predictor.predict((new,), list(CONFIGURATIONS))
    assert found.configurations == CONFIGURATIONS
