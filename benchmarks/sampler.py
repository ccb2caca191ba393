"""What the sampler costs: microseconds a step, and milliseconds of an `import torch` outside of heet jobs.

    python benchmarks/sampler.py [--json] [--blocks N] [--steps N]

Paired, in one run: short blocks of steps of one training loop alternate between the sampler on (with its socket, its
messages and a collector that reads them) and off (its two hooks taken out), and the median of the paired differences is
shown with the interval that holds the middle 90 % of bootstrap medians. Time is that of the training thread alone
(`thread_time`), so that other programs on the machine disturb it less; the wall-clock difference is shown beside it.
The model is tiny on purpose: the cost is per step, whatever a step takes. One message a second comes on top: it is
timed by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

IDLE = """
import os, sys, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
begun = time.perf_counter()
import heet_elastic.agents.autostart as autostart
autostart.start()
first = time.perf_counter()
for _ in range(1000):
    autostart.start()
print((first - begun) * 1e3, (time.perf_counter() - first) * 1e3)
"""
"""What torch does with the entry point, timed apart from torch's own look-up of entry points."""


def steps_timed(step: Callable[[], None], count: int) -> tuple[float, float]:
    """(thread, wall) seconds of `count` steps."""
    thread, wall = time.thread_time(), time.perf_counter()
    for _ in range(count):
        step()
    return time.thread_time() - thread, time.perf_counter() - wall


class Loop:
    """A training loop of a small model whose sampler can be taken out and put back between two steps."""

    def __init__(self, socket_path: str) -> None:
        import torch
        from torch.optim import optimizer

        from heet_elastic.agents.sampler import Sampler

        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.batch = torch.randn(8, 16)
        self.sampler = Sampler(socket_path, 1, 0, 0)
        self.sampler.attach()
        for _ in range(10):
            self.step()
        self._places = (optimizer._global_optimizer_post_hooks, self.model._forward_pre_hooks)
        self._hooks = [dict(place) for place in self._places]

    def step(self) -> None:
        """One turn of the loop."""
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()

    def switch(self, on: bool) -> None:
        """Take the sampler's two hooks out, or put them back."""
        for place, hooks in zip(self._places, self._hooks, strict=True):
            place.clear()
            if on:
                place.update(hooks)


def measure_steps(blocks: int, steps: int) -> dict[str, Any]:
    """Paired blocks, on against off."""
    from heet_elastic.agents.collector import Collector
    from heet_elastic.agents.messages import ENV_SOCKET
    from heet_elastic.model import Configuration

    collector = Collector()
    path = collector.open()[ENV_SOCKET]
    collector.round_environment(1, Configuration("benchmark", 1, 1), 1)
    loop = Loop(path)
    rows: list[tuple[float, float, float, float]] = []
    try:
        for block in range(blocks):
            times: dict[bool, tuple[float, float]] = {}
            for on in (True, False) if block % 2 else (False, True):
                loop.switch(on)
                times[on] = steps_timed(loop.step, steps)
            collector.poll()
            rows.append((*times[True], *times[False]))
        send_us = steps_timed(lambda: loop.sampler._send(0.0), 200)[0] / 200 * 1e6
    finally:
        loop.switch(True)
        loop.sampler.detach()
        collector.close()
    on_thread, on_wall, off_thread, off_wall = (np.array(c) / steps * 1e6 for c in zip(*rows, strict=True))
    low, high = interval(on_thread - off_thread)
    return {
        "us_per_step": float(np.median(on_thread - off_thread)),
        "us_per_step_90": [low, high],
        "us_per_step_wall": float(np.median(on_wall - off_wall)),
        "us_of_the_loop_off": float(np.median(off_thread)),
        "us_per_message": send_us,
        "ms_first_step": first_step(),
        "messages": collector.received,
    }


def first_step() -> float:
    """Milliseconds of the search for the model at an optimizer's first step."""
    import torch

    from heet_elastic.agents.modules import live_modules, outermost

    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(300)])
    begun = time.thread_time()
    outermost(live_modules(torch.nn.Module), {id(p) for p in model.parameters()})
    return (time.thread_time() - begun) * 1e3


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Middle 90 % of bootstrap medians."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(differences, (2000, len(differences))), axis=1)
    low, high = np.quantile(medians, [0.05, 0.95])
    return float(low), float(high)


def measure_idle(repeats: int) -> dict[str, Any]:
    """`import heet_elastic.agents.autostart` and `start()` in fresh processes that are no workers."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEET_")} | {"PYTHONPATH": str(ROOT)}
    first, again = [], []
    for _ in range(repeats):
        out = subprocess.run([sys.executable, "-c", IDLE], env=env, check=True, capture_output=True, text=True).stdout
        first.append(float(out.split()[0]))
        again.append(float(out.split()[1]))  # milliseconds of 1000 calls = microseconds of one
    return {"import_ms_idle": median(first), "import_ms_idle_min": min(first), "idle_call_us": median(again)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--blocks", type=int, default=1500, help="pairs of blocks (default 1500)")
    parser.add_argument("--steps", type=int, default=40, help="steps a block (default 40)")
    parser.add_argument("--repeats", type=int, default=9, help="fresh processes for the idle import (default 9)")
    options = parser.parse_args()
    print("measuring the idle import, then paired blocks of steps (about a minute)", file=sys.stderr)
    results = {**measure_idle(options.repeats), **measure_steps(options.blocks, options.steps)}
    if options.json:
        print(json.dumps(results))
        return
    low, high = results["us_per_step_90"]
    print(f"a step      {results['us_per_step']:.2f} us more ({low:.2f} to {high:.2f}), target 10 us")
    print(f"            {results['us_per_step_wall']:.2f} us by the wall clock; the loop takes", end=" ")
    print(f"{results['us_of_the_loop_off']:.0f} us without")
    print(f"a message   {results['us_per_message']:.0f} us, once a second")
    print(f"first step  {results['ms_first_step']:.0f} ms once, to find the model")
    print(
        f"idle import {results['import_ms_idle']:.2f} ms (best {results['import_ms_idle_min']:.2f}), target 1 ms;",
        end=" ",
    )
    print(f"{results['idle_call_us']:.2f} us a further call")


if __name__ == "__main__":
    main()
