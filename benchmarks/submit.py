"""How long handing jobs to a pool takes: `heet submit` as a process, and 200 jobs in a burst.

    python benchmarks/submit.py [--jobs 200] [--repeats 9] [--processes 0]

etcd, a coordinator and one heet-agent run on this machine; the jobs can never start (they need more devices than there
are), so that nothing but submitting is measured. Each figure is printed beside the time that an empty interpreter takes
to start on the same machine in the same run: on a machine that others use, only the ratio means something.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.integration.harness import LAB_WORKER, Cluster  # noqa: E402
from tests.integration.pool import Pool  # noqa: E402


def timed(command: list[str], env: dict[str, str]) -> float:
    """Seconds from start to end of a command that must succeed."""
    begun = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs of the burst")
    parser.add_argument("--repeats", type=int, default=9, help="single submits that are timed")
    parser.add_argument("--processes", type=int, default=0, help="further jobs, each by a process of its own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as lab:
        pool = Pool(lab, {"a": 1})
        env = lab.environment()
        heet = [sys.executable, "-m", "heet_elastic.cli.main"]
        flags = ["--min=2", "--unchecked", "--", str(LAB_WORKER)]

        def submit(job: str) -> float:
            return timed([*heet, "submit", "--etcd", lab.endpoint, f"--id={job}", *flags], env)

        start = statistics.median(timed([sys.executable, "-c", ""], env) for _ in range(args.repeats))
        submit("warm")
        used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        single = sorted(submit(f"single-{i}") for i in range(args.repeats))
        used = (sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used) / args.repeats
        file = Path(folder) / "sweep"
        file.write_text("".join(f"--id=burst-{i} {' '.join(flags)}\n" for i in range(args.jobs)))
        burst = timed([*heet, "sweep", "--etcd", lab.endpoint, str(file)], env)
        begun = time.perf_counter()
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(submit, (f"process-{i}" for i in range(args.processes))))
        processes = time.perf_counter() - begun
        stored = len(lab.snapshot().jobs)
        assert stored == 1 + args.repeats + args.jobs + args.processes, stored
        assert pool.agents["a"].alive
    print(f"load of this machine              {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"an empty interpreter              {start:.3f} s")
    print(
        f"heet submit                       {statistics.median(single):.2f} s (median of {len(single)}, "
        f"{single[0]:.2f} to {single[-1]:.2f}; {statistics.median(single) / start:.0f} empty interpreters)"
    )
    print(f"  of which processor time         {used:.2f} s")
    print(f"{args.jobs} jobs by heet sweep            {burst:.1f} s ({1e3 * burst / args.jobs:.0f} ms a job)")
    if args.processes:
        print(f"{args.processes} processes of heet submit      {processes:.1f} s ({os.cpu_count()} at a time)")


if __name__ == "__main__":
    main()
