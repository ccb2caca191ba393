"""A running cluster as the start of a simulation: its hosts, its jobs where they run now, and its learned table.

The learned table stands for the truth: what the predictor says of each job, measured cells as measured, is what the
simulated job does. So the answer is about policies and hosts, as far as the predictions are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heet_elastic.coordinator.api import Axes, Row, Table
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.errors import UsageError
from heet_elastic.model import Host, JobView, Snapshot
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Source
from heet_elastic.scheduler.api import DENSE, SPREAD
from heet_elastic.simulator import truth as true
from heet_elastic.simulator.cluster import HostGroup, build_hosts
from heet_elastic.simulator.jobs import SimJob

Placed = Mapping[str, Mapping[str, tuple[str, ...]]]
"""job -> host -> devices that it holds there."""

UNKNOWN_WORK_S = 3600.0
"""A job about whose work nothing is known is taken to need this long on one worker of the fastest type that is there
(added hosts do not count: they must not change what there is to do)."""
MOST_WORKERS = 256


@dataclass(frozen=True, slots=True)
class LiveStart:
    """What a simulation starts from. `notes` say what was assumed."""

    hosts: Mapping[str, Host]
    jobs: tuple[SimJob, ...]
    truth: true.Truth
    placed: Placed
    notes: tuple[str, ...]


def start_from(snapshot: Snapshot, predictor: str, more: Sequence[HostGroup] = ()) -> LiveStart:
    """The start that a snapshot of the store gives, with `more` hosts added. UsageError without hosts or live jobs."""
    hosts = {name: _usable(host) for name, host in snapshot.hosts.items()}
    for name, host in build_hosts(more).items():
        hosts[f"added {name}"] = replace(host, name=f"added {name}")
    live = {j: v for j, v in sorted(snapshot.jobs.items()) if v.spec is not None and v.result is None}
    if not any(h.gpus for h in hosts.values()):
        raise UsageError("the cluster has no host with a usable device: nothing to simulate")
    if not live:
        raise UsageError("the cluster has no live job: nothing to simulate")
    shown = Snapshot(snapshot.revision, hosts=hosts, jobs=live, profiles=snapshot.profiles)
    history = [snapshot.profiles[n] for n in sorted(snapshot.profiles)]
    table = refresh(Table(), shown, METHODS[predictor](history, np.random.default_rng(0)), MOST_WORKERS)
    notes = [
        "speeds are the cluster's learned table: measured where measured, else predicted",
        "every job may run on every host",
    ]
    jobs, guessed = [], []
    for job, view in live.items():
        row = table.rows[job]
        work, known = _left(view, row, snapshot, table.axes)
        if not known:
            guessed.append(job)
        jobs.append(_sim_job(job, view, work, hosts))
    if guessed:
        shown_names = ", ".join(guessed[:3]) + (f" and {len(guessed) - 3} more" if guessed[3:] else "")
        notes.append(f"how much work is left is a guess for {shown_names}: nothing states or tells it")
    prior = sorted(set.intersection(*(set(_by_prior(r, table.axes)) for r in table.rows.values())))
    if prior:
        notes.append(f"nothing was measured by any of its jobs on {', '.join(prior)}: speeds there are a prior")
    rows = [_true_row(job, table.rows[job], table.axes) for job in live]
    return LiveStart(hosts, tuple(jobs), true.Truth(rows), _placed(live, hosts), tuple(notes))


def _usable(host: Host) -> Host:
    return Host(
        name=host.name,
        gpus=tuple(g for g in host.gpus if g.unusable is None),
        address=host.address,
        boot_id=host.boot_id,
        agents=host.agents,
    )


def _by_prior(row: Row, axes: Axes) -> list[str]:
    return [t for h, t in enumerate(axes.host_types) if (row.source_HWS[h] == int(Source.PRIOR)).all()]


def _left(view: JobView, row: Row, snapshot: Snapshot, axes: Axes) -> tuple[float, bool]:
    """(work left, whether anything but a guess says so)."""
    assert view.spec is not None
    spec = view.spec.record
    total = row.total if row.total is not None else spec.total_work
    if total is None and (past := snapshot.profiles.get(spec.name or spec.job)) is not None:
        total = past.work
    if total is not None and total > row.done:
        return total - row.done, True
    if row.done > 0:
        return row.done, False
    here = {g.host_type for host in snapshot.hosts.values() for g in host.gpus}
    speed_H = row.throughput_HWS[:, 0, DENSE]
    present = [float(v) for kind, v in zip(axes.host_types, speed_H, strict=True) if kind in here]
    return UNKNOWN_WORK_S * max(present, default=float(speed_H.max())), False


def _sim_job(job: str, view: JobView, work: float, hosts: Mapping[str, Host]) -> SimJob:
    assert view.spec is not None
    spec = view.spec.record
    now = view.allocation.record.world_size if view.allocation is not None else 0
    total = sum(len(h.gpus) for h in hosts.values())
    least = max(spec.min_workers, spec.min_hosts)
    most = min(spec.max_workers or total, total)
    if spec.rigid:
        each = max((v.record.most_workers for v in view.agents.values()), default=1)
        least = most = now or each * spec.min_hosts
    return SimJob(
        job=job,
        row=job,
        total_work=max(work, 1e-9),
        requested=spec.requested_workers or now or least,
        submit_s=0.0,
        min_workers=least,
        max_workers=max(least, most),
        rigid=spec.rigid,
        priority=spec.priority,
    )


def _true_row(job: str, row: Row, axes: Axes) -> true.Row:
    """The row's dense and spread speeds as cells of a true table."""
    cells: dict[str, true.Cells] = {}
    for h, (host_type, per_host) in enumerate(zip(axes.host_types, axes.per_host_H, strict=True)):
        here = cells.setdefault(host_type, {})
        for w in range(1, axes.workers + 1):
            dense = -(-w // per_host)
            here[w, min(dense + 1, w)] = float(row.throughput_HWS[h, w - 1, SPREAD])
            here[w, dense] = float(row.throughput_HWS[h, w - 1, DENSE])
    return true.Row(job, job, "work/s", cells)


def _placed(live: Mapping[str, JobView], hosts: Mapping[str, Host]) -> Placed:
    """Where each job runs now, without devices that are not there (any more)."""
    known = {(name, g.uuid) for name, h in hosts.items() for g in h.gpus}
    placed: dict[str, dict[str, tuple[str, ...]]] = {}
    for job, view in live.items():
        for member in view.allocation.record.members if view.allocation is not None else ():
            devices = tuple(d for d in member.gpus if (member.host, d) in known)
            if devices:
                here = placed.setdefault(job, {})
                here[member.host] = here.get(member.host, ()) + devices
    return placed
