"""What the coordinator knows of a job's speed: perfect curves, or the live predictor fed with simulated samples.

Both give `decide` the same kind of table as the live coordinator's; `decide` cannot tell them apart.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heet_elastic.coordinator.api import Axes, Row, Table
from heet_elastic.coordinator.decide.table import axes_of, refresh
from heet_elastic.coordinator.rounding import Rounded
from heet_elastic.model import CellCounters, Configuration, Host, Profile, RoundProgress, SampleRecord, Snapshot
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Predictor, Source
from heet_elastic.scheduler.api import DENSE, SPREAD
from heet_elastic.simulator.progress import Body
from heet_elastic.simulator.settings import SimulationSettings
from heet_elastic.simulator.truth import Truth
from heet_elastic.simulator.world import World

WRITER = "sampler"
"""The agent under whose name a job's counters stand: those of all its agents together."""
WINDOW_S = 5.0
"""Length of the sampler's windows: the number of windows is working time over this."""


class Feed(Protocol):
    """Samples into the store, and the table out of it."""

    @property
    def samples(self) -> bool:
        """Whether agents write samples at all (perfect curves need none)."""

    def put_sample(self, world: World, body: Body, now: float) -> None:
        """The job's agents write what they have counted up to `now`."""

    def refresh_samples(self, world: World, active: Mapping[str, Body], now: float) -> None:
        """Every running job writes its samples if they are older than the sampling interval."""

    def table(self, snapshot: Snapshot, active: Mapping[str, Body], now: float) -> Table:
        """The table for a decision on this snapshot."""

    def forget(self, job: str) -> None:
        """The job is gone."""


def true_speeds(truth: Truth, row: str, axes: Axes) -> NDArray[np.float64]:
    """throughput_HWS of a table row: the true speed on the fewest hosts, and on one host more."""
    speed = np.zeros((len(axes.host_types), axes.workers, 2))
    for h, (host_type, per_host) in enumerate(zip(axes.host_types, axes.per_host_H, strict=True)):
        for w in range(1, axes.workers + 1):
            dense = -(-w // per_host)
            speed[h, w - 1, DENSE] = truth.speed(row, host_type, w, dense)
            speed[h, w - 1, SPREAD] = truth.speed(row, host_type, w, min(dense + 1, w))
    return speed


def off_by(speed: NDArray[np.float64], error: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Every speed off by the share `error`, up or down with equal chance."""
    return speed * (1.0 + error * rng.choice([-1.0, 1.0], size=speed.shape))


class TrueFeed:
    """Perfect curves (off by `error`, if asked for) for policies whose papers assume them; progress as samples tell."""

    samples = False

    def __init__(
        self, truth: Truth, hosts: Mapping[str, Host], most_workers: int, settings: SimulationSettings
    ) -> None:
        self._truth, self._error, self._seed = truth, settings.error, settings.seed
        self._axes = axes_of(hosts, most_workers)
        self._sample_interval_s = settings.sample_interval_s
        self._seen_at: dict[str, float] = {}
        self._speeds: dict[str, NDArray[np.float64]] = {}
        self._rows: dict[str, Row] = {}

    def put_sample(self, world: World, body: Body, now: float) -> None:
        """Nothing to write."""

    def refresh_samples(self, world: World, active: Mapping[str, Body], now: float) -> None:
        """Nothing to write."""

    def forget(self, job: str) -> None:
        """Drop the row."""
        self._rows.pop(job, None)
        self._seen_at.pop(job, None)

    def table(self, snapshot: Snapshot, active: Mapping[str, Body], now: float) -> Table:  # noqa: ARG002
        """A row per active job, with its progress."""
        rows = {}
        for job, body in active.items():
            row = self._rows.get(job)
            if row is None:
                row = self._rows[job] = self._new_row(body)
            elif body.rate > 0 and now - self._seen_at.get(job, -math.inf) >= self._sample_interval_s:
                body.advance(now)
                self._seen_at[job] = now
                row = self._rows[job] = replace(row, done=body.done)
            rows[job] = row
        return Table(self._axes, rows)

    def _new_row(self, body: Body) -> Row:
        name = body.job.row
        speed = self._speeds.get(name)
        if speed is None:
            speed = self._speeds[name] = true_speeds(self._truth, name, self._axes)
        if self._error:
            number = zlib.crc32(body.job.job.encode())
            speed = off_by(speed, self._error, np.random.default_rng([self._seed, 0x657272, number]))
        std = np.zeros(speed.shape[:2])
        source = np.full(speed.shape, int(Source.MEASURED), dtype=np.int8)
        return Row(speed, std, source, done=body.done, total=body.job.total_work)


class Sampler:
    """Counters of simulated workers: time and steps per configuration, with a measurement error per cell.

    A step is one unit of work and one sample, so speeds in samples/s are the table's. The error of a cell is drawn once
    (a job's repeats on one placement agree better than two placements do): the same for every policy of a seed.
    """

    def __init__(self, truth: Truth, noise: float, seed: int) -> None:
        self._truth, self._noise, self._seed = truth, noise, seed
        self._errors: dict[tuple[str, Configuration], float] = {}
        self._cells: dict[str, dict[Configuration, tuple[float, float]]] = {}
        self._seen: dict[str, tuple[int, float, Configuration | None]] = {}

    def forget(self, job: str) -> None:
        """Drop the job's counters."""
        for known in (self._cells, self._seen):
            known.pop(job, None)

    def record(self, body: Body, round_: int, now: float) -> SampleRecord:
        """Everything that the job's workers have counted up to `now` (the body is advanced to it)."""
        job = body.job.job
        self._count(body, now)
        cells = tuple(
            self._counters(job, configuration, seconds, speed)
            for configuration, (seconds, speed) in self._cells.get(job, {}).items()
        )
        # Without an interval nothing is ever lost: the script checkpoints whenever it is asked to stop.
        saved = body.saved if body.checkpoint_interval_s > 0 else body.done
        marks = int(saved > 0)
        progress = RoundProgress(round_, body.done, body.done, marks=marks, marked_steps=saved, marked_samples=saved)
        return SampleRecord(agent=WRITER, round=round_, cells=cells, rounds=(progress,))

    def _count(self, body: Body, now: float) -> None:
        configuration = body.configuration
        if configuration is None or body.rate <= 0 or now <= body.busy_until:
            return
        job = body.job.job
        begun = body.busy_until
        epoch, until, _ = self._seen.get(job, (-1, 0.0, None))
        since = max(begun, until) if epoch == body.epoch else begun
        cells = self._cells.setdefault(job, {})
        seconds, _ = cells.get(configuration, (0.0, 0.0))
        cells[configuration] = (seconds + max(now - since, 0.0), body.rate)
        self._seen[job] = (body.epoch, now, configuration)

    def _counters(self, job: str, configuration: Configuration, seconds: float, speed: float) -> CellCounters:
        step_s = 1.0 / (speed * self._error(job, configuration))
        steps = max(int(seconds / step_s), 1)
        return CellCounters(
            configuration=configuration,
            seconds=seconds,
            steps=steps,
            local_samples=float(steps),
            local_tokens=0.0,
            step_s=step_s,
            step_spread_s=step_s * self._noise,
            windows=max(int(seconds / WINDOW_S), 1),
            local_workers=configuration.workers,
        )

    def _error(self, job: str, configuration: Configuration) -> float:
        if not self._noise:
            return 1.0
        key = (job, configuration)
        error = self._errors.get(key)
        if error is None:
            number = zlib.crc32(job.encode())
            cell = [ord(c) for c in configuration.host_type] + [configuration.workers, configuration.hosts]
            rng = np.random.default_rng([self._seed, 0x6E6F6973, number, *cell])
            error = self._errors[key] = math.exp(self._noise * float(rng.standard_normal()))
        return error


class PredictedFeed:
    """The live table, completed by the live predictor from the samples of simulated workers.

    Only what cannot run is told: a configuration whose true speed is 0 is closed to the job, for every policy alike.
    Profiles of ended jobs are the predictor's history, as live; it is fitted anew at most every `refit_s`.
    """

    samples = True

    def __init__(self, truth: Truth, settings: SimulationSettings, most_workers: int) -> None:
        self._truth, self._settings = truth, settings
        self._most_workers = most_workers
        self._sampler = Sampler(truth, settings.noise, settings.seed)
        self._fit = METHODS[settings.predictor]
        self._rng = np.random.default_rng([settings.seed, 0x666974])
        self._fitted: tuple[Predictor, object, float] | None = None
        self._table = Table()
        self._shown: dict[str, tuple[Row, Row]] = {}
        self._open: dict[str, NDArray[np.float64]] = {}
        self._errors: dict[str, NDArray[np.float64]] = {}
        self._sampled_at: dict[str, float] = {}

    def put_sample(self, world: World, body: Body, now: float) -> None:
        """The job's agents write all that they have counted."""
        job = body.job.job
        view = world.jobs[job]
        round_ = 0 if view.allocation is None else view.allocation.record.round
        if body.configuration is not None and now > body.busy_until:
            body.advance(now)
            world.put_sample(job, self._sampler.record(body, round_, now))
            self._sampled_at[job] = now

    def refresh_samples(self, world: World, active: Mapping[str, Body], now: float) -> None:
        """Jobs write again once their last samples are older than the sampling interval."""
        for job, at in self._sampled_at.items():
            body = active.get(job)
            if body is not None and now - at >= self._settings.sample_interval_s:
                self.put_sample(world, body, now)

    def forget(self, job: str) -> None:
        """Drop everything about the job."""
        self._sampler.forget(job)
        for known in (self._shown, self._errors, self._sampled_at):
            known.pop(job, None)

    def table(self, snapshot: Snapshot, active: Mapping[str, Body], now: float) -> Table:
        """The live table with closed configurations at 0, and predictions off by the error asked for."""
        predictor = self._fitted_to(snapshot.profiles, now)
        self._table = refresh(self._table, snapshot, predictor, self._most_workers)
        rows = {}
        for job, row in self._table.rows.items():
            shown = self._shown.get(job)
            if shown is None or shown[0] is not row:
                body = active.get(job)
                made = row if body is None else self._masked(body.job.row, job, row)
                shown = self._shown[job] = (row, made)
            rows[job] = shown[1]
        return Table(self._table.axes, rows, predictor)

    def _fitted_to(self, profiles: Mapping[str, Profile], now: float) -> Predictor:
        fitted = self._fitted
        if fitted is None or (fitted[1] is not profiles and now - fitted[2] >= self._settings.refit_s):
            history = [profiles[name] for name in sorted(profiles)]
            fitted = self._fitted = (Rounded(self._fit(history, self._rng)), profiles, now)
        return fitted[0]

    def _masked(self, name: str, job: str, row: Row) -> Row:
        speed, axes = row.throughput_HWS, self._table.axes
        mask = self._open.get(name)
        if mask is None or mask.shape != speed.shape:
            mask = self._open[name] = np.where(true_speeds(self._truth, name, axes) > 0, 1.0, 0.0)
        speed = speed * mask
        if self._settings.error:
            factor = self._errors.get(job)
            if factor is None or factor.shape != speed.shape:
                rng = np.random.default_rng([self._settings.seed, 0x657272, zlib.crc32(job.encode())])
                factor = self._errors[job] = off_by(np.ones(speed.shape), self._settings.error, rng)
            speed = np.where(row.source_HWS == int(Source.MEASURED), speed, speed * factor)
        return replace(row, throughput_HWS=speed)
