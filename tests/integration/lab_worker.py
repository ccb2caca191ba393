"""The smallest training loop that shows what a launcher does: gloo, an all-reduce a step, one JSON line an event.

Started by torchrun. What all workers of a job share comes as arguments; what one pretend host does differently comes
as arguments in LAB_ARGS. Events go to the file LAB_LOG as {"t": monotonic seconds, "host", "kind", ...}:
START (before anything can fail), READY (process group is up), STEP, SAVING/SAVED (on SIGTERM), DONE.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--until", type=Path, help="end well, all at the same step, once this file exists")
    parser.add_argument("--step-s", type=float, default=0.2, help="pause between steps")
    parser.add_argument("--no-group", action="store_true", help="no process group: steps are pauses alone")
    parser.add_argument("--group-timeout-s", type=float, default=60)
    parser.add_argument("--train", action="store_true", help="a DDP model and an optimizer, for the sampler to see")
    parser.add_argument("--checkpoint", type=Path, help="rank 0 keeps its step here and every worker starts from it")
    parser.add_argument("--fail-rank", type=int, default=0)
    parser.add_argument("--fail-step", type=int, help="os._exit at this step on --fail-rank")
    parser.add_argument("--fail-code", type=int, default=3)
    parser.add_argument("--fail-once", type=Path, help="fail only in the process that creates this file")
    parser.add_argument("--fail-import", action="store_true", help="raise as an import of a missing module does")
    parser.add_argument("--hang-step", type=int, help="from this step on do nothing for ever, deaf to SIGTERM")
    parser.add_argument("--save-s", type=float, help="on SIGTERM pause this long, then end with 143")
    return parser.parse_args(sys.argv[1:] + shlex.split(os.environ.get("LAB_ARGS", "")))


def emit(kind: str, **fields: Any) -> None:
    line = json.dumps({"t": time.monotonic(), "host": os.environ.get("HEET_HOST", "?"), "kind": kind, **fields})
    descriptor = os.open(os.environ["LAB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def identity() -> dict[str, Any]:
    env = os.environ
    return {"pid": os.getpid(), "rank": int(env["RANK"]), "world": int(env["WORLD_SIZE"])}


def announce() -> None:
    env = os.environ
    emit(
        "START",
        **identity(),
        local_rank=int(env["LOCAL_RANK"]),
        local_world=int(env["LOCAL_WORLD_SIZE"]),
        node=int(env["GROUP_RANK"]),
        restarts=int(env["TORCHELASTIC_RESTART_COUNT"]),
        master=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
        devices=env.get("CUDA_VISIBLE_DEVICES"),
        device=env.get("HEET_DEVICES", "").split(",")[int(env["LOCAL_RANK"]) if "HEET_DEVICES" in env else 0],
        agent=os.getppid(),
    )


def save_on_sigterm(pause_s: float) -> None:
    def save(signum: int, _frame: Any) -> None:
        emit("SAVING", **identity())
        time.sleep(pause_s)
        emit("SAVED", **identity())
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, save)


def maybe_fail(args: argparse.Namespace, step: int, rank: int) -> None:
    if args.hang_step is not None and step >= args.hang_step:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    if args.fail_step is None or step != args.fail_step or rank != args.fail_rank:
        return
    if args.fail_once is not None:
        try:
            args.fail_once.open("x").close()
        except FileExistsError:
            return
    emit("FAIL", **identity(), step=step)
    os._exit(args.fail_code)


def first_step(path: Path | None) -> int:
    return int(path.read_text()) if path is not None and path.exists() else 0


def keep_step(path: Path | None, step: int, rank: int) -> None:
    if path is not None and rank == 0:
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(step))
        fresh.replace(path)


def main() -> None:
    args = parse()
    announce()
    if args.save_s is not None:
        save_on_sigterm(args.save_s)
    if args.fail_import:
        import a_module_that_does_not_exist  # type: ignore[import-not-found]  # noqa: F401
    reduce = (lambda: over(args)) if args.no_group else join_group(args)
    me = identity()
    for step in range(first_step(args.checkpoint), args.steps):
        maybe_fail(args, step, me["rank"])
        ends = reduce()
        time.sleep(args.step_s)
        emit("STEP", **me, step=step)
        keep_step(args.checkpoint, step + 1, me["rank"])
        if ends:
            break
    emit("DONE", **me)


def over(args: argparse.Namespace) -> bool:
    return args.until is not None and args.until.exists()


def join_group(args: argparse.Namespace) -> Any:
    """Initialise gloo; return what one step of communication (and training) is."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=args.group_timeout_s))
    emit("READY", **identity())
    if not args.train:
        ones = torch.ones(4)

        def step() -> bool:
            """One all-reduce, in which everybody learns whether somebody has seen the end."""
            dist.all_reduce(ones.fill_(float(over(args))))
            return bool(ones[0] > 0)

        return step
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

    return train


if __name__ == "__main__":
    main()
