"""The torchrun plug-in. This module stays free of torch: torch loads it while its own modules are half imported."""

from __future__ import annotations

import sys
from typing import Any

from heet_elastic.errors import HeetError

if __name__ != "heet_elastic.rendezvous":
    raise ImportError("import heet_elastic.rendezvous (the folder rendezvous/ is reached through heet_elastic)")


def entry_point() -> Any:
    """What torch registers for `--rdzv-backend=heet`: a creator that imports the handler when it is called."""

    def create_handler(parameters: Any) -> Any:
        try:
            from heet_elastic.rendezvous.handler import create_handler as create
        except HeetError as error:  # a library is missing: its sentence, not torch's traceback
            print(f"heet: {error}", file=sys.stderr, flush=True)
            raise SystemExit(error.exit_code) from None
        return create(parameters)

    return create_handler
