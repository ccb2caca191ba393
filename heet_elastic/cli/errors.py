"""How commands end: an error that heet raises on purpose is one sentence and its exit code, never a traceback.

So is one of the system that reaches the end (a folder that cannot be written, a full disk behind standard output).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from heet_elastic.errors import HeetError


def run(command: Callable[[], int | None]) -> int:
    """Exit code of `command`: its own, a HeetError's (with its sentence on stderr), or 130 for Ctrl-C."""
    _open_streams()
    try:
        try:
            return command() or 0
        finally:
            sys.stdout.flush()
    except HeetError as e:
        print(f"heet: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone: nobody is left to tell anything.
        _forget_output()
        return 0
    except OSError as e:
        _forget_output()
        thing = f"{e.filename}: " if e.filename is not None else ""
        print(f"heet: {thing}{e.strerror or e}", file=sys.stderr)
        return 1


def _open_streams() -> None:
    """A shell may close them (`>&-`), and they may know few letters: what is printed then is lost or spelt out."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            # On its own number, which a file of ours would get otherwise.
            taken = os.open(os.devnull, os.O_WRONLY)
            if taken != number:
                os.dup2(taken, number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Nothing that is still to be written fails again at the interpreter's end."""
    with contextlib.suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), number)
