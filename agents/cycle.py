"""When a global step ends: at an optimizer's step if it is the first one to step again since the last global step.

One optimizer: each of its steps. A GAN's two, one per layer, one inside another: once a round. Five critic steps to one
of the generator: each of the critic's. A replaced optimizer costs one step that is not counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from heet_elastic.agents import frames


class StepCycle:
    """The optimizers seen so far. `meet` is called at the first step of each (once per object)."""

    def __init__(self, meet: Callable[[Any], None]) -> None:
        self._meet = meet
        self._known: dict[int, weakref.ref[Any]] = {}
        self._nested: set[int] = set()
        self._stepped: set[int] = set()  # since the last global step
        self.any_seen = False
        self.alone = 0
        """id of the only optimizer, while there seems to be one: all of its steps are global ones. 0 = ask `leads`."""

    def leads(self, optimizer: Any) -> bool:
        """Whether a global step ends with this step of this optimizer."""
        key = id(optimizer)
        if key not in self._known:
            if frames.called_from("_init_optim_state"):
                return False  # torch makes a step to create the state that a checkpoint is loaded into
            self.any_seen = True
            self._known[key] = weakref.ref(optimizer, lambda _: self._forget(key))
            if frames.inside_own_step(optimizer):
                self._nested.add(key)
            self._meet(optimizer)
        if key in self._nested and frames.inside_own_step(optimizer):
            return False
        if self._stepped and key not in self._stepped:
            self._stepped.add(key)
            self.alone = 0
            return False
        self.alone = 0 if len(self._stepped) > 1 or key in self._nested else key
        self._stepped = {key}
        return True

    def _forget(self, key: int) -> None:
        self._known.pop(key, None)
        self._nested.discard(key)
        self._stepped.discard(key)
        self.alone = 0
