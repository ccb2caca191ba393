"""Noticing that a job is no longer what its row says: other data, another phase, a neighbour on its host.

Ageing already lets old cells fade (`rows.AGEING_PER_HOUR`); this says when what is measured now contradicts the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor.api import Observations, Predictor
from heet_elastic.predictor.rows import cell_std, usable

SURPRISING = 3.0
"""Standard deviations from the expectation that are called drift."""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a fresh cell is from what the row expects: `deviations` in standard deviations, signed."""

    configuration: Configuration
    expected: float
    measured: float
    deviations: float

    @property
    def noticed(self) -> bool:
        """Whether it is more than chance."""
        return abs(self.deviations) > SURPRISING

    def __str__(self) -> str:
        change = self.measured / self.expected - 1.0
        return f"{self.configuration} runs {abs(change):.0%} {'faster' if change > 0 else 'slower'} than its row says"


def drift(predictor: Predictor, job: Observations, fresh: Sequence[tuple[Configuration, Cell]]) -> tuple[Drift, ...]:
    """Compare fresh cells with what `job`'s row (measured and predicted) says. Unusable cells are left out."""
    cells = [(c, cell) for c, cell in fresh if usable(cell)]
    if not cells:
        return ()
    completion = predictor.predict([job], [c for c, _ in cells])
    found = []
    for k, (configuration, cell) in enumerate(cells):
        expected = float(completion.throughput_JK[0, k])
        std = math.hypot(float(completion.log_std_JK[0, k]), cell_std(cell))
        apart = math.log(cell.throughput) - math.log(expected)
        found.append(Drift(configuration, expected, cell.throughput, apart / std))
    return tuple(found)


def forget(job: Observations, found: Sequence[Drift], keep: Sequence[tuple[Configuration, Cell]]) -> Observations:
    """The job after a drift that was noticed: the fresh cells alone, since the old ones are another job's."""
    return replace(job, cells=tuple(keep)) if any(d.noticed for d in found) else job
