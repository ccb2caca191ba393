"""Questions to the call stack, asked at an optimizer's first step alone (and at each step of the rare nested ones)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any


def called_from(function: str) -> bool:
    """Whether a function of that name is running further up the stack."""
    return any(frame.f_code.co_name == function for frame in _frames())


def inside_own_step(optimizer: Any, module: str = "torch.optim.optimizer") -> bool:
    """Whether this hook runs inside another `step` of the same optimizer, whose own hook is still to come.

    It happens where a subclass's `step` calls `super().step()`: torch wraps both in the function `wrapper` of `module`.
    """
    file = sys.modules[module].__file__
    depth = 0
    for frame in _frames():
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == file and frame.f_locals.get("self") is optimizer:
            depth += 1
    return depth > 1


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
