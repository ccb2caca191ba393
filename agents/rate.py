"""Robust time of one optimizer step from the times at which steps ended.

Steps are grouped into windows, long enough that a pattern of quick and slow steps (a data loader that delivers in
bursts) falls inside each of them; the rate is the median over windows, so that a rare pause moves nothing. Left out:

- the first WARM_UP_STEPS gaps, and leading windows slower than the rest (compilation, caches, autotuning);
- gaps in which a checkpoint or an evaluation was seen (`paused_s`), unless they are a regular part of most steps,
  as the rollouts of reinforcement learning are.

Windows far slower than the median stay in the median but are also summed up as `stalled_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

WINDOW_S = 0.5
WINDOW_STEPS = 8
LONG_WINDOW_S = 10.0
"""A window ends after WINDOW_S and WINDOW_STEPS, or after LONG_WINDOW_S whatever it holds."""
KEPT_WINDOWS = 64
WARM_UP_STEPS = 2
WARM_UP_FACTOR = 1.25
STALL_FACTOR = 2.0
USUAL_PAUSES = 0.25
"""With more than this share of gaps flagged, a flag no longer marks a pause."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Median time of a step and its median absolute deviation, seconds; zeros before the first window."""

    step_s: float = 0.0
    spread_s: float = 0.0


def robust(windows: Sequence[float]) -> Rate:
    """Rate of windows (seconds per step, oldest first), without the leading ones that are warm-up."""
    start = 0
    while len(windows) - start >= 3 and windows[start] > WARM_UP_FACTOR * median(windows[start + 1 :]):
        start += 1
    kept = windows[start:]
    if not kept:
        return Rate()
    middle = median(kept)
    return Rate(middle, median(abs(w - middle) for w in kept))


class StepClock:
    """Counts steps and times them. `step` is the hot path: one call a step."""

    __slots__ = (
        "_begun",
        "_calls",
        "_pauses",
        "_skipped",
        "_steps",
        "_typical",
        "_windows",
        "first_s",
        "last_s",
        "paused_s",
        "stalled_s",
        "steps",
        "windows",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.paused_s = 0.0
        self.stalled_s = 0.0
        self.windows = 0
        self._windows: deque[float] = deque(maxlen=KEPT_WINDOWS)
        self._calls = 0
        self._begun = 0.0  # of the open window
        self._skipped = 0.0  # time of paused gaps inside it
        self._steps = 0
        self._pauses = 0.0  # moving share of gaps that were flagged
        self._typical = 0.0

    def step(self, now: float, flagged: bool, count: int = 1) -> bool:
        """`count` steps ended at `now`. `flagged`: a checkpoint or evaluation was seen since. True: a window ended."""
        self.steps += count
        self._calls += 1
        gap, self.last_s = now - self.last_s, now
        if self._calls <= WARM_UP_STEPS + 1:
            if self._calls == 1:
                self.first_s = now
            self._begun = now
            return False
        self._pauses += 0.05 * (flagged - self._pauses)
        if flagged and self._pauses < USUAL_PAUSES:
            self._skipped += gap
            self.paused_s += max(0.0, gap - self._typical)
        else:
            self._steps += count
        elapsed = now - self._begun - self._skipped
        if elapsed < WINDOW_S or (self._steps < WINDOW_STEPS and elapsed < LONG_WINDOW_S) or not self._steps:
            return False
        self._close(elapsed)
        self._begun, self._skipped, self._steps = now, 0.0, 0
        return True

    def _close(self, elapsed: float) -> None:
        per_step = elapsed / self._steps
        if self._typical and per_step > STALL_FACTOR * self._typical:
            self.stalled_s += elapsed - self._steps * self._typical
        self._windows.append(per_step)
        self.windows += 1
        if self.windows <= 8 or self.windows % 8 == 0:
            self._typical = self.rate().step_s

    def rate(self) -> Rate:
        """Rate of the windows kept."""
        return robust(list(self._windows))
