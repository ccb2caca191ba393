"""What a run leaves behind: the event log, who ran where and when, and the cluster at every decision."""

from __future__ import annotations

import json
import math

from heet_elastic.simulator.metrics import Sample, Span
from heet_elastic.simulator.progress import Body


class Recorder:
    """Notes of one run. The log holds virtual times only, so one seed gives one log, byte for byte."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.spans: list[Span] = []
        self.samples: list[Sample] = []
        self._open: dict[tuple[str, str], tuple[float, int]] = {}
        self.running = self.busy = 0
        self._efficient = 0.0

    def note(self, now: float, what: str, name: str, **fields: object) -> None:
        """An event, as a line of JSON."""
        self.log.append(json.dumps({"t": round(now, 6), "event": what, "name": name, **fields}))

    def started(self, body: Body, now: float) -> None:
        """The job has just got its workers."""
        self.running += 1
        self.busy += body.gpus
        self._efficient += body.gpus * body.efficiency
        for host, gpus in body.workers.items():
            self._open[body.job.job, host] = (now, len(gpus))

    def stopping(self, body: Body, now: float) -> None:
        """The job is about to lose its workers."""
        self.running -= 1
        self.busy -= body.gpus
        self._efficient -= body.gpus * body.efficiency
        for host in body.workers:
            opened = self._open.pop((body.job.job, host), None)
            if opened is not None:
                self.spans.append(Span(body.job.job, host, opened[1], opened[0], now))

    def look(self, now: float, active: int) -> None:
        """The cluster after a decision; of several at one instant the last counts."""
        efficiency = self._efficient / self.busy if self.busy else math.nan
        if self.samples and self.samples[-1].at_s == now:
            self.samples.pop()
        self.samples.append(Sample(now, self.running, active - self.running, self.busy, efficiency))
