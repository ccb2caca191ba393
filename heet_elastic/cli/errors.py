"""How commands end: an error that heet raises on purpose is one sentence and its exit code, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from heet_elastic.errors import HeetError


def run(command: Callable[[], int | None]) -> int:
    """Exit code of `command`: its own, a HeetError's (with its sentence on stderr), or 130 for Ctrl-C."""
    try:
        return command() or 0
    except HeetError as e:
        print(f"heet: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone: nobody is left to tell anything.
        sys.stderr.close()
        return 0
