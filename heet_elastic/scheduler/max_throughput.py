"""Most throughput in all: maximise sum_j T_j(c_j) / T_j(h*, 1), whatever is left to do and whoever waits.

Every job's throughput is counted in its own fastest single GPU, since jobs' work units cannot be added (Gavel's
normalisation of its policy of this name). Rescales are not charged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.scheduler.api import Choice, Problem
from heet_elastic.scheduler.market import clear_from
from heet_elastic.scheduler.options import build_options, in_canonical_order
from heet_elastic.scheduler.pricing import single_speed_JH


@dataclass(frozen=True, slots=True)
class MaxThroughput:
    """Throughput alone."""

    name: str = "max-throughput"
    interval_s: float = 300.0

    def choose(self, problem: Problem, rng: np.random.Generator) -> Choice:
        """One (host type, workers) per job. price_J is NaN: nobody is ranked."""
        return in_canonical_order(_choose, problem, rng)


def _choose(problem: Problem, rng: np.random.Generator) -> Choice:
    del rng
    options = build_options(problem)
    single = single_speed_JH(problem, options).max(axis=1, initial=0.0)
    value = options.speed_JHW / np.where(single > 0, single, 1.0)[:, None, None]
    held = np.where(options.running_J, options.current_J, 0)
    kind = np.where(held > 0, options.current_type_J, -1)
    type_J, workers_J, _ = clear_from(value, options.gpus_H, kind, held)
    return options.choice(type_J, workers_J, np.full(len(held), np.nan), "most throughput in all")
