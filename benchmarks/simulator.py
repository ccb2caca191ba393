"""How fast the simulator is: the same jobs under several policies, in seconds and in decisions per second.

    python benchmarks/simulator.py [--jobs 1500] [--policy heet,market] [--predictor combined] [--trace FILE]
                                   [--table FILE] [--cluster ...] [--load 1] [--json]

Without a table the generated one is used, without a trace a synthetic one. The machine's own speed is given beside it
(`loop_s`: ten million turns of an empty loop), because a figure in seconds means nothing without it. CPU seconds are
those of this process; wall seconds grow when others use the machine.

    python benchmarks/simulator.py --jobs 80000 --policy market --cluster "T4:300x4,V100:200x8,A100:150x8" --load 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from heet_elastic.errors import HeetError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.simulator.jobs import JobOptions
from heet_elastic.simulator.metrics import summarise
from heet_elastic.simulator.scenario import SYNTHETIC, Scenario, from_files
from heet_elastic.simulator.settings import SimulationSettings
from heet_elastic.simulator.sweep import Task, check_policies, run_one


def measure(policy: str, scenario: Scenario, predictor: str) -> dict[str, float]:
    """One run. Every call of the clock is outside the run itself."""
    jobs = scenario.jobs[0]
    task = Task(0, jobs, policy, SimulationSettings(predictor=predictor), scenario.hosts, {})
    wall, cpu = time.perf_counter(), time.process_time()
    result = run_one(task, scenario.truth)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    summary = summarise(result)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "jobs": len(jobs),
        "gpus": result.gpus,
        "decisions": summary.decisions,
        "cpu_ms_per_decision": 1e3 * cpu / max(summary.decisions, 1),
        "mean_jct_s": summary.mean_jct_s,
        "unfinished": summary.unfinished,
    }


def loop_s() -> float:
    """CPU seconds of ten million turns of an empty loop: how fast this machine is just now."""
    began = time.process_time()
    for _ in range(10_000_000):
        pass
    return time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--policy", default="heet,market")
    parser.add_argument("--predictor", default=DEFAULT_PREDICTOR)
    parser.add_argument("--cluster", default="T4:10x4,V100:5x8,A100:5x8")
    parser.add_argument("--table")
    parser.add_argument("--trace")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        policies = check_policies(args.policy.split(","))
        tables = [Path(args.table)] if args.table else []
        wanted = JobOptions(args.jobs, args.load)
        scenario = from_files(tables, args.trace or SYNTHETIC, args.cluster, wanted, [0])
        found = {policy: measure(policy, scenario, args.predictor) for policy in policies}
    except HeetError as e:
        print(f"benchmarks/simulator.py: {e}", file=sys.stderr)
        return e.exit_code
    report = {"loop_s": loop_s(), "policies": found}
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    print(f"empty loop of 10 million turns: {report['loop_s']:.2f} s of CPU")
    for policy, figures in found.items():
        print(
            f"{policy:12s} {figures['jobs']:6.0f} jobs on {figures['gpus']:.0f} GPUs: {figures['cpu_s']:.1f} s of CPU "
            f"({figures['wall_s']:.1f} s), {figures['decisions']:.0f} decisions of "
            f"{figures['cpu_ms_per_decision']:.2f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
