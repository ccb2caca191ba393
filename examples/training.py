"""What both example scripts share: arguments, the process group, checkpoints, and one plain DDP training loop.

Nothing here knows heet: it is what a script needs to be restarted by any elastic launcher. Rank 0 writes a checkpoint
every `--every` steps and when it is told to stop (SIGTERM); every worker starts from the newest one. `--batch` is the
global batch, shared out among the workers that there are, so that a step is the same step at every world size.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

MakeBatch = Callable[[int, range], tuple[Tensor, Tensor]]
"""(step, indexes of this worker's samples in the global batch) -> inputs and targets, the same wherever it runs."""


def arguments(description: str, *, steps: int, batch: int, size: int) -> argparse.Namespace:
    """The arguments of both scripts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps to train in all")
    parser.add_argument("--batch", type=int, default=batch, help="samples of one step over all workers")
    parser.add_argument("--size", type=int, default=size, help="width of the model")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    parser.add_argument("--checkpoints", type=Path, default=None, help="folder for checkpoints, shared by all hosts")
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    return parser.parse_args()


def train(args: argparse.Namespace, model: nn.Module, make_batch: MakeBatch) -> None:
    """Train `model` for `args.steps` steps from the newest checkpoint; end with 143 after a checkpoint on SIGTERM."""
    stop = StopRequest()
    device = join_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model.to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=args.rate, momentum=0.9)
    checkpoint = Checkpoint(args.checkpoints, ddp.module, optimizer) if args.checkpoints else None
    step = checkpoint.load() if checkpoint else 0
    if rank == 0:
        print(f"{world} workers start at step {step} of {args.steps}", flush=True)
    began, first = time.perf_counter(), step
    while step < args.steps and not stop.asked:
        try:
            inputs, targets = make_batch(step, range(rank, args.batch, world))
            loss = train_step(ddp, optimizer, inputs.to(device), targets.to(device), args.batch / world)
        except RuntimeError:
            if stop.asked:  # a peer that was told to stop earlier is gone; the last whole step stands
                break
            raise
        step += 1
        if rank == 0 and checkpoint and step % args.every == 0:
            checkpoint.save(step)
        if rank == 0 and step % args.every == 0:
            speed = (step - first) / (time.perf_counter() - began)
            print(f"step {step}: loss {loss:.4f}, {speed:.2f} steps/s on {world} workers", flush=True)
    if rank == 0 and checkpoint:
        checkpoint.save(step)
    if step < args.steps:
        sys.exit(128 + signal.SIGTERM)
    dist.destroy_process_group()


def train_step(
    ddp: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, samples_per_worker: float
) -> float:
    """One optimizer step on this worker's share; the gradient is the global batch's mean at every world size."""
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(ddp(inputs).flatten(0, -2), targets.flatten(), reduction="sum")
    loss = loss / (samples_per_worker * targets[0].numel())
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def generator_of(step: int, sample: int) -> torch.Generator:
    """The chance of one sample of one step: the same on whichever worker it is made."""
    return torch.Generator().manual_seed(1_000_003 * step + sample)


def join_group() -> torch.device:
    """Initialise NCCL where there are GPUs, else gloo; return this worker's device."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return torch.device("cpu")


class StopRequest:
    """Remembers a SIGTERM, so that the step under way is finished first."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, _signum: int, _frame: FrameType | None) -> None:
        self.asked = True


class Checkpoint:
    """Model, optimizer and step in one file, replaced as a whole: a reader sees the old one or the new one."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "checkpoint.pt"
        self.model = model
        self.optimizer = optimizer

    def save(self, step: int) -> None:
        """Write the state after `step` steps."""
        state: dict[str, Any] = {
            "step": step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        fresh = self.path.with_suffix(f".{os.getpid()}")
        with fresh.open("wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        fresh.replace(self.path)

    def load(self) -> int:
        """Take up the newest state; the number of steps that it has (0: there is none)."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])
