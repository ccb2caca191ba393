"""The contract of a predictor: rows of observed cells in, throughput with its uncertainty in every configuration out.

A row's prediction depends on that row and the fitted history alone, so one new sample updates one job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from heet_elastic.model import Cell, Configuration, JobFeatures, Profile, WorkUnit

FloatArray = NDArray[np.float64]


class Source(IntEnum):
    """Where a number of a completed table comes from; shown wherever the number is."""

    MEASURED = 0  # seen in this job
    REUSED = 1  # a similar past job's row, scaled
    MODEL = 2  # completed from this job's cells (and history)
    PRIOR = 3  # datasheet figures alone: nothing was measured on this host type


@dataclass(frozen=True, slots=True)
class Observations:
    """One job's row: what was measured of it and what is known about it. No cell at all is allowed.

    work_unit: of the throughputs. In steps/s a job with a fixed batch per worker does not gain from workers; whether a
    job in steps is one is found out from its cells. None = its throughput grows with its workers, whatever it counts.
    """

    job: str
    name: str = ""
    family: str = ""
    cells: tuple[tuple[Configuration, Cell], ...] = ()
    features: JobFeatures | None = None
    work_unit: WorkUnit | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The completed table of J jobs over K configurations.

    throughput_JK: work units/s, > 0 and finite; measured cells as measured.
    log_std_JK: standard deviation of ln(throughput), >= 0; exp(+-1.28 log_std) is the 80 % interval.
    source_JK: a Source each (int8).
    """

    configurations: tuple[Configuration, ...]
    throughput_JK: FloatArray
    log_std_JK: FloatArray
    source_JK: NDArray[np.int8]

    @property
    def efficiency_JK(self) -> FloatArray:
        """T / (w T(1)) of each cell; NaN where one worker of its host type is no column."""
        single = {c.host_type: k for k, c in enumerate(self.configurations) if c.workers == 1}
        single_K = [single.get(c.host_type, -1) for c in self.configurations]
        workers_K = np.array(
            [c.workers if k >= 0 else np.nan for c, k in zip(self.configurations, single_K, strict=True)]
        )
        out: FloatArray = self.throughput_JK / (workers_K * self.throughput_JK[:, single_K])
        return out


class Predictor(Protocol):
    """A method fitted to a history. A value: `predict` changes nothing."""

    @property
    def name(self) -> str:
        """The method's key in METHODS."""
        ...

    def predict(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> Completion:
        """Complete the rows of `jobs`. Unusable cells (zero, NaN, unknown configuration) are left out, never an error.

        Vectorised over jobs; deterministic.
        """


@runtime_checkable
class Covarying(Predictor, Protocol):
    """A predictor that knows how the errors of its cells hang together: then the best next cell can be computed."""

    def covariance(self, jobs: Sequence[Observations], configurations: Sequence[Configuration]) -> FloatArray:
        """Posterior covariance of ln(throughput) between `configurations` for each job (J x K x K)."""
        ...


Fit = Callable[[Sequence[Profile], np.random.Generator], Predictor]
"""A method: fit to the profiles of past jobs (an empty history is allowed)."""
