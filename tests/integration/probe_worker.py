"""A training script with checkpoints whose steps take longer on some pretend hosts: HEET_HOST decides, in STEP_S.

STEP_S="a=0.2,v=0.02" CHECKPOINT=/path LAB_LOG=/path torchrun ... probe_worker.py
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch

CHECKPOINT = Path(os.environ["CHECKPOINT"])
STEP_S = {host: float(s) for host, _, s in (part.partition("=") for part in os.environ["STEP_S"].split(","))}


def emit(kind: str, **fields: object) -> None:
    host = os.environ["HEET_HOST"]
    line = json.dumps({"t": time.monotonic(), "host": host, "kind": kind, "pid": os.getpid(), **fields})
    with Path(os.environ["LAB_LOG"]).open("a") as log:
        log.write(line + "\n")


def main() -> None:
    emit("START")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while True:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        time.sleep(STEP_S[os.environ["HEET_HOST"]])
        optimizer.step()
        step += 1
        emit("STEP", step=step, world=int(os.environ["WORLD_SIZE"]))
        if step % 10 == 0:
            fresh = CHECKPOINT.with_suffix(".new")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, fresh)
            fresh.replace(CHECKPOINT)


main()
