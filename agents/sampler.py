"""Counts steps, samples and tokens of an unmodified training script and sends them to the agent of its host.

One hook after every optimizer step (all of `torch.optim`'s kind), one before the forward pass of the outermost module
that holds the optimizer's parameters, found once. Samples of a step = what the root module was given in training mode
since the step before. Messages are cumulative, at most about one a second, never blocking, and there is no thread.

It must never disturb the script: every entry catches its own errors, sends the reason once, and is silent from then on.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from heet_elastic import reporting
from heet_elastic.agents.checkpoints import CheckpointWatch
from heet_elastic.agents.compute import ComputeTimer
from heet_elastic.agents.cycle import StepCycle
from heet_elastic.agents.forwards import ForwardWatch
from heet_elastic.agents.messages import ENV_ROUND, ENV_SOCKET, SampleMessage, pack
from heet_elastic.agents.modules import Facts, facts, innermost, loaded_step, parameter_ids
from heet_elastic.agents.rate import StepClock

SEND_INTERVAL_S = 1.0
DIGEST_S = 0.1
"""Times of steps are kept for so long before they are looked at, all at once: code that runs rarely between the kernels
of a step is slow each time, as none of it is in the processor's caches."""
_installed: Sampler | None = None


class Sampler:
    """Everything that is counted in one worker. `install` makes the only one of a process."""

    def __init__(self, socket_path: str, round_: int, rank: int, local_rank: int) -> None:
        self._path, self._round, self._rank, self._local_rank = socket_path, round_, rank, local_rank
        self._socket: socket.socket | None = None
        self._next_send = 0.0
        self._off = False
        self._clock = StepClock()
        self._times: list[float] = []  # ends of steps that are not counted yet
        self._digest_at = 0.0
        self._timer = ComputeTimer()
        self._forwards = ForwardWatch(
            torch.nn.Module,
            torch.Tensor,
            torch.compiler.is_dynamo_compiling,  # one constant: is_compiling costs twice as much
            torch.is_grad_enabled,
            self._timer,
            time.monotonic,
            self._wake,
            self._fail,
        )
        self._forwards.on_first = self._see_autocast
        self._checkpoints = CheckpointWatch(self._position, self._wake)
        self._cycle = StepCycle(self._meet)
        self._samples = 0.0
        self._tokens = 0.0
        self._unseen = 0  # steps before the first one whose samples were seen
        self._batch: float | None = None
        self._told_samples: float | None = None
        self._told: tuple[float | None, float | None] = (None, None)
        self._facts: Facts | None = None
        self._device: str | None = None
        self._dtype: str | None = None
        self._problem: str | None = None
        self._step_hook: Any = None

    def attach(self) -> None:
        """Register the hooks that find everything else."""
        self._step_hook = register_optimizer_step_post_hook(_untraced(self))
        self._checkpoints.wrap_loads(Optimizer, torch.nn.Module)
        reporting.connect(self)
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.abandon)

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer made a step: the hot path."""
        if self._off:
            return
        try:
            if id(optimizer) == self._cycle.alone or self._cycle.leads(optimizer):
                now = time.monotonic()
                self._times.append(now)
                if now >= self._digest_at:
                    self._digest()
        except Exception as error:  # the script must go on
            self._fail(error)

    def _wake(self) -> None:
        """The step that runs now is no ordinary one: look at it as soon as it ends."""
        self._digest_at = 0.0

    def _digest(self, told_steps: int = 1) -> None:
        """Count the steps that ended since the last time. What was flagged is about the gap before the last of them."""
        times, self._times = self._times, []
        if not times:
            return
        forwards, checkpoints, timer, now = self._forwards, self._checkpoints, self._timer, times[-1]
        self._count(*forwards.settle(len(times)), len(times) * told_steps)
        if timer.armed:
            timer.step(now)
        flagged = forwards.flagged or checkpoints.flagged
        ended = False
        for at in times:
            ended |= self._clock.step(at, flagged and at is now, told_steps)
        if ended and forwards.seeing:
            timer.arm()
        forwards.flagged = checkpoints.flagged = False
        self._digest_at = 0.0 if timer.armed or forwards.every_step else now + DIGEST_S
        if checkpoints.commit() or now >= self._next_send:
            self._send(now)

    def _count(self, samples: float, tokens: float, steps: int) -> None:
        if samples:
            # The steps before the root was found are taken for steps like the first ones that were seen.
            share, self._unseen = 1 + self._unseen / steps, 0
            self._samples += samples * share
            self._tokens += tokens * share
            self._batch = samples / steps
        elif not self._samples:
            self._unseen += steps

    def _meet(self, optimizer: Optimizer) -> None:
        """First step of an optimizer: find what it trains, and whether it comes from a checkpoint."""
        wanted = parameter_ids(optimizer)
        with contextlib.suppress(Exception):  # a checkpoint that cannot be seen costs certainty, not samples
            first = loaded_step(optimizer)
            self._checkpoints.met(optimizer, wanted, None if first is None else first - 1)
        new = self._forwards.meet(wanted)
        if new:
            self._describe(new)

    def _describe(self, new: list[Any]) -> None:
        """Physical facts of the modules now watched, once a round; saves of the new ones are noticed."""
        for root in new:
            with contextlib.suppress(Exception):
                self._checkpoints.watch_module(innermost(root))
        with contextlib.suppress(Exception):
            self._facts = facts(self._forwards.roots)
            self._device, self._dtype = self._facts.device, self._facts.dtype
            if self._device.startswith("cuda"):
                self._device = torch.cuda.get_device_name(self._device)
                self._timer.use_events(_cuda_event)

    def _see_autocast(self) -> None:
        """At the first counted forward pass: autocast decides in which type the work is done."""
        kind = (self._facts.device if self._facts else "cpu").partition(":")[0]
        if self._dtype and torch.is_autocast_enabled(kind):
            self._dtype += "+" + str(torch.get_autocast_dtype(kind)).removeprefix("torch.")

    def progress(self, done: float, total: float | None) -> None:
        """`heet_elastic.progress`."""
        self._told = (done, total)
        self._tell()

    def report(self, samples: float | None, steps: int | None) -> None:
        """`heet_elastic.report`. Steps count only where no optimizer of torch makes any."""
        if samples is not None:
            self._told_samples = (self._told_samples or 0.0) + samples
        if steps and not self._cycle.any_seen and not self._off:
            self._times.append(time.monotonic())
            self._digest(steps)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if not self._off and now >= self._next_send:
            self._send(now)

    def _position(self) -> tuple[int, float]:
        """(steps, samples) so far."""
        self._digest()
        return self._clock.steps, self._samples if self._told_samples is None else self._told_samples

    def message(self) -> SampleMessage:
        """All counters, as they are sent."""
        self._digest()
        clock, checkpoints, known = self._clock, self._checkpoints, self._facts
        rate, (steps, samples) = clock.rate(), self._position()
        return SampleMessage(
            pid=os.getpid(),
            local_rank=self._local_rank,
            rank=self._rank,
            round=self._round,
            at_s=clock.last_s,
            first_step_s=clock.first_s,
            steps=steps,
            samples=samples,
            tokens=self._tokens,
            step_s=rate.step_s,
            step_spread_s=rate.spread_s,
            windows=clock.windows,
            stalled_s=clock.stalled_s,
            paused_s=clock.paused_s,
            compute_s=self._timer.seconds(),
            marks=checkpoints.marks,
            marked_steps=checkpoints.marked_steps,
            marked_samples=checkpoints.marked_samples,
            loads=checkpoints.loads,
            weight_loads=checkpoints.weight_loads,
            loaded_steps=checkpoints.loaded_steps,
            done=self._told[0],
            total=self._told[1],
            parameters=known.parameters if known else None,
            parameter_bytes=known.parameter_bytes if known else None,
            gradient_bytes=known.gradient_bytes if known else None,
            dtype=self._dtype,
            batch=self._batch,
            device=self._device,
            problem=self._problem or (None if self._told_samples is not None else self._forwards.problem),
        )

    def _send(self, now: float) -> None:
        """One datagram; a full queue or a vanished agent loses it, and the next one says all that it said."""
        self._next_send = now + SEND_INTERVAL_S
        datagram = pack(self.message())
        with contextlib.suppress(OSError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto(datagram, socket.MSG_DONTWAIT, self._path)

    def _fail(self, error: BaseException) -> None:
        """Stop for good, and say why once."""
        if self._off:
            return
        self._problem = f"sampler stopped: {type(error).__name__}: {error}"[:200]
        self._finish()

    def close(self) -> None:
        """The script ends: send what is left."""
        if not self._off:
            self._finish()

    def _finish(self) -> None:
        self._off = self._forwards.off = True
        with contextlib.suppress(Exception):
            self._checkpoints.commit()
        with contextlib.suppress(Exception):
            if self._clock.steps or self._told != (None, None) or self._problem:
                self._send(time.monotonic())
        self._release()

    def _release(self) -> None:
        with contextlib.suppress(Exception):
            reporting.connect(None)
            self._step_hook.remove()
            self._checkpoints.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def detach(self) -> None:
        """Take every hook away, without a last message. For whoever goes on after it; a script never gets here."""
        self._off = True
        self._release()
        self._forwards.close()
        atexit.unregister(self.close)

    def abandon(self) -> None:
        """In a forked child: not a worker, so silent. The hooks stay: taking them away would unshare memory."""
        self._off = self._forwards.off = True
        reporting.connect(None)


def install(environment: Mapping[str, str]) -> Sampler | None:
    """Begin sampling in this worker; None if it was begun already."""
    global _installed
    if _installed is not None:
        return None

    def number(name: str) -> int:
        value = environment.get(name, "0")
        return int(value) if value.isdigit() else 0

    _installed = Sampler(environment[ENV_SOCKET], number(ENV_ROUND), number("RANK"), number("LOCAL_RANK"))
    _installed.attach()
    return _installed


def _untraced(sampler: Sampler) -> Any:
    """The step hook, run outside of torch.compile's tracing where a compiled function makes the step.

    `torch._disable_dynamo` (private) imports nothing before its first call; `torch.compiler.disable` would import
    Dynamo with torch. It costs more than all the rest of the hook, so it is left out where Dynamo is not at work in
    this thread: asked of a private function, and where there is none, it is never left out. Without
    `_disable_dynamo` the hook is traced, and then it does nothing.
    """
    compiling, after_step = torch.compiler.is_dynamo_compiling, sampler.after_step
    disable = getattr(torch, "_disable_dynamo", None)
    at_work = getattr(getattr(torch._C._dynamo, "eval_frame", None), "get_eval_frame_callback", None)
    outside = None if disable is None else disable(functools.partial(after_step))
    if outside is not None and at_work is None:
        return outside

    def untraced(optimizer: Optimizer, *_: Any) -> None:
        if compiling() or (at_work is not None and at_work() is not None):
            if outside is not None:
                outside(optimizer)
        else:
            after_step(optimizer)

    return untraced


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)
