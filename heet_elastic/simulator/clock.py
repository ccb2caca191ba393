"""The virtual clock: a heap of (time, priority, n, event).

Events of one instant come by priority, then in the order in which they were scheduled (`n`), so a run is a function of
its inputs and never of hash order. Nothing here knows what an event means.
"""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

E = TypeVar("E")


class Clock(Generic[E]):
    """Time that jumps from event to event. `now` is in seconds and never goes back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, E]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, time: float, priority: int, event: E) -> None:
        """Schedule `event`. ValueError for a time in the past or one that is no number."""
        if not math.isfinite(time) or time < self.now:
            raise ValueError(f"event at {time} s, but it is {self.now} s already")
        heapq.heappush(self._heap, (time, priority, self._count, event))
        self._count += 1

    def peek(self) -> float:
        """Time of the next event; infinity when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop(self) -> E:
        """Move to the next event and return it. IndexError when there is none."""
        time, _, _, event = heapq.heappop(self._heap)
        self.now = time
        return event

    def pop_instant(self) -> list[E]:
        """Move to the next instant and return all its events, in order."""
        events = [self.pop()]
        while self._heap and self._heap[0][0] == self.now:
            events.append(self.pop())
        return events
