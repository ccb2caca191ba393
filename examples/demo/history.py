"""What the demo saw: every round of every job, what was expected of it, and when it made its first step.

Everything comes from snapshots of the store, as `heet status` reads them; nothing is told by the processes themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from heet_elastic.coordinator.api import Table
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Configuration, JobView, Snapshot
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Predictor, Source
from heet_elastic.predictor.samples import merge_rounds
from heet_elastic.scheduler.api import DENSE


@dataclass
class Change:
    """One round of a job. Times are the watcher's monotonic clock."""

    job: str
    round: int
    kind: str  # starts, grows, shrinks, moves, stays, waits
    before: Configuration | None
    after: Configuration | None
    reason: str
    at: float
    expected: float | None = None  # work units/s, as predicted when the round was written
    source: Source | None = None
    first_step_at: float | None = None

    @property
    def seconds(self) -> float | None:
        """From the decision to the first step of the round."""
        return None if self.first_step_at is None else self.first_step_at - self.at

    def __str__(self) -> str:
        places = " -> ".join(str(c) for c in (self.before, self.after) if c is not None)
        return f"{self.job} {self.kind}: {places or 'no devices'}"


def kind_of(before: Configuration | None, after: Configuration | None) -> str:
    """What a round does to a job, in one word."""
    if after is None:
        return "waits"
    if before is None:
        return "starts"
    if after.workers != before.workers:
        return "grows" if after.workers > before.workers else "shrinks"
    return "stays" if after.host_type == before.host_type else "moves"


@dataclass
class History:
    """Fed with snapshots in order."""

    settings: CoordinatorSettings
    changes: list[Change] = field(default_factory=list)
    table: Table = field(default_factory=Table)
    _fitted: tuple[object, Predictor] | None = None

    def look(self, snapshot: Snapshot, now: float) -> list[Change]:
        """Take in a snapshot; the changes that it shows for the first time."""
        new = [change for view in snapshot.jobs.values() if (change := self._change(view, now)) is not None]
        self.changes += new
        for change in self.changes:
            view = snapshot.jobs.get(change.job)
            if change.first_step_at is None and view is not None and _stepped(view, change.round):
                change.first_step_at = now
        self.table = refresh(self.table, snapshot, self._predictor(snapshot), self.settings.most_workers)
        return new

    def of(self, job: str, kind: str | None = None) -> list[Change]:
        """Changes of a job, of one kind."""
        return [c for c in self.changes if c.job == job and kind in (None, c.kind)]

    def configuration(self, job: str) -> Configuration | None:
        """Where the job is now."""
        return next((c.after for c in reversed(self.changes) if c.job == job), None)

    def measured(self, job: str) -> dict[Configuration, float]:
        """Work units/s of the configurations in which the job was measured."""
        row = self.table.rows.get(job)
        return {} if row is None else {c: cell.throughput for c, cell in row.cells}

    def predictions(self) -> list[tuple[Change, float]]:
        """Rounds whose speed was predicted (not measured before) and measured since, with the measurement."""
        judged = []
        for change in self.changes:
            if change.expected is None or change.after is None or change.source is Source.MEASURED:
                continue
            found = self.measured(change.job).get(change.after)
            if found is not None:
                judged.append((change, found))
        return judged

    def _predictor(self, snapshot: Snapshot) -> Predictor:
        if self._fitted is None or self._fitted[0] != snapshot.profiles:
            fit = METHODS[self.settings.predictor]
            self._fitted = (snapshot.profiles, fit(list(snapshot.profiles.values()), np.random.default_rng(0)))
        return self._fitted[1]

    def _change(self, view: JobView, now: float) -> Change | None:
        if view.allocation is None:
            return None
        allocation = view.allocation.record
        known = self.of(view.job)
        if known and known[-1].round >= allocation.round:
            return None
        # A job that moves may wait for its new devices in a round without members: what it had before that counts.
        before = next((c.after for c in reversed(known) if c.after is not None), None)
        after = allocation.configuration
        change = Change(view.job, allocation.round, kind_of(before, after), before, after, allocation.reason, now)
        change.expected, change.source = self._expected(view.job, after)
        return change

    def _expected(self, job: str, where: Configuration | None) -> tuple[float | None, Source | None]:
        row, axes = self.table.rows.get(job), self.table.axes
        if row is None or where is None or where.host_type not in axes.host_types or where.workers > axes.workers:
            return None, None
        cell = (axes.host_types.index(where.host_type), where.workers - 1, DENSE)
        return float(row.throughput_HWS[cell]), Source(int(row.source_HWS[cell]))


def _stepped(view: JobView, round_: int) -> bool:
    return any(r.round == round_ and r.steps > 0 for r in merge_rounds(list(view.samples.values())))


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean; None of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
