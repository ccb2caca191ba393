"""Properties of predictions over arbitrary rows: the contract's promises, and what must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Observations, Source
from heet_elastic.predictor.designs import standard
from heet_elastic.predictor.finish import SUPERLINEAR_CAP
from tests.unit.predictor_worlds import CONFIGURATIONS, profiles

MODEL = {name: fit(profiles(), np.random.default_rng(0)) for name, fit in METHODS.items()}
HARD = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

configurations = st.builds(
    lambda h, w, s: Configuration(h, w, min(w, s)),
    st.sampled_from(["slow", "mid", "fast", "NVIDIA T4", "nobody knows"]),
    st.integers(1, 64),
    st.integers(1, 8),
)
speeds = st.one_of(st.floats(1e-9, 1e12), st.sampled_from([0.0, -1.0, float("nan"), float("inf"), 5e-324, 1.7e308]))
cells = st.builds(
    Cell,
    throughput=speeds,
    seconds=st.floats(0, 1e6),
    count=st.integers(0, 10**6),
    spread=st.one_of(st.floats(0, 10), st.just(float("nan"))),
    age_s=st.one_of(st.floats(0, 1e9), st.just(float("inf"))),
)
rows = st.lists(st.tuples(configurations, cells), max_size=9).map(
    lambda found: Observations("job", cells=tuple(found), work_unit="samples")
)


@pytest.mark.parametrize("method", list(METHODS))
@HARD
@given(jobs=st.lists(rows, min_size=1, max_size=4), wanted=st.lists(configurations, min_size=1, max_size=12))
def test_predictions_of_any_row_are_positive_finite_capped_and_say_how_sure(method, jobs, wanted):
    one = [Configuration(c.host_type, 1) for c in wanted]
    columns = list(dict.fromkeys([*wanted, *one]))
    found = MODEL[method].predict(jobs, columns)
    assert np.isfinite(found.throughput_JK).all()
    assert (found.throughput_JK > 0).all()
    assert np.isfinite(found.log_std_JK).all()
    assert (found.log_std_JK >= 0).all()
    efficiency = found.efficiency_JK
    free = found.source_JK != Source.MEASURED
    assert (efficiency[free] <= SUPERLINEAR_CAP * (1 + 1e-9)).all()


@HARD
@given(row=rows, order=st.randoms(use_true_random=False))
def test_the_order_of_cells_does_not_matter(row, order):
    distinct = tuple({c: (c, cell) for c, cell in row.cells}.values())
    shuffled = list(distinct)
    order.shuffle(shuffled)
    both = [replace(row, cells=distinct), replace(row, cells=tuple(shuffled))]
    found = MODEL["combined"].predict(both, CONFIGURATIONS)
    np.testing.assert_allclose(found.throughput_JK[0], found.throughput_JK[1], rtol=1e-6)


@HARD
@given(
    possible=st.lists(st.booleans(), min_size=len(CONFIGURATIONS), max_size=len(CONFIGURATIONS)),
    probes=st.integers(1, 30),
)
def test_a_standard_design_is_possible_without_repeats_and_its_beginning_is_the_smaller_design(possible, probes):
    mask = np.array(possible)
    chosen = standard(CONFIGURATIONS, mask, probes)
    assert len(chosen) == min(probes, int(mask.sum()))
    assert len(set(chosen)) == len(chosen)
    assert mask[chosen].all()
    assert standard(CONFIGURATIONS, mask, probes + 3)[: len(chosen)] == chosen
