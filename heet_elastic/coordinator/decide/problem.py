"""The policy's Problem: the demands of all jobs that want something, stacked into arrays on the table's axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from heet_elastic.coordinator.api import Axes, Entry, FloatArray, Row, Table
from heet_elastic.coordinator.decide import accounts
from heet_elastic.coordinator.decide.demand import Demand
from heet_elastic.coordinator.decide.devices import Inventory
from heet_elastic.coordinator.decide.look import Look
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Profile
from heet_elastic.predictor.api import Source
from heet_elastic.scheduler.api import DENSE, BoolArray, IntArray, Problem

UNKNOWN_WORK_S = 600.0
"""A job about whose work nothing at all is known is taken to need this long on one worker."""


def build_problem(
    demands: Sequence[Demand],
    look: Look,
    table: Table,
    profiles: Mapping[str, Profile],
    settings: CoordinatorSettings,
) -> Problem:
    """The problem of these demands, in their order. A job without a row in the table is scaled by a neutral guess."""
    axes = table.axes
    types = {h: i for i, h in enumerate(axes.host_types)}
    inventory, now = look.inventory, look.now
    groups = inventory.groups
    blank = blank_row(axes)
    rows = [table.rows.get(d.state.job, blank) for d in demands]
    entries = [look.entries[d.state.job] for d in demands]
    known = [e.account for e in entries]
    speed_JHWS = np.stack([r.throughput_HWS for r in rows])
    gpus_G = np.array([len(g.devices) for g in groups], dtype=np.int64)
    _add_blocked(gpus_G, demands, inventory)
    limit_JG = np.stack([d.limit_G for d in demands])
    return Problem(
        jobs=tuple(d.state.job for d in demands),
        host_types=axes.host_types,
        groups=tuple(g.host for g in groups),
        group_type_G=np.array([types[g.host_type] for g in groups], dtype=np.int64),
        group_gpus_G=gpus_G,
        throughput_JHWS=speed_JHWS,
        log_std_JHW=np.stack([r.log_std_HW for r in rows]),
        remaining_J=remaining_J(demands, rows, speed_JHWS, profiles),
        min_J=_ints(d.least for d in demands),
        max_J=np.minimum(_ints(d.most for d in demands), max(axes.workers, 1)),
        allowed_JW=_allowed_JW(demands, axes.workers),
        limit_JG=None if (limit_JG >= gpus_G).all() else limit_JG,
        per_host_J=_ints(d.per_host for d in demands),
        min_hosts_J=_ints(d.least_hosts for d in demands),
        max_hosts_J=_ints(d.most_hosts for d in demands),
        requested_J=_ints(d.requested for d in demands),
        priority_J=np.array([d.state.priority for d in demands]),
        age_s_J=np.array([e.account.age_s + now - e.at for e in entries]),
        waited_s_J=np.array([accounts.waited_s(e, d.state, now) for e, d in zip(entries, demands, strict=True)]),
        received_s_JH=_received_JH(demands, entries, types, look),
        since_rescale_s_J=np.array([accounts.since_rescale_s(e, now) for e in entries]),
        rescale_up_s_J=_known((a.rescale_up_s for a in known), settings.rescale_up_s),
        rescale_down_s_J=_known((a.rescale_down_s for a in known), settings.rescale_down_s),
        rescales_J=_ints(a.rescales for a in known),
        frozen_J=np.array([d.frozen for d in demands], dtype=bool),
        current=tuple(d.current for d in demands),
    )


def blank_row(axes: Axes) -> Row:
    """The row of a job about which nothing is known: the same everywhere, growing as w^0.85."""
    counts = np.arange(1, axes.workers + 1, dtype=np.float64) ** 0.85
    shape = (len(axes.host_types), axes.workers)
    speed = np.broadcast_to(counts[None, :, None], (*shape, 2))
    return Row(speed, np.full(shape, 3.0), np.full((*shape, 2), int(Source.PRIOR), dtype=np.int8))


def _ints(values: object) -> IntArray:
    return np.array(list(values), dtype=np.int64)  # type: ignore[call-overload]


def _known(values: Iterable[float | None], default: float) -> FloatArray:
    return np.array([default if v is None else v for v in values], dtype=np.float64)


def _add_blocked(gpus_G: IntArray, demands: Sequence[Demand], inventory: Inventory) -> None:
    """A frozen job may hold a device that is not granted any more: it counts as long as the job has it."""
    for demand in demands:
        for member in demand.state.members if demand.frozen and inventory.blocked else ():
            for gpu in member.gpus:
                if (member.host, gpu) in inventory.blocked:
                    gpus_G[inventory.index[member.host, inventory.type_of[member.host, gpu]]] += 1


def _allowed_JW(demands: Sequence[Demand], workers: int) -> BoolArray:
    allowed = np.ones((len(demands), workers), dtype=bool)
    counts = np.arange(1, workers + 1)
    for j, demand in enumerate(demands):
        spec = demand.state.spec
        if demand.exact:
            allowed[j] = counts == demand.exact
        elif spec is not None and not demand.per_host:
            if spec.multiple_of > 1:
                allowed[j] &= counts % spec.multiple_of == 0
            if spec.allowed_workers:
                allowed[j] &= np.isin(counts, spec.allowed_workers)
    return allowed


def _received_JH(
    demands: Sequence[Demand], entries: Sequence[Entry], types: Mapping[str, int], look: Look
) -> FloatArray:
    received = np.zeros((len(demands), len(types)))
    for j, (demand, entry) in enumerate(zip(demands, entries, strict=True)):
        for kind, seconds in entry.account.received_s:
            if kind in types:
                received[j, types[kind]] = seconds
        if look.now > entry.at:
            for kind, gpus in accounts.gpus_by_type(demand.state, look.inventory.type_of).items():
                if kind in types:
                    received[j, types[kind]] += gpus * (look.now - entry.at)
    return received


def remaining_J(
    demands: Sequence[Demand], rows: Sequence[Row], speed_JHWS: FloatArray, profiles: Mapping[str, Profile]
) -> FloatArray:
    """Work units left. Unknown: what past jobs of its name needed, else as much again as it has done, else a guess."""
    single_J = speed_JHWS[:, :, 0, DENSE].max(axis=1, initial=0.0) if speed_JHWS.size else np.zeros(len(demands))
    remaining = np.empty(len(demands))
    for j, (demand, row) in enumerate(zip(demands, rows, strict=True)):
        spec = demand.state.spec
        total = row.total if row.total is not None or spec is None else spec.total_work
        past = profiles.get(demand.state.job if spec is None or not spec.name else spec.name)
        if total is not None:
            left = total - row.done
        elif past is not None and past.work is not None and past.work > row.done:
            left = past.work - row.done
        elif row.done > 0:
            left = row.done
        else:
            left = UNKNOWN_WORK_S * max(float(single_J[j]), 1e-9)
        # A job past its stated work is not over before it says so: it keeps a sliver, and so its place.
        remaining[j] = max(left, 1e-6 * max(total or 1.0, 1.0))
    return remaining
