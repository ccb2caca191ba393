"""A predictor that is asked the same question once: measurements are rounded first, and answers are remembered.

Agents report every few seconds, and what they measured of a configuration hardly changes: completing the row anew each
time would cost most of a coordinator's time and say nothing new. So throughputs are rounded to 1 % (repeated
measurements differ by 1-5 %), their spread likewise and their number of windows to a power of two. Jobs of one name of
which nothing is measured yet are one question as well. The answer depends on the question alone, never on what was
asked before; measured cells are given back as measured.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heet_elastic.model import Cell, Configuration
from heet_elastic.predictor.api import Completion, FloatArray, Observations, Predictor, Source

STEP = 0.01
"""Throughputs are rounded to multiples of this in logarithms."""
MOST_ANSWERS = 4096
"""Rows that are remembered; the one used longest ago goes first."""

_Answer = tuple[FloatArray, FloatArray, NDArray[np.int8]]


def rounded(cell: Cell) -> Cell:
    """The cell as a predictor sees it. Cells without a usable throughput stay as they are."""
    if not 0 < cell.throughput < math.inf:
        return cell
    throughput = math.exp(STEP * round(math.log(cell.throughput) / STEP))
    count = 1 << max(cell.count, 1).bit_length() - 1
    spread = round(cell.spread, 2) if math.isfinite(cell.spread) else cell.spread
    return Cell(throughput, float(count), count, spread, cell.age_s)


@dataclass(frozen=True, eq=False)
class Rounded:
    """`of`, asked about rounded measurements. Its memory is no part of its value: it only saves time."""

    of: Predictor
    _answers: OrderedDict[Hashable, _Answer] = field(default_factory=OrderedDict, repr=False)
    _columns: dict[Configuration, int] = field(default_factory=dict, repr=False)
    _last: list[tuple[Configuration, ...]] = field(default_factory=list, repr=False)

    @property
    def name(self) -> str:
        """The method's key in METHODS."""
        return self.of.name

    def __getattr__(self, name: str) -> Any:
        """Whatever else the method can do (`api.Covarying`)."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.of, name)

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs` (see `api.Predictor`).

        Answers are about the widest columns asked for so far, those of the table; a probe asks about a few of them.
        """
        known = self._columns
        if self._last and configurations is self._last[0]:
            return self._answer(jobs)
        if len(configurations) < len(known):
            if not all(c in known for c in configurations):
                return self.of.predict(jobs, configurations)
            whole = self._answer(jobs)
            keep = [known[c] for c in configurations]
            parts = (whole.throughput_JK[:, keep], whole.log_std_JK[:, keep], whole.source_JK[:, keep])
            return Completion(tuple(configurations), *parts)
        if list(known) != list(configurations):
            self._answers.clear()
            self._columns.clear()
            self._columns.update({c: k for k, c in enumerate(configurations)})
        self._last[:] = [configurations] if isinstance(configurations, tuple) else []
        return self._answer(jobs)

    def _answer(self, jobs: Sequence[Observations]) -> Completion:
        """Rows over the columns that answers are about."""
        columns = self._columns
        asked = [replace(job, job="", cells=tuple((c, rounded(cell)) for c, cell in job.cells)) for job in jobs]
        new = {key: None for key in asked if key not in self._answers}
        if new:
            fresh = self.of.predict(list(new), tuple(columns))
            rows = zip(fresh.throughput_JK, fresh.log_std_JK, fresh.source_JK, strict=True)
            self._answers.update(zip(new, rows, strict=True))
        found = [self._answers[key] for key in asked]
        speed_JK, std_JK, source_JK = (np.array([a[i] for a in found]).reshape(len(jobs), -1) for i in range(3))
        for j, job in enumerate(jobs):
            for configuration, cell in job.cells:
                k = columns.get(configuration)
                if k is not None and source_JK[j, k] == Source.MEASURED:
                    speed_JK[j, k] = cell.throughput
        for key in asked:
            self._answers.move_to_end(key)
        while len(self._answers) > max(MOST_ANSWERS, len(jobs)):
            self._answers.popitem(last=False)
        return Completion(tuple(columns), speed_JK, std_JK, source_JK)
