"""Samples and tokens of a step, from what the root modules were given: which modules to watch, and their hooks.

Search for the modules of an optimizer never seen before: the outermost ones that hold its parameters; if none of them
is called within two steps (a LightningModule whose training_step calls its parts, a container), the modules right below
them, and so on, MAX_LEVELS deep; then samples are unknown, and said. No hook is ever taken away while the script runs:
one that is not called costs nothing, but code that torch.compile traced with a hook is compiled anew without it.

A hook counts in training mode with gradients on; any other call flags the step's gap as one with an evaluation in it.
A model that is trained in eval mode (frozen statistics) is recognised by never being called otherwise.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from heet_elastic.agents.batches import NOTHING, Size, batch_size
from heet_elastic.agents.compute import ComputeTimer
from heet_elastic.agents.modules import MINOR_SHARE, held_bytes, live_modules, outermost, parts

PATIENCE_STEPS = 2
MAX_SCANS = 64
MAX_LEVELS = 6
MAX_HOOKS = 256
NO_FORWARD = "no forward pass of the trained modules was seen: samples are unknown (heet_elastic.report tells them)"
NO_ROOT = "no module holds the optimizer's parameters: samples are unknown (heet_elastic.report tells them)"


class ForwardHook:
    """A forward pre-hook (with keywords) on one module. Copies and pickles of the module carry a do-nothing instead."""

    __slots__ = ("_undo", "_watch", "any_mode", "calls", "held", "minor", "other_calls", "samples", "tokens")

    def __init__(self, watch: ForwardWatch, held: int) -> None:
        self._watch = watch
        self.held = held  # bytes of trained parameters in the module
        self._undo: Callable[[], None] | None = None
        self.minor = False  # too small a part of the model to speak for its batch
        self.any_mode = False
        self.calls = 0
        self.other_calls = 0  # with gradients, but in eval mode
        self.samples = 0  # since the last step
        self.tokens = 0

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count one forward pass: the hot path. Traced by torch.compile it is nothing at all."""
        watch = self._watch
        if watch.is_compiling() or watch.off:
            return
        try:
            if not watch.gradients_on() or not (module.training or self.any_mode):
                self.other_calls += watch.gradients_on()
                watch.flagged = True
                watch.wake()
                return
            self.calls += 1
            if watch.timer.armed:
                watch.timer.forward(watch.clock())
            first: Any = args[0] if args else None
            if self.minor:
                pass
            elif type(first) is watch.tensor_type and first.is_floating_point() and (shape := first.shape):
                self.samples += shape[0]  # as batch_size would say, without another call
            else:
                samples, tokens = batch_size(args, kwargs)
                self.samples += samples
                self.tokens += tokens
            if watch.on_first is not None:
                watch.tell_first()
        except Exception as error:  # the script must go on
            watch.failed(error)

    def attach(self, module: Any) -> None:
        """Watch `module`; around the compiled call where it was compiled in place (hooks are traced into that)."""
        compiled = module.__dict__.get("_compiled_call_impl")
        if compiled is None:
            self._undo = module.register_forward_pre_hook(self, with_kwargs=True).remove
            return
        weak = weakref.ref(module)

        def call(*args: Any, **kwargs: Any) -> Any:
            self(weak(), args, kwargs)
            return compiled(*args, **kwargs)

        def restore() -> None:
            alive = weak()
            if alive is not None and alive.__dict__.get("_compiled_call_impl") is call:
                alive._compiled_call_impl = compiled

        module._compiled_call_impl = call
        self._undo = restore

    def detach(self) -> None:
        """Watch it no more."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes three arguments, returns None


class ForwardWatch:
    """The hooks of one process and what they counted since the last step."""

    def __init__(
        self,
        module_type: type,
        tensor_type: type,
        is_compiling: Callable[[], bool],
        gradients_on: Callable[[], bool],
        timer: ComputeTimer,
        clock: Callable[[], float],
        wake: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.is_compiling = is_compiling
        self.gradients_on = gradients_on
        self.timer = timer
        self.clock = clock
        self.wake = wake  # something was seen that belongs to the step that runs now
        self.failed = failed
        self.tensor_type: Any = tensor_type
        self._module_type = module_type
        self.off = False
        self.flagged = False  # an evaluation was seen since the last step
        self.on_first: Callable[[], None] | None = None
        self._roots: list[weakref.ref[Any]] = []
        self.problem: str | None = None
        self._hooks: list[ForwardHook] = []
        self._wanted: set[int] = set()
        self._silent: list[weakref.ref[Any]] = []  # the level watched now, while nothing was called yet
        self._level = 0
        self._due = 0  # steps until the hooks are judged
        self._scans = 0

    def tell_first(self) -> None:
        """The first forward pass is counted: whoever wants to see its surroundings may look now, once."""
        first, self.on_first = self.on_first, None
        if first is not None:
            first()

    @property
    def roots(self) -> list[Any]:
        """Outermost modules found so far that are still there."""
        return [root for weak in self._roots if (root := weak()) is not None]

    def meet(self, wanted: set[int]) -> list[Any]:
        """Watch the modules of an optimizer with these parameters; the roots that were not known before."""
        if wanted <= self._wanted or self._scans >= MAX_SCANS:
            return []
        self._scans += 1
        self._wanted |= wanted
        known = {id(root) for root in self.roots}
        new = [r for r in outermost(live_modules(self._module_type), wanted) if id(r) not in known]
        self._roots += [weakref.ref(root) for root in new]
        if not self._roots:
            self.problem = NO_ROOT
        elif new:
            self.problem = None
            self._level = 0
            self._add(new)
        return new

    def _add(self, modules: list[Any]) -> None:
        for module in modules[: MAX_HOOKS - len(self._hooks)]:
            hook = ForwardHook(self, held_bytes(module, self._wanted))
            hook.attach(module)
            self._hooks.append(hook)
        self._silent = [weakref.ref(module) for module in modules]
        self._due = PATIENCE_STEPS

    @property
    def every_step(self) -> bool:
        """Whether `settle` has to be called after each single step: several modules, or still searching."""
        return self._due > 0 or len(self._hooks) > 1

    @property
    def seeing(self) -> bool:
        """Whether forward passes are seen at all."""
        return bool(self._hooks) and self.problem is None

    def settle(self, steps: int = 1) -> Size:
        """(samples, tokens) of the steps that ended: the smallest count over watched modules that were called."""
        size, searching = NOTHING, self._due > 0 and self._level > 0
        for hook in self._hooks:
            if hook.samples:
                if not size[0] or hook.samples < size[0]:
                    size = hook.samples, hook.tokens
                hook.samples = hook.tokens = 0
        if self._due:
            self._due = max(0, self._due - steps)
            if not self._due:
                self._judge()
        return NOTHING if searching else size  # parts speak for the batch once the minor ones are told apart

    def _judge(self) -> None:
        """The hooks had their time: enough if something was called, else one level deeper."""
        for hook in self._hooks:
            hook.any_mode = not hook.calls and hook.other_calls > 0
        called = [hook for hook in self._hooks if hook.calls or hook.any_mode]
        largest = max((hook.held for hook in called), default=0)
        for hook in called:
            hook.minor = hook.held < MINOR_SHARE * largest
        if called:
            return
        below = [part for weak in self._silent if (m := weak()) is not None for part in parts(m, self._wanted)]
        self._level += 1
        if below and self._level <= MAX_LEVELS:
            self._add(below)
        else:
            self.problem = NO_FORWARD

    def close(self) -> None:
        """Take every hook away."""
        self.off = True
        for hook in self._hooks:
            hook.detach()
        self._hooks.clear()
