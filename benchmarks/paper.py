"""The paper's claims beside ours, and the targets of the policies, on measured tables and traces (docs/evaluation.md).

    python benchmarks/paper.py claims  [--seeds 3] [--jobs 40] [--gpus 24] [--loads 1,3,6] [--up 30] [--cache FOLDER]
    python benchmarks/paper.py targets [--seeds 10] [--jobs 40] [--gpus 24] [--loads 1,3,6] [--up 9,30,120]
    python benchmarks/paper.py show --part claims|targets ...   what is in the cache by now, nothing is run

Every run (one policy on one seed's jobs) is written to the cache as it ends and never made again, so a long evaluation
can be stopped and gone on with; delete the cache when the code has changed. Seeds are paired: seed s takes the s-th
window of the trace and draws its models with s. Our policies see predictions, with the time of their probes charged;
the others get the true curves, as their papers do. Scale-downs cost a sixth of scale-ups, as the paper has them.
Data: $HEET_DATA (measured tables and traces in the formats of `heet simulate`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from heet_elastic.cli.simulation_view import silent_solvers
from heet_elastic.errors import HeetError, UsageError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.evaluation import Plan
from heet_elastic.predictor.evaluation import evaluate as judge
from heet_elastic.predictor.scores import score
from heet_elastic.predictor.tables import covered, load_table
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.simulator.cluster import HostGroup, build_hosts, parse_cluster
from heet_elastic.simulator.jobs import JobOptions, SimJob, resolve_jobs
from heet_elastic.simulator.metrics import Ratio, bootstrap, summarise
from heet_elastic.simulator.settings import Costs, SimulationSettings
from heet_elastic.simulator.sweep import Task, bound_of, run_one
from heet_elastic.simulator.tables import load_truth
from heet_elastic.simulator.traces import Trace, read_trace
from heet_elastic.simulator.truth import Truth

BOUND = "bound"
CLAIMED = ("heet", "market", "afs", "srsf", "srsf-e", "srsf-max", "gavel", "gavel-minjct", "short-only", "scale-only")
TARGETED = ("market", "heet", "sia", "afs", "srsf-e", "gavel", "gavel-minjct")
OWN = ("heet", "market")
TARGETS = {"afs": 1.9, "srsf-e": 2.0, "gavel": 1.6, "sia": 1.1, "heet": 1.1}
"""Least mean completion time over market's. `gavel` stands for the better of its two programmes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Which table and trace, and the cluster for a number of GPUs."""

    table: str
    trace: str
    clusters: Mapping[int, str]


SETTINGS: Mapping[str, Setting] = {
    "gavel-philly": Setting(
        "throughput_gavel.csv",
        "trace_philly_800.csv",
        {24: "K80:1x8,P100:1x8,V100:1x8", 120: "K80:5x8,P100:5x8,V100:5x8"},
    ),
    "sia-elasticflow": Setting(
        "throughput_sia_pcie.csv",
        "trace_elasticflow_195.csv",
        {24: "T4:2x4,RTX2080Ti:1x8,QuadroRTX6000:2x4", 120: "T4:15x4,RTX2080Ti:5x8,QuadroRTX6000:5x4"},
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run: everything that its outcome depends on besides the code."""

    setting: str
    gpus: int
    jobs: int
    load: float
    up_s: float
    error: float
    seed: int
    policy: str
    perfect: bool = False  # true curves for our policies too: what prediction costs them

    @property
    def name(self) -> str:
        """File name of its outcome."""
        return (
            f"{self.setting}-{self.gpus}gpus-{self.jobs}jobs-load{self.load:g}-up{self.up_s:g}-error{self.error:g}-"
            f"{self.policy}{'-perfect' * self.perfect}-seed{self.seed}.json"
        )


Outcome = Mapping[str, float]
Outcomes = Mapping[Run, Outcome]


# --------------------------------------------------------------------------- running


class Ground:
    """Tables, traces and hosts of a setting, read once."""

    def __init__(self, setting: str, gpus: int, data: Path) -> None:
        chosen = SETTINGS[setting]
        if gpus not in chosen.clusters:
            raise UsageError(f"--gpus is {gpus}: there are clusters of {', '.join(map(str, chosen.clusters))}")
        self.truth: Truth = load_truth([data / chosen.table], skip_bad=True)[0]
        self.trace: Trace = read_trace(data / chosen.trace, skip_bad=True)
        self.groups: tuple[HostGroup, ...] = parse_cluster(chosen.clusters[gpus])

    def jobs(self, run: Run) -> tuple[SimJob, ...]:
        """The jobs of a seed: its window of the trace, with models drawn by it."""
        entries = self.trace.jobs
        windows = max(len(entries) // run.jobs, 1)
        at = (run.seed % windows) * run.jobs
        part = replace(self.trace, jobs=entries[at : at + run.jobs])
        # Rows that no type of this cluster was measured with cannot run: they are left out, for every policy alike.
        return resolve_jobs(
            part, self.truth, self.groups, JobOptions(run.jobs, run.load, seed=run.seed), skip_bad=True
        ).jobs


_grounds: dict[tuple[str, int], Ground] = {}


def perform(run: Run, data: Path) -> Outcome:
    """Run it. Deterministic but for the times of decisions."""
    key = (run.setting, run.gpus)
    if key not in _grounds:
        _grounds[key] = Ground(*key, data)
    ground = _grounds[key]
    costs = Costs(run.up_s, run.up_s / 6.0)
    predictor = "true" if run.perfect else DEFAULT_PREDICTOR
    settings = SimulationSettings(costs=costs, error=run.error, seed=run.seed, predictor=predictor)
    policy = None if run.policy == BOUND else run.policy
    task = Task(0, ground.jobs(run), policy, settings, build_hosts(ground.groups), {})
    began = time.process_time()
    with silent_solvers():
        if policy is None:
            return {"mean_jct_s": bound_of(task, ground.truth), "cpu_s": time.process_time() - began}
        result = run_one(task, ground.truth)
    events = [json.loads(line) for line in result.log]
    rounds = {(e["name"], tuple(e["new"])) for e in events if e["event"] in ("round", "probe") and e["new"]}
    probes = sum(e["event"] == "probe" and bool(e["new"]) for e in events)
    return {
        **asdict(summarise(result)),
        "placements_per_job": len(rounds) / len(result.jobs),
        "probe_rounds_per_job": probes / len(result.jobs),
        "cpu_s": time.process_time() - began,
    }


def perform_all(runs: Sequence[Run], data: Path, cache: Path, processes: int) -> None:
    """Make the runs that the cache does not hold. Ctrl-C keeps what is done."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [r for r in dict.fromkeys(runs) if not (cache / r.name).exists()]
    began = time.monotonic()

    def ended(number: int, run: Run, outcome: Outcome) -> None:
        partly = cache / f".{run.name}"
        partly.write_text(json.dumps(outcome), encoding="utf-8")
        partly.replace(cache / run.name)
        left_s = (time.monotonic() - began) / number * (len(missing) - number)
        print(f"{number}/{len(missing)} {run.name[:-5]}: {left_s / 60:.0f} min left", file=sys.stderr, flush=True)

    if processes == 1:
        for number, run in enumerate(missing, start=1):
            ended(number, run, perform(run, data))
        return
    with ProcessPoolExecutor(processes) as pool:
        outcomes = pool.map(perform, missing, [data] * len(missing))
        for number, (run, outcome) in enumerate(zip(missing, outcomes, strict=True), start=1):
            ended(number, run, outcome)


def load_all(runs: Iterable[Run], cache: Path) -> dict[Run, Outcome]:
    """What the cache holds of the runs."""
    found: dict[Run, Outcome] = {}
    for run in dict.fromkeys(runs):
        path = cache / run.name
        if path.exists():
            found[run] = json.loads(path.read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------- what is run


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    settings: tuple[str, ...]
    gpus: int
    jobs: int
    seeds: int
    loads: tuple[float, ...]
    ups: tuple[float, ...]


def claim_runs(size: Size) -> Iterator[Run]:
    """Runs behind the paper's claims: every policy at every load, ours with wrong predictions too; seed by seed."""
    for seed in range(size.seeds):
        for setting in size.settings:
            for load in size.loads:
                base = Run(setting, size.gpus, size.jobs, load, size.ups[0], 0.0, seed, "")
                yield from (replace(base, policy=p) for p in CLAIMED)
                if load == min(size.loads):
                    yield replace(base, policy=BOUND)
                yield from (replace(base, policy=p, error=0.3) for p in OWN)


def target_runs(size: Size) -> Iterator[Run]:
    """Runs behind the targets: every load at the middle cost, every cost at the middle load; seed by seed.

    The lower bound at the least load, true curves for market at the middle cost, wrong predictions in the middle.
    """
    middle_up, middle_load = size.ups[len(size.ups) // 2], size.loads[len(size.loads) // 2]
    points = dict.fromkeys([*((x, middle_up) for x in size.loads), *((middle_load, u) for u in size.ups)])
    for seed in range(size.seeds):
        for setting in size.settings:
            for load, up_s in points:
                base = Run(setting, size.gpus, size.jobs, load, up_s, 0.0, seed, "")
                yield from (replace(base, policy=p) for p in TARGETED)
                if load == min(size.loads):
                    yield replace(base, policy=BOUND)
                if up_s == middle_up:
                    yield replace(base, policy="market", perfect=True)
                if (load, up_s) == (middle_load, middle_up):
                    yield replace(base, policy="market", error=0.3)


# --------------------------------------------------------------------------- reading


def figure(found: Outcomes, like: Run, name: str) -> dict[int, float]:
    """A figure of every seed of runs like this one."""
    return {r.seed: o[name] for r, o in found.items() if replace(r, seed=0) == replace(like, seed=0) and name in o}


def ratio(found: Outcomes, one: Run, other: Run, name: str = "mean_jct_s") -> Ratio | None:
    """A figure over another, paired by seed; None = no seed has both."""
    a, b = figure(found, one, name), figure(found, other, name)
    pairs = [a[s] / b[s] for s in sorted(a.keys() & b.keys()) if b[s]]
    return bootstrap(pairs) if pairs else None


def better_gavel(found: Outcomes, base: Run) -> Ratio | None:
    """Mean completion time of the better of Gavel's programmes, seed by seed, over market's."""
    las, minimal, ours = (
        figure(found, replace(base, policy=p), "mean_jct_s") for p in ("gavel", "gavel-minjct", "market")
    )
    better = {s: min(las.get(s, np.inf), minimal.get(s, np.inf)) for s in las.keys() | minimal.keys()}
    pairs = [better[s] / ours[s] for s in sorted(better.keys() & ours.keys())]
    return bootstrap(pairs) if pairs else None


def shown(value: Ratio | None) -> str:
    return "not run" if value is None else f"{value.mean:.2f} ({value.low:.2f}-{value.high:.2f})"


def average(found: Outcomes, like: Run, name: str) -> float:
    values = list(figure(found, like, name).values())
    return float(np.mean(values)) if values else float("nan")


def predictor_rows(data: Path, settings: Sequence[str], seed: int) -> list[tuple[str, str, str]]:
    """(claim, paper, ours) of the predictor: six measured cells of each held-out job."""
    rows = []
    for setting in settings:
        table, _ = covered(load_table(data / SETTINGS[setting].table), 0.5)
        for hold_out, claim in (("job", "reuse of a similar past job"), ("family", "completion")):
            plan = Plan(6, "standard", hold_out, (), seed)  # type: ignore[arg-type]
            judged = judge(table, {DEFAULT_PREDICTOR: METHODS[DEFAULT_PREDICTOR]}, METHODS[DEFAULT_PREDICTOR], plan)
            found = score(judged.predictions[DEFAULT_PREDICTOR, 6])
            paper = "91.2 % accurate" if hold_out == "job" else "77-90 % accurate, median error 17 %"
            ours = f"{found.mean_accuracy:.1%} accurate, median error {found.median_error:.1%}"
            rows.append((f"{claim}, {SETTINGS[setting].table}", paper, ours))
    return rows


def claim_rows(found: Outcomes, size: Size) -> list[tuple[str, str, str]]:
    """(claim, paper, ours) of everything that the runs tell."""
    rows: list[tuple[str, str, str]] = []
    for setting in size.settings:
        for load in size.loads:
            base = Run(setting, size.gpus, size.jobs, load, size.ups[0], 0.0, 0, "heet")
            where = f"{setting}, load {load:g}"

            def of(policy: str, name: str, base: Run = base) -> float:
                return average(found, replace(base, policy=policy), name)

            def over(policy: str, ours: str, name: str = "mean_jct_s", base: Run = base) -> str:
                return shown(ratio(found, replace(base, policy=policy), replace(base, policy=ours), name))

            for ours in OWN:
                against = ", ".join(f"{p} {over(p, ours)}" for p in ("afs", "srsf", "srsf-e", "gavel", "gavel-minjct"))
                rows.append((f"completion time over {ours}'s, {where}", "1.3-2.46", against))
            singles = ", ".join(f"{p} {over(p, 'heet')}" for p in ("short-only", "scale-only"))
            rows.append((f"single-objective prices over both, {where}", "1.74", singles))
            efficiency = ", ".join(f"{p} {of(p, 'efficiency'):.2f}" for p in (*OWN, "srsf-max", "srsf-e", "afs"))
            rows.append((f"scaling efficiency, {where}", "0.83-0.87; SRSF 0.44", efficiency))
            starved = ", ".join(f"{p} {of(p, 'starvation'):.1%}" for p in (*OWN, "afs", "srsf-e", "gavel"))
            rows.append((f"starved share of job time, {where}", "-40.5 %", starved))
            wrong = ", ".join(
                f"{p} {shown(ratio(found, replace(base, policy=p, error=0.3), replace(base, policy=p)))}" for p in OWN
            )
            rows.append((f"30 % error over none, {where}", "1.055", wrong))
            spent = ", ".join(f"{p} {of(p, 'rescale_share'):.1%}" for p in OWN)
            rows.append((f"job time spent in rescales, {where}", "about 3 % of an interval", spent))
            again = ", ".join(f"{p} {of(p, 'rescales_per_job'):.1f}" for p in OWN)
            rows.append((f"rescales a job, {where}", "not stated", again))
            asked = ", ".join(
                f"{p} {of(p, 'placements_per_job'):.1f} placements, {of(p, 'probe_rounds_per_job'):.2f} probe rounds"
                for p in OWN
            )
            rows.append((f"what is measured of a job, {where}", "about 6 cells", asked))
            if load == min(size.loads):
                best = ", ".join(f"{p} {over(BOUND, p)}" for p in OWN)
                rows.append((f"the lower bound over completion time, {where}", "not stated", best))
    return rows


def target_rows(found: Outcomes, size: Size) -> list[tuple[str, ...]]:
    """One row for each setting, load and cost: ratios to market, market's own figures, the distance to the bound."""
    rows: list[tuple[str, ...]] = []
    points = dict.fromkeys((r.setting, r.load, r.up_s) for r in target_runs(replace(size, seeds=1)))
    for setting, load, up_s in points:
        base = Run(setting, size.gpus, size.jobs, load, up_s, 0.0, 0, "market")
        seeds = len(figure(found, base, "mean_jct_s"))
        others = [shown(ratio(found, replace(base, policy=p), base)) for p in ("afs", "srsf-e")]
        others += [shown(better_gavel(found, base))]
        others += [shown(ratio(found, replace(base, policy=p), base)) for p in ("sia", "heet")]
        sia = replace(base, policy="sia")
        tails = [shown(ratio(found, sia, base, n)) for n in ("median_jct_s", "p99_jct_s")]
        own = [
            shown(ratio(found, replace(base, perfect=True), base)),
            shown(ratio(found, base, replace(base, policy=BOUND))),
            shown(ratio(found, replace(base, error=0.3), base)),
            f"{average(found, base, 'efficiency'):.2f}",
            f"{average(found, base, 'rescales_per_job'):.1f} ({average(found, base, 'most_rescales'):.0f})",
            f"{average(found, base, 'starvation'):.1%}",
            f"{average(found, base, 'longest_wait_s') / 3600:.1f} h",
        ]
        rows.append((setting, f"{load:g}", f"{up_s:g}", str(seeds), *others, *tails, *own))
    return rows


TARGET_HEADS = (
    "setting", "load", "scale-up s", "seeds", "AFS-L", "SRSF-E", "Gavel (better)", "Sia", "heet", "Sia, median",
    "Sia, p99", "market with true curves", "over bound", "30 % error", "efficiency", "rescales (most)", "starved",
    "longest wait",
)  # fmt: skip


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)


# --------------------------------------------------------------------------- the command


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(x) for x in text.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("claims", "targets", "show"))
    parser.add_argument("--part", dest="of", choices=("claims", "targets"), default="claims", help="what show shows")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--policies", default="", help="run these only (by commas; bound: the lower bound)")
    parser.add_argument("--gpus", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=0, help="default: 3 for claims, 10 for targets")
    parser.add_argument("--loads", type=numbers, default=(1.0, 3.0, 6.0))
    parser.add_argument(
        "--up", type=numbers, default=None, help="scale-up costs; default: 9 (claims), 9,30,120 (targets)"
    )
    parser.add_argument("--cache", type=Path, default=Path(".paper"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    part = args.of if args.part == "show" else args.part
    data = Path(os.environ.get("HEET_DATA", "../shared/data"))
    names = tuple(s for s in args.settings.split(",") if s)
    size = Size(
        settings=names,
        gpus=args.gpus,
        jobs=args.jobs,
        seeds=args.seeds or {"claims": 3, "targets": 10}[part],
        loads=args.loads,
        ups=args.up or {"claims": (30.0,), "targets": (9.0, 30.0, 120.0)}[part],
    )
    try:
        for name in names:
            if name not in SETTINGS:
                raise UsageError(f"--settings: there is no {name!r}; there are {', '.join(SETTINGS)}")
            if not (data / SETTINGS[name].table).exists():
                raise UsageError(
                    f"{data / SETTINGS[name].table} is not there: set HEET_DATA to the folder of the tables"
                )
        runs = list(claim_runs(size) if part == "claims" else target_runs(size))
        assert all(r.policy in POLICIES or r.policy == BOUND for r in runs)
        if args.policies:
            asked = set(args.policies.split(","))
            if asked - {r.policy for r in runs}:
                raise UsageError(f"--policies: {part} knows {', '.join(sorted({r.policy for r in runs}))}")
            runs = [r for r in runs if r.policy in asked]
        if args.part != "show":
            perform_all(runs, data, args.cache, args.processes)
        found = load_all(runs, args.cache)
        rows: Sequence[tuple[str, ...]]
        if part == "claims":
            heads: Sequence[str] = ("claim", "paper", "here")
            rows = [*(predictor_rows(data, names, 0) if args.part != "show" else []), *claim_rows(found, size)]
        else:
            heads, rows = TARGET_HEADS, target_rows(found, size)
    except HeetError as e:
        print(f"benchmarks/paper.py: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print(f"stopped: what is done is in {args.cache}, the same command goes on", file=sys.stderr)
        return 130
    said = (
        f"{len(found)} of {len(set(runs))} runs; {size.jobs} jobs on {size.gpus} GPUs; mean (95 % interval over seeds)"
    )
    if args.json:
        print(json.dumps({"about": said, "rows": [dict(zip(heads, r, strict=True)) for r in rows]}, indent=2))
    else:
        print(said, markdown(heads, rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
