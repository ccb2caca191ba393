"""`torchrun --logs-specs=heet`: workers of a submitted job write into the pipes of their heet-agent, one a local rank.

torch's own redirection writes files that grow without bound, and a full disk would end the workers. Whoever reads the
pipes bounds the logs (agents/node_writer.py). Each worker's log says at every start which round and rank follows.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest, Std

from heet_elastic.agents.node_records import ENV_PIPES


class HeetLogsSpecs(DefaultLogsSpecs):  # type: ignore[misc]
    """Where workers write: HEET_LOG_PIPES/<local rank>, where that pipe exists; else as without any redirection."""

    def __init__(self, log_dir: str | None = None, local_ranks_filter: set[int] | None = None, **_given: Any) -> None:
        super().__init__(log_dir, Std.NONE, Std.NONE, local_ranks_filter)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Destinations of the workers that are about to start."""
        there = super().reify(envs)
        folder = os.environ.get(ENV_PIPES, "")
        for local_rank, env in envs.items():
            pipe = os.path.join(folder, str(local_rank))  # noqa: PTH118
            if folder and os.path.exists(pipe):  # noqa: PTH110
                there.stdouts[local_rank] = there.stderrs[local_rank] = pipe
                _announce(pipe, env)
        return there


def _announce(pipe: str, env: dict[str, str]) -> None:
    line = f"heet: round {os.environ.get('HEET_ROUND', '?')}: rank {env.get('RANK')} of {env.get('WORLD_SIZE')}\n"
    with contextlib.suppress(OSError):  # a full pipe, or nobody who reads it: a lost line, no lost worker
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
