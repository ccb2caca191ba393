"""Two live copies of a job must be impossible: which hosts of a lost round may still run its workers.

As long as one member of the last round takes part in the next, the others' old workers end by collective failure. If
none does, each vanished host must be proven quiet: a new boot, a live process there that finds the devices unlocked,
the fence time (after which a cut-off agent stops its own workers), or a person's word (`heet release`).
"""

from __future__ import annotations

from collections.abc import Mapping

from heet_elastic.coordinator.api import Timer
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Host

NOBODY: frozenset[str] = frozenset()


def loud_hosts(
    state: JobState,
    hosts: Mapping[str, Host],
    timers: Mapping[tuple[str, ...], Timer],
    now: float,
    settings: CoordinatorSettings,
) -> frozenset[str]:
    """Hosts on which workers of the job's lost round may still run; empty when somebody of that round is left."""
    if not state.lost:
        return NOBODY
    loud = set()
    for host in {m.host for m in state.lost}:
        devices = {d for m in state.lost if m.host == host for d in m.gpus}
        if host not in state.released and not _quiet(host, devices, state.job, hosts, timers, now, settings):
            loud.add(host)
    return frozenset(loud)


def _quiet(
    host: str,
    devices: set[str],
    job: str,
    hosts: Mapping[str, Host],
    timers: Mapping[tuple[str, ...], Timer],
    now: float,
    settings: CoordinatorSettings,
) -> bool:
    timer = timers.get(("gone", job, host))
    since = now if timer is None else timer.since
    if settings.fence_time_s > 0 and now - since >= settings.fence_time_s + settings.ttl_s:
        return True
    live = hosts.get(host)
    if live is None:
        return False
    if timer is not None and timer.reason and live.boot_id and live.boot_id != timer.reason:
        return True
    # Idle agents report the locks that they find at least this often, so an older report has been replaced by now.
    return now - since >= settings.lock_report_s and not devices & live.locked


def proven_by_locks(state: JobState, loud: frozenset[str]) -> bool:
    """Whether an agent of the job offers itself on every loud host: there the devices' locks can prove it."""
    return loud <= {o.host for o in state.offers}
