"""Rounded questions: the same question is asked once, and the answer depends on the question alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from heet_elastic.coordinator.rounding import STEP, Rounded, rounded
from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Completion, Covarying, Observations, Predictor

COLUMNS = [Configuration("T4", w) for w in (1, 2, 4)] + [Configuration("V100", w) for w in (1, 2, 4)]


class Counting:
    """A predictor that counts how many rows it was asked for."""

    name = "counting"

    def __init__(self, of: Predictor) -> None:
        self.of, self.rows = of, 0

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        self.rows += len(jobs)
        return self.of.predict(jobs, configurations)


def fitted(method: str = "combined") -> Predictor:
    return METHODS[method]([], np.random.default_rng(0))


def row(throughput: float, count: int = 40, job: str = "a", name: str = "bert") -> Observations:
    return Observations(job, name, "f", ((COLUMNS[1], Cell(throughput, 5.0 * count, count, 0.02)),))


def test_a_measurement_that_hardly_moved_is_not_asked_about_again() -> None:
    counting = Counting(fitted())
    asked = Rounded(counting)
    base = float(np.exp(STEP * 400))  # the middle of a step
    first = asked.predict([row(base)], COLUMNS)
    again = asked.predict([row(base * 1.003, count=60)], COLUMNS)
    assert counting.rows == 1
    assert again.throughput_JK[0, 1] == base * 1.003  # measured cells as measured
    np.testing.assert_array_equal(again.throughput_JK[0, 2:], first.throughput_JK[0, 2:])
    asked.predict([row(base * 1.05)], COLUMNS)
    asked.predict([row(base, count=640)], COLUMNS)
    assert counting.rows == 3


def test_jobs_of_one_name_without_measurements_are_one_question() -> None:
    counting = Counting(fitted())
    asked = Rounded(counting)
    found = asked.predict([Observations(j, "bert", "f") for j in "abc"] + [Observations("d", "vgg", "f")], COLUMNS)
    assert counting.rows == 2
    assert found.throughput_JK.shape == (4, len(COLUMNS))
    np.testing.assert_array_equal(found.throughput_JK[0], found.throughput_JK[2])


def test_the_answer_does_not_depend_on_what_was_asked_before() -> None:
    busy, fresh = Rounded(fitted()), Rounded(fitted())
    for throughput in (90.0, 100.0, 101.0, 140.0):
        busy.predict([row(throughput)], COLUMNS)
    for throughput in (100.2, 139.0):
        one, two = busy.predict([row(throughput)], COLUMNS), fresh.predict([row(throughput)], COLUMNS)
        np.testing.assert_allclose(one.throughput_JK, two.throughput_JK, rtol=1e-9)
        np.testing.assert_allclose(one.log_std_JK, two.log_std_JK, rtol=1e-9)


def test_a_question_about_some_columns_is_part_of_one_about_all() -> None:
    counting = Counting(fitted())
    asked = Rounded(counting)
    whole = asked.predict([row(100.0)], COLUMNS)
    part = asked.predict([row(100.0)], [COLUMNS[4], COLUMNS[1]])
    assert counting.rows == 1
    np.testing.assert_array_equal(part.throughput_JK, whole.throughput_JK[:, [4, 1]])
    np.testing.assert_array_equal(part.source_JK, whole.source_JK[:, [4, 1]])
    elsewhere = asked.predict([row(100.0)], [Configuration("T4", 4, 3)])
    assert elsewhere.throughput_JK.shape == (1, 1)
    again = asked.predict([row(100.0)], COLUMNS)
    assert counting.rows == 2  # that question did not cost the answers to the usual one
    np.testing.assert_array_equal(again.throughput_JK, whole.throughput_JK)


def test_wider_columns_replace_the_answers() -> None:
    asked = Rounded(fitted())
    asked.predict([row(100.0)], COLUMNS[:3])
    wide = asked.predict([row(100.0)], COLUMNS)
    assert wide.configurations == tuple(COLUMNS)
    assert wide.throughput_JK.shape == (1, len(COLUMNS))


@pytest.mark.parametrize("throughput", [1e-12, 0.37, 1.0, 12345.678])
def test_rounding_is_within_half_a_step(throughput: float) -> None:
    cell = rounded(Cell(throughput, 10.0, 37, 0.0345))
    assert abs(np.log(cell.throughput / throughput)) <= STEP / 2 + 1e-12
    assert (cell.count, cell.spread) == (32, 0.03)


def test_what_else_the_method_can_do_is_kept() -> None:
    assert isinstance(Rounded(fitted("combined")), Covarying)
    assert not isinstance(Rounded(fitted("nearest") if "nearest" in METHODS else Counting(fitted())), Covarying)
    assert Rounded(fitted()).name == "combined"
