"""Time from the first forward pass of a step to its end, for one step a window: the rest of a step waits for data.

On a GPU two events are recorded on the current stream and read later, once they have passed: nothing ever waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Protocol

KEPT = 32


class Event(Protocol):
    """What is used of torch.cuda.Event(enable_timing=True)."""

    def record(self) -> None:
        """Mark this place in the current stream."""

    def query(self) -> bool:
        """Whether the stream has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to `end`."""


class ComputeTimer:
    """Measures the step after each `arm`. `make_event` None: by the clock that the caller reads."""

    def __init__(self, make_event: Callable[[], Event] | None = None) -> None:
        self._make_event = make_event
        self.armed = False
        self._start_s: float | None = None
        self._start: Event | None = None
        self._pending: tuple[Event, Event] | None = None
        self._seen: deque[float] = deque(maxlen=KEPT)

    def use_events(self, make_event: Callable[[], Event]) -> None:
        """Measure on the device from the next `arm` on."""
        self._make_event = make_event
        self.armed = False

    def arm(self) -> None:
        """Measure the next step whose forward pass begins after this."""
        self.armed = self._pending is None or self._collect()
        self._start_s = self._start = None

    def forward(self, now: float) -> None:
        """A forward pass begins; called while armed."""
        if self._start_s is None:
            self._start_s = now
            if self._make_event is not None:
                self._start = self._make_event()
                self._start.record()

    def step(self, now: float) -> None:
        """A step ended; called while armed."""
        if self._start_s is None:
            return
        if self._start is not None and self._make_event is not None:
            end = self._make_event()
            end.record()
            self._pending = (self._start, end)
        else:
            self._seen.append(now - self._start_s)
        self.armed = False

    def _collect(self) -> bool:
        """Take the measured pair if the device has passed it; False: not yet."""
        if self._pending is not None:
            start, end = self._pending
            if not end.query():
                return False
            self._seen.append(start.elapsed_time(end) / 1000.0)
            self._pending = None
        return True

    def seconds(self) -> float:
        """Median over the last measured steps; 0.0 = none yet."""
        self._collect()
        return median(self._seen) if self._seen else 0.0
