"""What a simulated job has done: work, checkpoints, costs and waiting, as piecewise constant rates.

A job with workers first pays for its change (`busy_until`: it holds its GPUs and does nothing), then works at the true
speed of its placement. A checkpoint is complete at every multiple of the interval of working time; a restart without a
same-step stop goes on from the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heet_elastic.model import Configuration
from heet_elastic.simulator.jobs import SimJob
from heet_elastic.simulator.metrics import JobOutcome

Workers = Mapping[str, tuple[str, ...]]
"""host -> device ids that the job holds there."""


@dataclass(slots=True)
class Body:
    """The physical job. Times are virtual seconds; `since` is the moment up to which everything is accounted."""

    job: SimJob
    checkpoint_interval_s: float = 0.0
    cost_factor: float = 1.0
    since: float = 0.0
    done: float = 0.0
    saved: float = 0.0  # work at the last checkpoint
    worked_since_save_s: float = 0.0
    rate: float = 0.0
    efficiency: float = 0.0
    busy_until: float = 0.0
    workers: Workers = field(default_factory=dict)
    gpus: int = 0
    configuration: Configuration | None = None
    epoch: int = 0  # grows with every change, so that a completion scheduled before it is void
    start_s: float | None = None
    finish_s: float | None = None
    waited_s: float = 0.0
    longest_wait_s: float = 0.0
    waiting_since: float = 0.0
    starts: int = 0
    rescale_s: float = 0.0
    lost_s: float = 0.0
    gpu_s: float = 0.0
    efficient_gpu_s: float = 0.0

    def advance(self, now: float) -> None:
        """Account for the time up to `now` at the present rate."""
        if not self.workers:
            self.since = now
            return
        working = max(0.0, now - max(self.since, self.busy_until))
        if working > 0:
            self.done = min(self.done + self.rate * working, self.job.total_work)
            gpu_s = self.gpus * working
            self.gpu_s += gpu_s
            self.efficient_gpu_s += gpu_s * self.efficiency
            if self.checkpoint_interval_s > 0:
                worked = self.worked_since_save_s + working
                self.worked_since_save_s = math.fmod(worked, self.checkpoint_interval_s)
                if worked >= self.checkpoint_interval_s:
                    self.saved = self.done - self.rate * self.worked_since_save_s
        self.since = now

    def completion(self) -> float:
        """When the job will be done if nothing changes; infinity without workers or speed."""
        if not self.workers or self.rate <= 0:
            return math.inf
        return max(self.since, self.busy_until) + (self.job.total_work - self.done) / self.rate

    def stop(self, now: float) -> None:
        """Its workers end now (a rescale, a preemption, a lost host): work since the last checkpoint is lost."""
        self.advance(now)
        if not self.workers:
            return
        if now < self.busy_until:
            self.rescale_s -= self.busy_until - now  # the change before was cut short
        if self.checkpoint_interval_s > 0:
            if self.rate > 0:
                self.lost_s += (self.done - self.saved) / self.rate
            self.done = self.saved
            self.worked_since_save_s = 0.0
        self.workers, self.gpus, self.configuration, self.rate, self.efficiency = {}, 0, None, 0.0, 0.0
        self.waiting_since = now
        self.epoch += 1

    def finish(self, now: float) -> None:
        """All its work is done; it still holds its workers."""
        self.advance(now)
        self.done = self.saved = self.job.total_work
        self.finish_s = now

    def start(
        self,
        now: float,
        workers: Workers,
        configuration: Configuration | None,
        rate: float,
        efficiency: float,
        cost_s: float,
    ) -> None:
        """It gets these workers now and works after `cost_s`."""
        wait = now - self.waiting_since
        self.waited_s += wait
        self.longest_wait_s = max(self.longest_wait_s, wait)
        if self.start_s is None:
            self.start_s = now
        self.starts += 1
        self.since, self.busy_until = now, now + cost_s
        self.workers, self.gpus = workers, sum(len(d) for d in workers.values())
        self.configuration = configuration
        self.rate, self.efficiency = rate, efficiency
        self.rescale_s += cost_s
        self.epoch += 1

    def outcome(self, requested_s: float, end_s: float) -> JobOutcome:
        """The figures of the job once the run has ended at `end_s`."""
        waited, longest = self.waited_s, self.longest_wait_s
        if not self.workers and self.finish_s is None:
            waited += end_s - self.waiting_since
            longest = max(longest, end_s - self.waiting_since)
        return JobOutcome(
            job=self.job.job,
            row=self.job.row,
            submit_s=self.job.submit_s,
            start_s=self.start_s,
            finish_s=self.finish_s,
            requested_s=requested_s,
            requested=self.job.requested,
            waited_s=waited,
            longest_wait_s=longest,
            rescales=max(self.starts - 1, 0),
            rescale_s=self.rescale_s,
            lost_s=self.lost_s,
            gpu_s=self.gpu_s,
            efficient_gpu_s=self.efficient_gpu_s,
        )
