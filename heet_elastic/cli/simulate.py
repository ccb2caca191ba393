"""`heet simulate`: what a policy would do to a cluster's jobs, from tables and traces or from the cluster itself."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.simulation_view import show, silent_solvers, watched
from heet_elastic.errors import UsageError
from heet_elastic.model import Snapshot
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.scheduler.policies import DEFAULT_POLICY, POLICIES
from heet_elastic.simulator.jobs import JobOptions, dump_jobs
from heet_elastic.simulator.metrics import compare
from heet_elastic.simulator.report import to_json, write_folder
from heet_elastic.simulator.scenario import DEFAULT_CLUSTER, SYNTHETIC, Scenario, from_files, from_live
from heet_elastic.simulator.settings import Costs, Failures, SimulationSettings
from heet_elastic.simulator.sweep import check_policies, sweep
from heet_elastic.store.snapshot import SnapshotDecoder

WIDTH = 120
"""Columns of the table where the output is no terminal."""


def simulate(
    access: Access,
    more_tables: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further tables for --throughputs.")
    ] = None,
    throughputs: Annotated[
        list[Path] | None,
        typer.Option(help="Tables of true speeds (csv, or Gavel's JSON); several allowed. Default: generated."),
    ] = None,
    trace: Annotated[
        str, typer.Option(help="Jobs: a trace file, or 'synthetic'. Own, Gavel, Philly, Helios, Alibaba formats.")
    ] = SYNTHETIC,
    cluster: Annotated[
        str | None, typer.Option(help=f"Hosts: TYPE:HOSTSxGPUS,... (with --from-cluster: added). [{DEFAULT_CLUSTER}]")
    ] = None,
    from_cluster: Annotated[
        bool, typer.Option("--from-cluster", help="Start from the live jobs, hosts and learned table.")
    ] = False,
    policy: Annotated[
        str, typer.Option(help=f"Policies to compare, by commas: {', '.join(POLICIES)}.")
    ] = DEFAULT_POLICY,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of jobs; a shorter trace is run again.")] = None,
    load: Annotated[
        float | None, typer.Option(help="Rescale arrivals to this share of the cluster's capacity.")
    ] = None,
    rigid: Annotated[float | None, typer.Option(help="Share of jobs that take what they request or wait.")] = None,
    max_workers: Annotated[int | None, typer.Option(min=1, help="Most workers of an elastic job.")] = None,
    error: Annotated[float, typer.Option(help="Every prediction is off by this share, up or down.")] = 0.0,
    noise: Annotated[float, typer.Option(help="Relative error of a measured speed.")] = 0.02,
    predictor: Annotated[
        str, typer.Option(help="How heet's own policies predict; 'true' = perfect curves for them too.")
    ] = DEFAULT_PREDICTOR,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, paired over policies.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    interval: Annotated[
        float | None, typer.Option(help="Longest time between decisions; default: the policy's.")
    ] = None,
    scale_up_s: Annotated[float, typer.Option(help="Cost of starting or growing a job.")] = 9.0,
    scale_down_s: Annotated[float, typer.Option(help="Cost of shrinking a job.")] = 1.5,
    migrate_s: Annotated[float | None, typer.Option(help="Cost of changing the host type; default: scale-up.")] = None,
    cost_spread: Annotated[float, typer.Option(help="Sigma of a log-normal factor on each job's costs.")] = 0.0,
    checkpoint_interval_s: Annotated[
        float, typer.Option(help="A restart loses the work since the last checkpoint; 0 = nothing is lost.")
    ] = 0.0,
    host_mtbf_s: Annotated[float, typer.Option(help="Mean time between failures of a host; 0 = never.")] = 0.0,
    host_repair_s: Annotated[float, typer.Option(help="Time until a failed host is back.")] = 3600.0,
    fence_time_s: Annotated[
        float, typer.Option(help="A lost host's agents count as stopped after this time; 0 = only when it is back.")
    ] = 0.0,
    history: Annotated[bool, typer.Option(help="Let profiles of ended jobs help to predict later ones.")] = True,
    lower_bound: Annotated[bool, typer.Option(help="Compute the lower bound on the mean completion time.")] = True,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes; default: all cores.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for JSON, CSV, event logs and plots.")] = None,
    dump_jobs_to: Annotated[
        Path | None, typer.Option("--dump-jobs", help="Write the resolved jobs of the first seed as a trace.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out, and count them.")] = False,
    list_policies: Annotated[bool, typer.Option("--list-policies", help="Print the policies and end.")] = False,
) -> None:
    """Replay jobs on a simulated cluster under one or several policies and compare them."""
    if list_policies:
        print("\n".join(POLICIES))
        return
    names = check_policies([p.strip() for p in policy.split(",") if p.strip()])
    if from_cluster:
        scenario = from_live(_snapshot(access), predictor, cluster)
        predictor = "true"  # the learned table is the truth here, for every policy alike
    else:
        tables = [*(throughputs or []), *(more_tables or [])]
        wanted = JobOptions(jobs, load, rigid, max_workers)
        seed_range = range(first_seed, first_seed + seeds)
        scenario = from_files(tables, trace, cluster or DEFAULT_CLUSTER, wanted, seed_range, skip_bad)
    settings = SimulationSettings(
        costs=Costs(scale_up_s, scale_down_s, migrate_s, checkpoint_interval_s, cost_spread),
        failures=Failures(host_mtbf_s, host_repair_s, fence_time_s),
        interval_s=interval,
        predictor=predictor,
        error=error,
        noise=noise,
        history=history,
    )
    if dump_jobs_to is not None:
        dump_jobs(dump_jobs_to, next(iter(scenario.jobs.values())))
    _run(scenario, names, settings, processes, lower_bound, as_json, out)


def _run(
    scenario: Scenario,
    names: tuple[str, ...],
    settings: SimulationSettings,
    processes: int | None,
    lower_bound: bool,
    as_json: bool,
    out: Path | None,
) -> None:
    with silent_solvers(), watched(Console(stderr=True)) as progress:
        runs, bounds = sweep(scenario, names, settings, processes, progress, lower_bound)
    said = [*scenario.notes, *dict.fromkeys(n for r in runs for n in r.notes)]
    comparison = compare(runs, names, bounds, said)
    if out is not None:
        write_folder(out, comparison, runs, scenario.jobs, shlex.join(["heet", *sys.argv[1:]]))
    if as_json:
        print(to_json(comparison))
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
        show(console, comparison, scenario.title, names)
    if not comparison.figures:
        raise UsageError("interrupted before any seed was complete for every policy: nothing to compare")


def _snapshot(access: Access) -> Snapshot:
    store = open_store(access)
    try:
        return SnapshotDecoder(access.keys).decode(store.read(access.keys.root)).snapshot
    finally:
        store.close()
