"""`heet simulate`: what a policy would do to a cluster's jobs, from tables and traces or from the cluster itself."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.scheduler.policies import DEFAULT_POLICY, POLICIES
from heet_elastic.simulator.cluster import HostGroup, format_cluster, match_types, parse_cluster
from heet_elastic.simulator.generate import generated_truth, synthetic_trace
from heet_elastic.simulator.jobs import JobOptions, SimJob, dump_jobs, resolve_jobs
from heet_elastic.simulator.metrics import Comparison, compare
from heet_elastic.simulator.report import to_json, write_folder
from heet_elastic.simulator.settings import Costs, Failures, SimulationSettings
from heet_elastic.simulator.sweep import Progress, check_policies, sweep
from heet_elastic.simulator.tables import load_truth
from heet_elastic.simulator.traces import Trace, read_trace
from heet_elastic.simulator.truth import Truth

DEFAULT_CLUSTER = "T4:6x4,V100:4x8,A100:2x8"
SYNTHETIC = "synthetic"
SYNTHETIC_JOBS = 200


@dataclass(frozen=True, slots=True)
class Scenario:
    """Tables, trace and cluster of an evaluation, before seeds are drawn."""

    truth: Truth
    trace: Trace | None  # None = a synthetic one per seed
    cluster: tuple[HostGroup, ...]
    notes: tuple[str, ...]


def simulate(
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
    cluster: Annotated[str, typer.Option(help="Hosts: TYPE:HOSTSxGPUS,...")] = DEFAULT_CLUSTER,
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
    scenario = _scenario([*(throughputs or []), *(more_tables or [])], trace, cluster, skip_bad)
    costs = Costs(scale_up_s, scale_down_s, migrate_s, checkpoint_interval_s, cost_spread)
    settings = SimulationSettings(
        cluster=scenario.cluster,
        costs=costs,
        failures=Failures(host_mtbf_s, host_repair_s, fence_time_s),
        interval_s=interval,
        predictor=predictor,
        error=error,
        noise=noise,
        history=history,
    )
    _check_shares(load, rigid)
    wanted = JobOptions(jobs, load, rigid, max_workers)
    resolved, notes = _resolve(scenario, wanted, range(first_seed, first_seed + seeds), skip_bad)
    if dump_jobs_to is not None:
        dump_jobs(dump_jobs_to, resolved[first_seed])
    console = Console(stderr=True)
    with _watched(console, quiet=as_json and not sys.stderr.isatty()) as progress:
        runs, bounds = sweep(resolved, names, scenario.truth, settings, processes, progress, lower_bound)
    said = [*scenario.notes, *notes, *dict.fromkeys(n for r in runs for n in r.notes)]
    comparison = compare(runs, names, bounds, said)
    if out is not None:
        write_folder(out, comparison, runs, resolved, shlex.join(["heet", *sys.argv[1:]]))
    if as_json:
        print(to_json(comparison))
    else:
        _print(comparison, scenario, names)
    if not comparison.figures:
        raise UsageError("interrupted before any seed was complete: nothing to compare")


def _scenario(tables: Sequence[Path], trace: str, cluster: str, skip_bad: bool) -> Scenario:
    groups = parse_cluster(cluster)
    if tables:
        truth, notes = load_truth(tables, skip_bad)
        groups = match_types(groups, truth.types)
    else:
        truth, notes = generated_truth(groups), ("speeds are generated from datasheets (no --throughputs)",)
    read = None if trace == SYNTHETIC else read_trace(Path(trace), skip_bad)
    said = list(notes)
    if read is not None:
        if read.bad:
            said.append(
                f"{len(read.bad)} bad rows left out, the first at line {read.bad[0].line}: {read.bad[0].reason}"
            )
        said += [f"{n} rows left out: {reason}" for reason, n in read.left_out.items()]
    return Scenario(truth, read, groups, tuple(said))


def _check_shares(load: float | None, rigid: float | None) -> None:
    if load is not None and not 0 < load < 1e6:
        raise UsageError(f"--load is {load}: expected a number > 0, e.g. 1.0 for as much work as the cluster can do")
    if rigid is not None and not 0 <= rigid <= 1:
        raise UsageError(f"--rigid is {rigid}: expected a share from 0 to 1")


def _resolve(
    scenario: Scenario, wanted: JobOptions, seeds: range, skip_bad: bool
) -> tuple[dict[int, tuple[SimJob, ...]], list[str]]:
    resolved, notes = {}, []
    largest = max(g.gpus for g in scenario.cluster)
    for seed in seeds:
        trace = scenario.trace or synthetic_trace(wanted.jobs or SYNTHETIC_JOBS, seed, largest)
        options = JobOptions(wanted.jobs, wanted.load, wanted.rigid, wanted.max_workers, seed)
        if scenario.trace is None and wanted.load is None:
            options = JobOptions(wanted.jobs, 1.0, wanted.rigid, wanted.max_workers, seed)
        found = resolve_jobs(trace, scenario.truth, scenario.cluster, options, skip_bad)
        resolved[seed] = found.jobs
        if seed == seeds[0]:
            notes = [f"offered load {found.load:.2f}", *found.notes]
    return resolved, notes


@contextmanager
def _watched(console: Console, quiet: bool) -> Iterator[Progress]:
    """A progress callback with a bar on stderr; ctrl-C asks to stop and keeps what is done."""
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            raise KeyboardInterrupt
        stopping = True

    before = signal.signal(signal.SIGINT, stop)
    columns = (TextColumn("simulating"), BarColumn(), TextColumn("{task.percentage:>5.1f} %"), TimeRemainingColumn())
    try:
        with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
            task = bar.add_task("simulating", total=1.0)
            shown = -1.0

            def progress(share: float) -> bool:
                nonlocal shown
                if share - shown > 0.001:
                    shown = share
                    bar.update(task, completed=share)
                return stopping

            yield progress
    finally:
        signal.signal(signal.SIGINT, before)


def _print(comparison: Comparison, scenario: Scenario, names: Sequence[str]) -> None:
    console = Console()
    table = Table(title=f"{comparison.jobs} jobs, {comparison.seeds} seeds, {format_cluster(scenario.cluster)}")
    heads = ("policy", "mean", "median", "p99", "makespan", "efficiency", "starved", "rescales", "decision")
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right")
    table.add_column(f"mean / {names[0]}", justify="right")
    for name, f in comparison.figures.items():
        ratio = comparison.ratios[name]
        table.add_row(
            name,
            duration(f["mean_jct_s"]),
            duration(f["median_jct_s"]),
            duration(f["p99_jct_s"]),
            duration(f["makespan_s"]),
            f"{f['efficiency']:.2f}",
            f"{f['starvation']:.1%}",
            f"{f['rescales_per_job']:.1f}",
            f"{1e3 * f['decision_s_mean']:.1f} ms",
            f"{ratio.mean:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        )
    console.print(table)
    if comparison.lower_bound_s is not None and comparison.figures:
        first = comparison.figures[names[0]]["mean_jct_s"]
        console.print(
            f"no schedule has a mean below {duration(comparison.lower_bound_s)} "
            f"({names[0]} is at {first / comparison.lower_bound_s:.2f} times that)"
        )
    for note in comparison.notes:
        console.print(note, style="dim", highlight=False)


def duration(seconds: float) -> str:
    """A duration for people: "42 s", "3.5 min", "2.1 h", "4.0 d"."""
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}" if unit == "s" else f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"
