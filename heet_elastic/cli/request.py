"""What the flags of `heet submit` ask for: a job's spec and its command."""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from heet_elastic.agents.node_records import JobCommand, check_variable
from heet_elastic.errors import UsageError
from heet_elastic.model import JobSpec, WorkUnit
from heet_elastic.rendezvous.settings import LONGEST_ID_BYTES, PARSERS

MOST_HOSTS = 1024
_FLAGS_SAY = {"name": "--name", "min_workers": "--min", "max_workers": "--max", "workers": "--workers"} | {
    n: f"--{n.replace('_', '-')}" for n in ("multiple_of", "priority", "total_steps", "total_samples", "total_epochs")
}
"""Keys of --rdzv-conf that are flags here."""


@dataclass(frozen=True, slots=True)
class Request:
    """One submission. again: in place of an ended job of that id. follow: until its end."""

    spec: JobSpec
    command: JobCommand
    again: bool = False
    unchecked: bool = False
    follow: bool = False


def describe(
    command: Annotated[
        list[str], typer.Argument(help="The script and its arguments, after --.", metavar="-- SCRIPT ARGS")
    ],
    job_id: Annotated[
        str | None, typer.Option("--id", help="Job id; default: the script's name and six letters.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="Jobs of one name are runs of the same training. Default: the script's name.")
    ] = "",
    hosts: Annotated[str, typer.Option(help="MIN:MAX hosts, or N whole hosts (rigid).")] = f"1:{MOST_HOSTS}",
    least: Annotated[int | None, typer.Option("--min", min=1, help="Fewest workers (GPUs).")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Most workers (GPUs).")] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="Most workers on one host. Default: what a host has.")
    ] = None,
    workers: Annotated[str, typer.Option(help="The only world sizes allowed, e.g. 1/2/4/8.")] = "",
    multiple_of: Annotated[int, typer.Option(min=1, help="World sizes are multiples of this.")] = 1,
    priority: Annotated[float, typer.Option(min=0.001, help="2 = twice as urgent.")] = 1.0,
    total_steps: Annotated[float | None, typer.Option(min=0, help="Work of the whole job, in optimizer steps.")] = None,
    total_samples: Annotated[float | None, typer.Option(min=0, help="The same, in samples.")] = None,
    total_epochs: Annotated[float | None, typer.Option(min=0, help="The same, in epochs.")] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="Failures of the script that are forgiven.")] = 0,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="K=V for the workers; K alone: its value here.")
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="K=FILE: workers find a private copy of FILE at the path in K_FILE.")
    ] = None,
    cwd: Annotated[Path | None, typer.Option(help="Working folder on the hosts. Default: this one.")] = None,
    python: Annotated[str, typer.Option(help="Interpreter on the hosts. Default: the heet-agent's.")] = "",
    torchrun_arg: Annotated[
        list[str] | None, typer.Option(help="Further argument of torchrun, e.g. --torchrun-arg=-m.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="KEY=VALUE of --rdzv-conf, e.g. stop_grace_s=60.")] = None,
    follow_it: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its state, then rank 0's log; end with its exit code.")
    ] = False,
    again: Annotated[bool, typer.Option(help="Run it anew if the job of this --id has ended.")] = False,
    unchecked: Annotated[
        bool, typer.Option(help="Do not ask whether script and hosts are there (they may come later).")
    ] = False,
) -> Request:
    """Submit a job to the hosts that run a heet-agent. Prints the job id."""
    script, *arguments = command
    folder = str((cwd or Path.cwd()).absolute())
    least_hosts, most_hosts = _hosts(hosts)
    total, unit = _work(total_steps, total_samples, total_epochs)
    job = check_job(job_id) if job_id is not None else _fresh_id(script)
    try:
        spec = JobSpec(
            job=job,
            name=name or Path(script).name,
            incarnation=uuid.uuid4().hex[:12],
            min_hosts=least_hosts,
            max_hosts=most_hosts,
            min_workers=least or least_hosts,
            max_workers=most,
            allowed_workers=_sizes(workers),
            multiple_of=multiple_of,
            priority=priority,
            total_work=total,
            work_unit=unit,
            script=Path(script).name,
            user=_user(),
            submitted=True,
            most_per_host=nproc,
        )
        asked = JobCommand(
            job=job,
            incarnation=spec.incarnation,
            script=script,
            arguments=tuple(arguments),
            cwd=folder,
            python=python,
            max_restarts=max_restarts,
            torchrun=tuple(torchrun_arg or ()),
            conf=_conf(conf or ()),
            environment=_environment(env or (), os.environ),
            secrets=_secrets(secret or ()),
        )
    except ValueError as e:
        raise UsageError(str(e)) from None
    return Request(spec, asked, again, unchecked, follow_it)


def check_job(job: str) -> str:
    """`job` if torchrun can make a folder of that name; UsageError otherwise."""
    if "/" in job or job in ("none", ".", "..") or len(job.encode()) > LONGEST_ID_BYTES:
        raise UsageError(
            f"--id {job[:60]!r}: torchrun makes a folder of that name, so it holds no slash, has at most "
            f"{LONGEST_ID_BYTES} bytes, and is not 'none'"
        )
    return job


def _fresh_id(script: str) -> str:
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(script).stem)[:40].strip("-") or "job"
    return f"{stem}-{uuid.uuid4().hex[:6]}"


def _hosts(text: str) -> tuple[int, int]:
    least, colon, most = text.partition(":")
    if not least.isdigit() or (colon and not most.isdigit()) or int(least) < 1 or (colon and int(most) < int(least)):
        raise UsageError(f"--hosts is {text!r}: expected MIN:MAX, or N for exactly N whole hosts")
    return int(least), int(most) if colon else int(least)


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split("/") if text else []
    if not all(p.isdigit() and int(p) > 0 for p in parts):
        raise UsageError(f"--workers is {text!r}: expected world sizes separated by slashes, e.g. 1/2/4/8")
    return tuple(sorted({int(p) for p in parts}))


def _work(steps: float | None, samples: float | None, epochs: float | None) -> tuple[float | None, WorkUnit]:
    given: list[tuple[float, WorkUnit]] = []
    if steps is not None:
        given.append((steps, "steps"))
    if samples is not None:
        given.append((samples, "samples"))
    if epochs is not None:
        given.append((epochs, "epochs"))
    if len(given) > 1:
        raise UsageError("the work of a job has one unit: give one of --total-steps, --total-samples, --total-epochs")
    return given[0] if given else (None, "steps")


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{flag} {text!r}: expected KEY=VALUE")
    return name, value


def _conf(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Settings of the job's torchruns, checked here as they would be there."""
    pairs = tuple(_pair("--conf", text) for text in given)
    for key, value in pairs:
        if key in _FLAGS_SAY:
            raise UsageError(f"--conf {key}: give {_FLAGS_SAY[key]} instead")
        if key not in PARSERS:
            known = sorted(PARSERS.keys() - _FLAGS_SAY.keys())
            raise UsageError(f"--conf {key} is not known; known are {', '.join(known)}")
        if "," in value:
            raise UsageError(f"--conf {key}={value}: torchrun would split it at the comma")
        PARSERS[key](f"--conf {key}", value)
    return pairs


def _environment(given: Sequence[str], here: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in given:
        name, equals, value = text.partition("=")
        check_variable(name)
        if not equals and name not in here:
            raise UsageError(f"--env {name}: it is not set here; give --env {name}=VALUE")
        pairs.append((name, value if equals else here[name]))
    return tuple(pairs)


def _secrets(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Values are read from files, so that they are in no command line."""
    pairs = []
    for text in given:
        name, file = _pair("--secret", text)
        check_variable(name)
        try:
            pairs.append((name, Path(file).read_text()))
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"--secret {name}: the file {file} cannot be read: {e}") from e
    return tuple(pairs)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
