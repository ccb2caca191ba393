"""Fetching for `heet status`, `jobs`, `hosts`, `explain`: one snapshot of the store, as values easy to show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.coordinator.api import Row, Table
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Allocation, Configuration, Host, JobView, Phase, Snapshot
from heet_elastic.predictor import DEFAULT, METHODS
from heet_elastic.predictor.api import Source
from heet_elastic.scheduler.api import DENSE
from heet_elastic.store.api import Store
from heet_elastic.store.keys import Keys
from heet_elastic.store.snapshot import SnapshotDecoder

NO_WORD = "no coordinator has spoken about it yet"


@dataclass(frozen=True, slots=True)
class Picture:
    """The store at one moment, with the predictions that a coordinator would make from it."""

    snapshot: Snapshot
    table: Table
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as one line. `speed` is measured where it runs now, `share` of its work is done; None = unknown."""

    job: str
    name: str
    phase: str
    workers: int
    where: str
    speed: float | None
    unit: str
    share: float | None
    agents: int
    restarts_used: int
    restarts_left: int | None
    reason: str
    queue_position: int | None = None


@dataclass(frozen=True, slots=True)
class HostLine:
    """A host as one line. held: workers by job; unusable: reasons by device."""

    host: str
    address: str
    types: dict[str, int]
    held: dict[str, int]
    free: int
    unusable: dict[str, str]
    network: str = ""


@dataclass(frozen=True, slots=True)
class Speed:
    """A configuration of one job: what was measured there, what is predicted, and where the prediction comes from."""

    configuration: Configuration
    measured: float | None
    predicted: float | None
    low: float | None
    high: float | None
    source: str


def take_picture(store: Store, keys: Keys) -> Picture:
    """Read everything under the prefix once. Raises what the store raises."""
    decoded = SnapshotDecoder(keys).decode(store.read(keys.root))
    snapshot = decoded.snapshot
    profiles = [snapshot.profiles[name] for name in sorted(snapshot.profiles)]
    predictor = METHODS[DEFAULT](profiles, np.random.default_rng(0))
    most = CoordinatorSettings().most_workers
    return Picture(snapshot, refresh(Table(), snapshot, predictor, most), decoded.problems)


def job_lines(picture: Picture) -> list[JobLine]:
    """Every job, live ones first, then by id."""
    lines = [job_line(picture, view) for view in picture.snapshot.jobs.values() if view.spec is not None]
    ended = {Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED}
    return sorted(lines, key=lambda line: (line.phase in ended, line.job))


def job_line(picture: Picture, view: JobView) -> JobLine:
    """One job."""
    assert view.spec is not None
    spec = view.spec.record
    allocation = view.allocation.record if view.allocation else None
    row = picture.table.rows.get(view.job)
    total = spec.total_work if spec.total_work is not None else (row.total if row else None)
    used = allocation.restarts_used if allocation else 0
    budgets = [a.record.max_restarts for a in view.agents.values()]
    running = allocation if view.result is None else None
    status = view.status.record if view.status else None
    phase = view.result.record.outcome if view.result else str(status.phase) if status else "waiting"
    reason = view.result.record.reason if view.result else status.reason if status else NO_WORD
    return JobLine(
        job=view.job,
        name=spec.name,
        phase=phase,
        workers=running.world_size if running else 0,
        where=where_of(running),
        speed=_speed(row, running),
        unit=spec.work_unit,
        share=min(row.done / total, 1.0) if row and total else None,
        agents=len(view.agents),
        restarts_used=used,
        restarts_left=max(0, min(budgets) - used) if budgets else None,
        reason=reason,
        queue_position=status.queue_position if status and not view.result else None,
    )


def where_of(allocation: Allocation | None) -> str:
    """Hosts of a round with their number of workers: "a:2 b:1"."""
    if allocation is None:
        return ""
    counts: dict[str, int] = {}
    for member in allocation.members:
        counts[member.host] = counts.get(member.host, 0) + len(member.gpus)
    return " ".join(f"{host}:{n}" for host, n in counts.items())


def _speed(row: Row | None, allocation: Allocation | None) -> float | None:
    if row is None or allocation is None or allocation.configuration is None:
        return None
    cell = dict(row.cells).get(allocation.configuration)
    return cell.throughput if cell else None


def host_lines(picture: Picture) -> list[HostLine]:
    """Every live host by name."""
    held: dict[str, dict[str, int]] = {}
    for job, view in sorted(picture.snapshot.jobs.items()):
        if view.allocation is None or view.result is not None:
            continue
        for member in view.allocation.record.members:
            here = held.setdefault(member.host, {})
            here[job] = here.get(job, 0) + len(member.gpus)
    return [_host_line(host, held.get(name, {})) for name, host in sorted(picture.snapshot.hosts.items())]


def _host_line(host: Host, held: dict[str, int]) -> HostLine:
    types: dict[str, int] = {}
    for gpu in host.gpus:
        types[gpu.host_type] = types.get(gpu.host_type, 0) + 1
    unusable = {g.uuid: g.unusable for g in host.gpus if g.unusable is not None}
    free = max(0, len(host.gpus) - len(unusable) - sum(held.values()))
    return HostLine(host.name, host.address, types, held, free, unusable)


def speeds(picture: Picture, job: str, most: int = 16) -> list[Speed]:
    """Measured and predicted speed of a job in configurations of up to `most` workers, powers of two and measured."""
    row, axes = picture.table.rows.get(job), picture.table.axes
    if row is None:
        return []
    cells = dict(row.cells)
    found: dict[Configuration, Speed] = {}
    for h, (kind, per_host) in enumerate(zip(axes.host_types, axes.per_host_H, strict=True)):
        for workers in range(1, min(most, axes.workers) + 1):
            configuration = Configuration(kind, workers, -(-workers // per_host))
            if workers & (workers - 1) == 0 or configuration in cells:
                found[configuration] = _predicted(row, h, configuration)
    for configuration, cell in cells.items():
        known = found.get(configuration)
        found[configuration] = Speed(
            configuration,
            cell.throughput,
            known.predicted if known else None,
            known.low if known else None,
            known.high if known else None,
            "measured",
        )
    return [found[c] for c in sorted(found)]


def _predicted(row: Row, h: int, configuration: Configuration) -> Speed:
    w = configuration.workers - 1
    speed, std = float(row.throughput_HWS[h, w, DENSE]), float(row.log_std_HW[h, w])
    if not speed > 0:
        return Speed(configuration, None, None, None, None, "closed to this job")
    factor = float(np.exp(1.2816 * std))
    source = Source(int(row.source_HWS[h, w, DENSE])).name.lower()
    return Speed(configuration, None, speed, speed / factor, speed * factor, source)
