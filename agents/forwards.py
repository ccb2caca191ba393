"""Samples and tokens of a step, from what the root modules were given: which modules to watch, and their hooks.

Order of search for an optimizer never seen before: (1) the outermost modules that hold its parameters; (2) if none of
them is called within two steps (a LightningModule whose training_step calls its parts, a container), every module
below them for two steps, of which the outermost called ones stay watched; (3) nothing: samples are unknown, and said.

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
from heet_elastic.agents.modules import MINOR_SHARE, inner_modules, live_modules, outermost

PATIENCE_STEPS = 2
MAX_SCANS = 64
NO_FORWARD = "no forward pass of the trained modules was seen: samples are unknown (heet_elastic.report tells them)"
NO_ROOT = "no module holds the optimizer's parameters: samples are unknown (heet_elastic.report tells them)"


class ForwardHook:
    """A forward pre-hook (with keywords) on one module. Copies and pickles of the module carry a do-nothing instead."""

    __slots__ = ("_undo", "_watch", "any_mode", "calls", "other_calls", "samples", "tokens")

    def __init__(self, watch: ForwardWatch) -> None:
        self._watch = watch
        self._undo: Callable[[], None] | None = None
        self.any_mode = False
        self.calls = 0
        self.other_calls = 0  # with gradients, but in eval mode
        self.samples = 0  # since the last step
        self.tokens = 0

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count one forward pass. Traced by torch.compile it is nothing at all."""
        watch = self._watch
        if watch.is_compiling() or watch.off:
            return
        try:
            watch.called(self, module.training, args, kwargs)
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
        is_compiling: Callable[[], bool],
        gradients_on: Callable[[], bool],
        timer: ComputeTimer,
        clock: Callable[[], float],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.is_compiling = is_compiling
        self.failed = failed
        self._module_type, self._gradients_on, self._timer, self._clock = module_type, gradients_on, timer, clock
        self.off = False
        self.flagged = False  # an evaluation was seen since the last step
        self.on_first: Callable[[], None] | None = None
        self._roots: list[weakref.ref[Any]] = []
        self.problem: str | None = None
        self._hooks: list[ForwardHook] = []
        self._wanted: set[int] = set()
        self._below: list[tuple[Any, tuple[int, ...], int]] = []  # stage 2: modules in the order of `_hooks`
        self._due = 0  # steps until the hooks are judged
        self._scans = 0

    def called(self, hook: ForwardHook, training: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A watched module is called."""
        if not self._gradients_on():
            self.flagged = True
            return
        if not training and not hook.any_mode:
            hook.other_calls += 1
            self.flagged = True
            return
        hook.calls += 1
        if self._timer.armed:
            self._timer.forward(self._clock())
        samples, tokens = batch_size(args, kwargs)
        hook.samples += samples
        hook.tokens += tokens
        if self.on_first is not None:
            first, self.on_first = self.on_first, None
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
            searching, self._below = bool(self._below), []
            if searching:  # inside other roots: begin again, with all of them
                self._drop(set())
            self._add(self.roots if searching else new)
        return new

    def _add(self, modules: list[Any]) -> None:
        for module in modules:
            hook = ForwardHook(self)
            hook.attach(module)
            self._hooks.append(hook)
        self._due = PATIENCE_STEPS

    def settle(self) -> Size:
        """(samples, tokens) of the step that ends now: the smallest count over watched modules that were called."""
        size, searching = NOTHING, bool(self._below)
        for hook in self._hooks:
            if hook.samples:
                if not size[0] or hook.samples < size[0]:
                    size = hook.samples, hook.tokens
                hook.samples = hook.tokens = 0
        if self._due:
            self._due -= 1
            if not self._due:
                self._judge()
        return NOTHING if searching else size  # while every inner module is watched, none speaks for the batch

    def _judge(self) -> None:
        """Keep the hooks that saw something; else search further."""
        for hook in self._hooks:
            if not hook.calls and hook.other_calls:
                hook.any_mode = True
        if not any(hook.calls or hook.any_mode for hook in self._hooks):
            self._search_below()
        elif self._below:
            self._keep_outermost()

    def _search_below(self) -> None:
        self._drop(set())
        if self._below:
            self._below = []
            self.problem = NO_FORWARD
            return
        self._below = [entry for root in self.roots for entry in inner_modules(root, self._wanted)]
        if self._below:
            self._add([module for module, _, _ in self._below])
        else:
            self.problem = NO_FORWARD

    def _keep_outermost(self) -> None:
        pairs = zip(self._below, self._hooks, strict=True)
        called = {id(module) for (module, _, _), hook in pairs if hook.calls or hook.any_mode}
        top = {
            place: held
            for place, (module, above, held) in enumerate(self._below)
            if id(module) in called and not called.intersection(above)
        }
        largest = max(top.values())
        self._drop({place for place, held in top.items() if held >= MINOR_SHARE * largest})
        self._below = []

    def _drop(self, keep: set[int]) -> None:
        for place, hook in enumerate(self._hooks):
            if place not in keep:
                hook.detach()
        self._hooks = [hook for place, hook in enumerate(self._hooks) if place in keep]

    def close(self) -> None:
        """Take every hook away."""
        self.off = True
        self._drop(set())
