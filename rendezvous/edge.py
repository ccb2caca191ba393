"""Where a user meets the rendezvous: lines on stderr, and errors as sentences with an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from heet_elastic.errors import HeetError, StoreRefusedError, UsageError, WaitTimeoutError
from heet_elastic.rendezvous.torch_agent import runs_under_torchrun


def say(text: str) -> None:
    """A line for the user, on stderr like torch's own."""
    print(f"heet: {text}", file=sys.stderr, flush=True)


class PlainErrors(contextlib.AbstractContextManager[None]):
    """Under torchrun a user's mistake is a sentence and an exit code; else it is torch's rendezvous exception."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if not isinstance(error, HeetError):
            return
        self._before()
        if runs_under_torchrun():
            say(str(error))
            raise SystemExit(error.exit_code) from None
        if isinstance(error, UsageError):
            raise ValueError(str(error)) from error  # noqa: TRY004 (torch raises it for bad parameters)
        if isinstance(error, WaitTimeoutError):
            raise RendezvousTimeoutError(str(error)) from error
        if isinstance(error, StoreRefusedError):
            raise RendezvousConnectionError(str(error)) from error
        raise RendezvousStateError(str(error)) from error
