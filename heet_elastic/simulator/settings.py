"""What a simulation is run with: one frozen value, built at the edge and passed down whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.predictor import METHODS

OURS = frozenset({"heet", "market", "short-only", "scale-only"})
"""Policies that are fed with predictions; the others get the true curves, which favours them."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a change costs a job, in seconds during which it holds its GPUs and does nothing.

    up_s: starting or growing; down_s: shrinking; migrate_s: moving to another host type (None = up_s).
    checkpoint_interval_s: every restart loses the work since the last multiple of it; 0 = nothing is lost.
    spread: sigma of a log-normal factor on a job's own costs (0 = all alike).
    """

    up_s: float = 9.0
    down_s: float = 1.5
    migrate_s: float | None = None
    checkpoint_interval_s: float = 0.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for flag, value in (
            ("--scale-up-s", self.up_s),
            ("--scale-down-s", self.down_s),
            ("--migrate-s", self.migrate_s if self.migrate_s is not None else self.up_s),
            ("--checkpoint-interval-s", self.checkpoint_interval_s),
            ("--cost-spread", self.spread),
        ):
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{flag} is {value}: expected a finite number >= 0")


@dataclass(frozen=True, slots=True)
class Failures:
    """Host failures: mean time between failures of one host (0 = never) and the time until it is back.

    fence_s: after this time agents of a lost host count as stopped (the coordinator's `fence_time_s`; 0 = only when the
    host is back): until then a job of which no agent survives waits.
    """

    mtbf_s: float = 0.0
    repair_s: float = 3600.0
    fence_s: float = 0.0

    def __post_init__(self) -> None:
        for flag, value in (
            ("--host-mtbf-s", self.mtbf_s),
            ("--host-repair-s", self.repair_s),
            ("--fence-time-s", self.fence_s),
        ):
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"{flag} is {value}: expected a finite number >= 0")


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Everything that a run depends on besides jobs, truth, hosts and policy.

    interval_s: None = what each policy asks for. error: every prediction is off by this share, up or down.
    noise: relative standard deviation of a measured cell. predictor: "true" = perfect curves for everybody.
    sample_interval_s: how old a running job's samples in the store may be. refit_s: least time between two fits.
    history: whether profiles of ended jobs help later ones.
    """

    costs: Costs = Costs()
    failures: Failures = Failures()
    interval_s: float | None = None
    predictor: str = DEFAULT_PREDICTOR
    error: float = 0.0
    noise: float = 0.02
    history: bool = True
    seed: int = 0
    sample_interval_s: float = 60.0
    refit_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.interval_s is not None and not (math.isfinite(self.interval_s) and self.interval_s > 0):
            raise UsageError(f"--interval is {self.interval_s}: expected a finite number > 0")
        if not 0 <= self.error < 1:
            raise UsageError(f"--error is {self.error}: expected a share from 0 to below 1, e.g. 0.3")
        if not 0 <= self.noise < 1:
            raise UsageError(f"--noise is {self.noise}: expected a share from 0 to below 1")
        if self.predictor not in METHODS and self.predictor != "true":
            raise UsageError(f"--predictor is {self.predictor!r}: expected true or one of {', '.join(METHODS)}")
