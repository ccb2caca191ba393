"""What an evaluation is about: true speeds, hosts, and the jobs of every seed; from files, generators or a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heet_elastic.errors import UsageError
from heet_elastic.model import Host, Snapshot
from heet_elastic.simulator.cluster import (
    HostGroup,
    build_hosts,
    format_cluster,
    gpus_by_type,
    match_types,
    parse_cluster,
)
from heet_elastic.simulator.generate import generated_truth, synthetic_trace
from heet_elastic.simulator.jobs import JobOptions, SimJob, resolve_jobs
from heet_elastic.simulator.live import Placed, start_from
from heet_elastic.simulator.tables import load_truth
from heet_elastic.simulator.traces import Trace, read_trace
from heet_elastic.simulator.truth import Truth

DEFAULT_CLUSTER = "T4:6x4,V100:4x8,A100:2x8"
SYNTHETIC = "synthetic"
SYNTHETIC_JOBS = 200


@dataclass(frozen=True, slots=True)
class Scenario:
    """jobs: by seed. placed: where jobs run at the start. title: the cluster in words. notes: what was assumed."""

    truth: Truth
    hosts: Mapping[str, Host]
    jobs: Mapping[int, tuple[SimJob, ...]]
    placed: Placed
    title: str
    notes: tuple[str, ...]


def from_files(
    tables: Sequence[Path],
    trace: str,
    cluster: str,
    wanted: JobOptions,
    seeds: Sequence[int],
    skip_bad: bool = False,
) -> Scenario:
    """A scenario of measured tables (none: generated speeds) and a trace (or "synthetic"), for every seed.

    A synthetic trace is drawn anew for every seed and brought to load 1 unless another is asked for.
    Raises UsageError for whatever is wrong with files, cluster, load or shares.
    """
    _check_shares(wanted)
    groups = parse_cluster(cluster)
    if tables:
        truth, notes = load_truth(tables, skip_bad)
        groups = match_types(groups, truth.types)
    else:
        truth, notes = generated_truth(groups), ("speeds are generated from datasheets (no --throughputs)",)
    said = list(notes)
    read = None
    if trace == SYNTHETIC:
        wanted = replace(wanted, load=wanted.load if wanted.load is not None else 1.0)
    else:
        read = read_trace(Path(trace), skip_bad)
        said += _about(read)
    jobs = {}
    for seed in seeds:
        entries = read or synthetic_trace(wanted.jobs or SYNTHETIC_JOBS, seed, max(g.gpus for g in groups))
        found = resolve_jobs(entries, truth, groups, replace(wanted, seed=seed), skip_bad)
        jobs[seed] = found.jobs
        if seed == seeds[0]:
            said += [f"offered load {found.load:.2f}", *found.notes]
    return Scenario(truth, build_hosts(groups), jobs, {}, format_cluster(groups), tuple(said))


def from_live(snapshot: Snapshot, predictor: str, more: str | None) -> Scenario:
    """A scenario of a running cluster, with the hosts of the cluster text `more` added. UsageError as `start_from`."""
    groups: tuple[HostGroup, ...] = ()
    if more is not None:
        here = {g.host_type for h in snapshot.hosts.values() for g in h.gpus}
        spelling = {t.casefold(): t for t in here}
        groups = tuple(
            replace(g, host_type=spelling.get(g.host_type.casefold(), g.host_type)) for g in parse_cluster(more)
        )
    start = start_from(snapshot, predictor, groups)
    title = ", ".join(f"{n} x {t}" for t, n in gpus_by_type(start.hosts).items())
    return Scenario(start.truth, start.hosts, {0: start.jobs}, start.placed, title, start.notes)


def _about(trace: Trace) -> list[str]:
    said = []
    if trace.bad:
        first = trace.bad[0]
        said.append(f"{len(trace.bad)} bad rows left out, the first at line {first.line}: {first.reason}")
    return said + [f"{n} rows left out: {reason}" for reason, n in trace.left_out.items()]


def _check_shares(wanted: JobOptions) -> None:
    if wanted.load is not None and not 0 < wanted.load < 1e6:
        raise UsageError(f"--load is {wanted.load}: expected a number > 0, e.g. 1.0 for as much as the cluster can do")
    if wanted.rigid is not None and not 0 <= wanted.rigid <= 1:
        raise UsageError(f"--rigid is {wanted.rigid}: expected a share from 0 to 1")
