"""What heet-agents and the commands of people write to the store about submitted jobs, and read there."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from heet_elastic.model import check_id

ENV_RUN = "HEET_INCARNATION"
"""Environment of a torchrun that a heet-agent started: "<incarnation> <job>"."""

ENV_PIPES = "HEET_LOG_PIPES"
"""Folder of the pipes that such a torchrun's workers write to, one a local rank."""

AGENT_PREFIX = "heet-agent:"
"""Process names of daemons in host records start with this; the coordinator tells them by it."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("HEET_", "TORCHELASTIC_", "PET_")
_LAUNCHERS = frozenset({"CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT"} | {"RANK", "LOCAL_RANK", "WORLD_SIZE"})


@dataclass(frozen=True, slots=True)
class JobCommand:
    """How heet-agents start a torchrun of a submitted job; stored at jobs/<job>/command beside its spec.

    script: path, module or program, as torchrun takes it. python: interpreter on the hosts; "" = the heet-agent's.
    cwd: "" = the heet-agent's own. secrets: (name, value); a worker finds the path of a file in NAME_FILE.
    """

    job: str
    incarnation: str
    script: str
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    python: str = ""
    max_restarts: int = 0
    torchrun: tuple[str, ...] = ()
    conf: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_id("job id", self.job)
        if not self.script:
            raise ValueError("the script is missing")
        if self.max_restarts < 0:
            raise ValueError(f"max_restarts is {self.max_restarts}: expected 0 or more")
        for name, _ in (*self.environment, *self.secrets):
            check_variable(name)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Where a host's heet-agent answers; stored at nodes/<host> under its lease.

    token: who shows it may read logs. Only readers of the prefix can know it; it is new at every start of the daemon.
    """

    host: str
    agent: str
    address: str
    port: int
    token: str = field(repr=False)
    user: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class StartReport:
    """A heet-agent could not keep a torchrun of this job alive; stored at jobs/<job>/starts/<host> under its lease.

    failures: in a row, without one that lived. exit_code: None = unknown. words: the end of what torchrun said.
    """

    host: str
    incarnation: str
    failures: int
    exit_code: int | None
    words: str


def check_variable(name: str) -> str:
    """`name` if a job may set this environment variable; ValueError with a sentence otherwise."""
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an environment variable")
    if name.startswith(_OURS) or name in _LAUNCHERS:
        raise ValueError(f"{name} is set by heet and torchrun for every worker: a job cannot choose it")
    return name
