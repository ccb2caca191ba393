"""A worker that dies of an exception says which, where torch and the agent look for it.

torch reads `TORCHELASTIC_ERROR_FILE` for its summary and to tell causes from echoes, but only scripts that wrap their
main function in `@record` write it. This writes the same JSON from `sys.excepthook`, after the traceback was printed.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from types import TracebackType

ENV_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
MARK = ".torch"
"""Beside the error file an empty one of this ending says that the worker came as far as `import torch`."""
_MOST = 20_000
"""Characters of a traceback that are kept, from its end."""


def install() -> None:
    """Have uncaught exceptions of this process written; what is printed does not change."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            before(kind, error, trace)
        finally:
            write(os.environ.get(ENV_ERROR_FILE, ""), kind, error, trace)

    sys.excepthook = hook
    path = os.environ.get(ENV_ERROR_FILE, "")
    if path:
        with contextlib.suppress(OSError), open(path + MARK, "w"):  # noqa: PTH123
            pass


def write(path: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write torch's error file, unless `@record` has. Never raises."""
    if not path or os.path.exists(path):  # noqa: PTH110 (pathlib is no import of a worker's start)
        return
    try:
        stack = "".join(traceback.format_exception(kind, error, trace))[-_MOST:]
        extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
        message = {"message": f"{kind.__name__}: {error}"[:2000], "extraInfo": extra}
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"message": message}, file)
    except Exception:
        return
