"""Checkpoints that a script saves and loads, noticed by hooks on what it saves: optimizer and module state.

A save becomes a mark at the next step (or the end of the process): until then the file may not be complete. The state
of an optimizer is a checkpoint; that of a module alone counts only while no optimizer was ever saved and it happens
rarely (weight averaging reads it at every step). Loads happen before the first step, when no instance is known yet, so
`load_state_dict` of the two base classes is wrapped.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

RARE_STEPS = 5
"""Fewer steps than this between two saves of a module, FREQUENT times in a row: it is no checkpoint."""
FREQUENT = 3
WHOLE_SHARE = 0.9
"""Weights loaded into a module with this share of the trained parameters are the model's, not a backbone's."""


class _SaveHook:
    """A state_dict hook of a module. Copies and pickles of the module carry a do-nothing instead."""

    __slots__ = ("_watch",)

    def __init__(self, watch: CheckpointWatch) -> None:
        self._watch = watch

    def __call__(self, *_: Any) -> None:
        self._watch.module_saved()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class CheckpointWatch:
    """Marks and loads of one process. `position` gives (steps, samples) counted so far; `wake` is called at each."""

    def __init__(self, position: Callable[[], tuple[int, float]], wake: Callable[[], None]) -> None:
        self._position = position
        self._wake = wake
        self._undo: list[Callable[[], None]] = []
        self.pending: tuple[int, float] | None = None  # position of a save that is no mark yet
        self._optimizer_saves = 0
        self._frequent = 0
        self._last_module_save = -RARE_STEPS
        self._loaded_weights: dict[int, int] = {}  # id of a loaded module's first parameter -> parameters in it
        self.flagged = False  # something was saved or loaded since the last step
        self.marks = 0
        self.marked_steps = 0
        self.marked_samples = 0.0
        self.loads = 0
        self.weight_loads = 0
        self.loaded_steps: float | None = None

    def _flag(self) -> None:
        self.flagged = True
        self._wake()

    def wrap_loads(self, optimizer_type: Any, module_type: Any) -> None:
        """Notice loads on every optimizer and module from now on."""
        self._wrap(optimizer_type, self._optimizer_loaded)
        self._wrap(module_type, self._module_loaded)

    def _wrap(self, owner: Any, notice: Callable[[Any], None]) -> None:
        original = owner.load_state_dict

        @functools.wraps(original)
        def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            with contextlib.suppress(Exception):
                notice(self)
            return result

        def restore() -> None:
            if owner.load_state_dict is load_state_dict:
                owner.load_state_dict = original

        owner.load_state_dict = load_state_dict
        self._undo.append(restore)

    def _optimizer_loaded(self, _: Any) -> None:
        self.loads += 1
        self._flag()

    def _module_loaded(self, module: Any) -> None:
        self._flag()
        parameters = list(module.parameters())
        if parameters and len(self._loaded_weights) < 1000:
            self._loaded_weights[id(parameters[0])] = sum(p.numel() for p in parameters)

    def met(self, optimizer: Any, wanted: set[int], loaded_steps: float | None) -> None:
        """An optimizer made its first step with these parameters; `loaded_steps` were in its state before."""
        self._undo.append(optimizer.register_state_dict_post_hook(self._optimizer_saved).remove)
        if loaded_steps:
            self.loads = max(self.loads, 1)
            self.loaded_steps = max(self.loaded_steps or 0.0, loaded_steps)
        trained = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        if any(i in wanted and n >= WHOLE_SHARE * trained for i, n in self._loaded_weights.items()):
            self.weight_loads = 1

    def watch_module(self, module: Any) -> None:
        """Notice saves of this module's state."""
        self._undo.append(module.register_state_dict_pre_hook(_SaveHook(self)).remove)

    def _optimizer_saved(self, *_: Any) -> None:
        self._optimizer_saves += 1
        self.pending = self._position()
        self._flag()

    def module_saved(self) -> None:
        """A watched module's state was read."""
        steps = self._position()[0]
        self._flag()
        if steps != self._last_module_save:
            self._frequent = self._frequent + 1 if steps - self._last_module_save < RARE_STEPS else 0
        self._last_module_save = steps
        if not self._optimizer_saves and self._frequent < FREQUENT:
            self.pending = self._position()

    def commit(self) -> bool:
        """The script went on after a save: it is a mark now. True if there was one."""
        if self.pending is None:
            return False
        self.marks += 1
        self.marked_steps, self.marked_samples = self.pending
        self.pending = None
        return True

    def close(self) -> None:
        """Take every hook away and give the wrapped methods back."""
        for undo in self._undo:
            undo()
        self._undo.clear()
