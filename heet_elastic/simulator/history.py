"""A cluster's own history as a trace, and what it learned of its jobs as a table of throughputs.

The history is what the store still holds: live jobs, and ended ones until their retention ends. A job's submission is
the moment at which a coordinator first saw it (`Account.first_seen`); its work is what it did, or what it is to do.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heet_elastic.coordinator.decide.table import axes_of, predict_rows
from heet_elastic.errors import UsageError
from heet_elastic.model import Cell, Configuration, JobSpec, JobView, Snapshot, WorkUnit
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Observations
from heet_elastic.predictor.samples import merge, work
from heet_elastic.scheduler.api import DENSE, SPREAD
from heet_elastic.simulator.jobs import DUMP_COLUMNS, SimJob, dump_rows

TABLE_COLUMNS = ("job", "model", "gpu_type", "workers", "nodes", "throughput", "unit")
MOST_WORKERS = 256
NOT_SEEN = "no coordinator has noted when it came"
NO_WORK = "nothing states or tells how much work it did"


@dataclass(frozen=True, slots=True)
class Past:
    """The jobs by submission (the first at 0 s; `row` is the name of the job's profile), and how many are left out."""

    jobs: tuple[SimJob, ...]
    left_out: tuple[tuple[str, int], ...]


def history_of(snapshot: Snapshot) -> Past:
    """Every job of the store of which enough is known. UsageError when there is none."""
    found: list[SimJob] = []
    left_out: Counter[str] = Counter()
    for _, view in sorted(snapshot.jobs.items()):
        job = _past_job(view, snapshot)
        if isinstance(job, str):
            left_out[job] += 1
        else:
            found.append(job)
    if not found:
        reasons = "; ".join(f"{n}: {reason}" for reason, n in left_out.items()) or "it has no job"
        raise UsageError(f"the store holds no job that could go into a trace ({reasons})")
    first = min(j.submit_s for j in found)
    moved = [replace(j, submit_s=j.submit_s - first) for j in found]
    return Past(tuple(sorted(moved, key=lambda j: (j.submit_s, j.job))), tuple(left_out.items()))


def trace_csv(jobs: Sequence[SimJob]) -> str:
    """The jobs as a trace that `heet simulate --trace` takes as it is."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(DUMP_COLUMNS)
    writer.writerows(dump_rows(jobs))
    return out.getvalue()


def learned_csv(snapshot: Snapshot, jobs: Sequence[SimJob], predictor: str) -> str:
    """Throughputs of the rows that `jobs` name, for `heet simulate --throughputs`: measured, else predicted.

    One line for each host type and power-of-two worker count, on the fewest hosts and on one more.
    """
    axes = axes_of(snapshot.hosts, MOST_WORKERS)
    if not axes.host_types:
        raise UsageError("no host is up: what was learned is about host types, and there is none")
    names = list(dict.fromkeys(j.row for j in jobs))
    known = {_row_name(v.spec.record): v for _, v in sorted(snapshot.jobs.items()) if v.spec is not None}
    asked = [_observed(name, known.get(name), snapshot) for name in names]
    history = [snapshot.profiles[n] for n in sorted(snapshot.profiles)]
    rows = predict_rows(axes, METHODS[predictor](history, np.random.default_rng(0)), asked)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(TABLE_COLUMNS)
    counts = sorted({2**k for k in range(axes.workers.bit_length())} & set(range(1, axes.workers + 1)) | {axes.workers})
    for job, (speed_HWS, _, _) in zip(asked, rows, strict=True):
        for h, (kind, per_host) in enumerate(zip(axes.host_types, axes.per_host_H, strict=True)):
            for w in counts:
                dense = -(-w // per_host)
                for hosts, s in {min(dense + 1, w): SPREAD, dense: DENSE}.items():
                    speed = repr(float(speed_HWS[h, w - 1, s]))
                    writer.writerow([job.name, job.family or job.name, kind, w, hosts, speed, f"{job.work_unit}/s"])
    return out.getvalue()


def _row_name(spec: JobSpec) -> str:
    return spec.name or spec.job


def _past_job(view: JobView, snapshot: Snapshot) -> SimJob | str:
    """The job as it was, or why it cannot be told."""
    if view.spec is None:
        return "its description is missing"
    spec = view.spec.record
    account = None if view.account is None else view.account.record
    if account is None or account.first_seen is None:
        return NOT_SEEN
    done = _work_of(view, spec, snapshot)
    if done is None:
        return NO_WORK
    held = sum(s for _, s in account.received_s) / account.ran_s if account.ran_s > 0 else 0.0
    least = max(spec.min_workers, spec.min_hosts)
    requested = max(least, spec.requested_workers or least)
    if spec.rigid:
        least = requested = max(round(held), spec.requested_workers or least)
    total = sum(len(h.gpus) for h in snapshot.hosts.values())
    most = requested if spec.rigid else max(spec.max_workers or total, requested)
    return SimJob(
        view.job, _row_name(spec), done, requested, account.first_seen, least, most, spec.rigid, spec.priority
    )


def _work_of(view: JobView, spec: JobSpec, snapshot: Snapshot) -> float | None:
    """Work units: of a job that has ended what it did, else what it is to do; None = nobody knows."""
    position = work(list(view.samples.values()), spec.work_unit, spec.total_work)
    result = None if view.result is None else view.result.record
    past = snapshot.profiles.get(_row_name(spec))
    choices = [position.total, spec.total_work]
    if result is not None:
        succeeded = result.outcome == "succeeded"
        choices = [result.work_done, position.done, *(choices if succeeded else [])]
    choices.append(None if past is None or result is not None else past.work)
    return next((c for c in choices if c is not None and c > 0), None)


def _observed(name: str, view: JobView | None, snapshot: Snapshot) -> Observations:
    """What is known of the speeds of jobs of this name: their profile's cells, else those of the last such job."""
    past = snapshot.profiles.get(name)
    unit: WorkUnit = "steps" if past is None else past.work_unit
    cells: tuple[tuple[Configuration, Cell], ...] = () if past is None else past.cells
    family, features = ("", None) if past is None else (past.family, past.features)
    if view is not None and view.spec is not None:
        spec = view.spec.record
        unit, family = spec.work_unit, spec.script
        cells = cells or tuple(sorted(merge(list(view.samples.values()), unit, spec.total_work).items()))
    return Observations(name, name, family, cells, features, unit)
