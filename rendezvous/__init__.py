"""The torchrun plug-in. This module stays free of torch: torch loads it while its own modules are half imported."""

from __future__ import annotations

from typing import Any

if __name__ != "heet_elastic.rendezvous":
    raise ImportError("import heet_elastic.rendezvous (the folder rendezvous/ is reached through heet_elastic)")


def entry_point() -> Any:
    """What torch registers for `--rdzv-backend=heet`: a creator that imports the handler when it is called."""

    def create_handler(parameters: Any) -> Any:
        from heet_elastic.rendezvous.handler import create_handler as create

        return create(parameters)

    return create_handler
