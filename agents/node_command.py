"""From a submitted job to the torchrun of one host: command line and environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heet_elastic.agents.node_records import ENV_PIPES, ENV_RUN, JobCommand
from heet_elastic.agents.node_runs import Launch
from heet_elastic.model import JobSpec


@dataclass(frozen=True, slots=True)
class Here:
    """What this host's daemon knows. devices: how many it offers. conf: --rdzv-conf where the job does not say better.

    identity: HEET_* variables that make a torchrun see the host as the daemon does. environment: the daemon's own.
    """

    endpoint: str
    python: str
    devices: int
    conf: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def launch(spec: JobSpec, command: JobCommand, folder: Path, here: Here) -> Launch:
    """What to start for one job; `folder` is its run's."""
    ranks = spec.most_per_host or max(here.devices, 1)
    return Launch(
        job=spec.job,
        incarnation=spec.incarnation,
        argv=argv(spec, command, here, ranks),
        environment=environment(spec, command, folder, here),
        cwd=command.cwd or "/",
        ranks=ranks,
        secrets=dict(command.secrets),
    )


def argv(spec: JobSpec, command: JobCommand, here: Here, ranks: int) -> tuple[str, ...]:
    """The command line. The job's limits are in its spec, which this torchrun adopts: they are not repeated here."""
    conf = {**here.conf, **dict(command.conf)}
    return (
        command.python or here.python,
        *("-m", "torch.distributed.run"),
        *("--rdzv-backend=heet", f"--rdzv-endpoint={here.endpoint}", f"--rdzv-id={spec.job}"),
        *(f"--nnodes={spec.min_hosts}:{spec.max_hosts}", f"--nproc-per-node={ranks}"),
        *(f"--max-restarts={command.max_restarts}", "--logs-specs=heet"),
        *([f"--rdzv-conf={','.join(f'{k}={v}' for k, v in conf.items())}"] if conf else []),
        *command.torchrun,
        command.script,
        *command.arguments,
    )


def environment(spec: JobSpec, command: JobCommand, folder: Path, here: Here) -> dict[str, str]:
    """The daemon's environment, then the job's, then what must be true on this host."""
    secrets = {f"{name}_FILE": str(folder / "secrets" / name) for name, _ in command.secrets}
    return {
        **here.environment,
        "PYTHONUNBUFFERED": "1",
        **dict(command.environment),
        **secrets,
        **here.identity,
        ENV_RUN: f"{spec.incarnation} {spec.job}",
        ENV_PIPES: str(folder / "pipes"),
    }
