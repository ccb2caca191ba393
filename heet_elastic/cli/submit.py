"""`heet submit`: hand a job to the pool. It exists once or not at all; the same `--id` again is no second job."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from heet_elastic.agents.node_records import JobCommand, check_variable
from heet_elastic.cli.access import Access
from heet_elastic.cli.follow import follow
from heet_elastic.cli.limits import why_never
from heet_elastic.cli.watching import opened
from heet_elastic.errors import RecordError, RefusedError, StoreUnavailableError, UsageError
from heet_elastic.model import JobSpec, Result, WorkUnit
from heet_elastic.store.api import Committed, Compare, Delete, Operation, Put, Store, View, absent
from heet_elastic.store.fence import ensure_store_id, same_store
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode, encode
from heet_elastic.store.snapshot import SnapshotDecoder

MOST_HOSTS = 1024
TRIES = 6
_LONGEST_ID_BYTES = 200
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission. existing: the same job was there before; result: it has ended."""

    job: str
    existing: bool = False
    result: Result | None = None


def submit(
    access: Access,
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
) -> None:
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
            conf=tuple(_pair("--conf", c) for c in conf or ()),
            environment=_environment(env or (), os.environ),
            secrets=_secrets(secret or ()),
        )
    except ValueError as e:
        raise UsageError(str(e)) from None
    with opened(access) as store:
        if not unchecked:
            check_script(asked)
            check_limits(store, access.keys, spec)
        done = put_job(store, access.keys, spec, asked, again)
        _tell(done)
        if follow_it:
            raise typer.Exit(follow(store, access.keys, job))


# --------------------------------------------------------------------------- checks


def check_job(job: str) -> str:
    """`job` if torchrun can make a folder of that name; UsageError otherwise."""
    if "/" in job or job in ("none", ".", "..") or len(job.encode()) > _LONGEST_ID_BYTES:
        raise UsageError(
            f"--id {job[:60]!r}: torchrun makes a folder of that name, so it holds no slash, has at most "
            f"{_LONGEST_ID_BYTES} bytes, and is not 'none'"
        )
    return job


def check_script(command: JobCommand) -> None:
    """Refuse a script that is not there, where this machine has the job's working folder. UsageError."""
    flags = {"-m", "--module", "--no-python", "--no_python"}
    if flags & set(command.torchrun) or not Path(command.cwd).is_dir():
        return
    path = Path(command.cwd, command.script)
    if not path.is_file():
        raise UsageError(
            f"there is no script {path} (--cwd names the folder on the hosts; --unchecked if only they have it)"
        )


def check_limits(store: Store, keys: Keys, spec: JobSpec) -> None:
    """Refuse limits that no host type of the pool could ever meet; say where nobody is there yet. UsageError."""
    hosts = SnapshotDecoder(keys).decode(store.read(keys.hosts)).snapshot.hosts
    why = why_never(spec, hosts)
    if why is not None:
        raise UsageError(f"job {spec.job} could never run here: {why} (--unchecked to submit it all the same)")
    if not store.read(keys.nodes).entries:
        print("heet: no heet-agent is here yet: the job waits for one", file=sys.stderr)
    if keys.leader not in store.read(keys.leader).entries:
        print("heet: no coordinator leads at present: the job waits for one", file=sys.stderr)


# --------------------------------------------------------------------------- writing


def put_job(store: Store, keys: Keys, spec: JobSpec, command: JobCommand, again: bool = False) -> Submitted:
    """Write the job, in one transaction: it exists once, or not at all.

    An answer that was lost is looked up, so trying again is safe. RefusedError where another job has the id;
    StoreUnavailableError when etcd stays away: then the same command with the same --id settles it.
    """
    for attempt in range(TRIES):
        try:
            found = _look(store.read(keys.job(spec.job)), keys, spec, command, again)
            if isinstance(found, Submitted):
                return found
            outcome = store.txn([same_store(keys, ensure_store_id(store, keys)), *found[0]], found[1])
            if isinstance(outcome, Committed):
                return Submitted(spec.job)
        except StoreUnavailableError as e:
            if attempt == TRIES - 1:
                raise StoreUnavailableError(
                    f"it is not known whether job {spec.job} was submitted ({e}): the same command with "
                    f"--id {spec.job} does it once, or finds it done"
                ) from e
            time.sleep(0.2 * 2**attempt)
    raise StoreUnavailableError(f"job {spec.job} is being changed by somebody else all the time: try again")


def _look(
    view: View, keys: Keys, spec: JobSpec, command: JobCommand, again: bool
) -> Submitted | tuple[list[Compare], list[Operation]]:
    """What is there already, or the transaction that submits the job."""
    job = spec.job
    puts: list[Operation] = [Put(keys.spec(job), encode(spec)), Put(keys.command(job), encode(command))]
    stored = view.entries.get(keys.spec(job))
    if stored is None:
        return [absent(keys.spec(job)), absent(keys.result(job))], puts
    there = _decoded(keys.spec(job), view, JobSpec)
    their_command, result = _decoded(keys.command(job), view, JobCommand), _decoded(keys.result(job), view, Result)
    ended = result is not None and there is not None and result.incarnation in ("", there.incarnation)
    if there is not None and there.incarnation == spec.incarnation:
        return Submitted(job)  # an earlier try of ours, whose answer was lost
    same = there is not None and their_command is not None and _same(there, their_command, spec, command)
    if same and not (ended and again):
        return Submitted(job, True, result if ended else None)
    if ended and again:
        seen = view.entries[keys.result(job)].mod_revision
        compares = [
            Compare(keys.spec(job), "mod_revision", stored.mod_revision),
            Compare(keys.result(job), "mod_revision", seen),
        ]
        others = [k for k in keys.run(job) if k != keys.command(job)]
        return compares, [*(Delete(k, prefix=k.endswith("/")) for k in others), *puts]
    what = "it has ended: --again runs this one in its place" if ended else "choose another id"
    raise RefusedError(f"the id {job!r} belongs to another job ({_difference(there, their_command, spec)}); {what}")


def _same(spec: JobSpec, command: JobCommand, own: JobSpec, own_command: JobCommand) -> bool:
    """Whether two submissions ask for the same."""
    return replace(spec, incarnation="") == replace(own, incarnation="") and replace(
        command, incarnation=""
    ) == replace(own_command, incarnation="")


def _difference(spec: JobSpec | None, command: JobCommand | None, own: JobSpec) -> str:
    """What is different, as far as it may be shown: never a command line or environment."""
    if spec is None or command is None:
        return "started by hand" if spec is not None else "its description cannot be read"
    names = [n for n in JobSpec.__slots__ if n != "incarnation" and getattr(spec, n) != getattr(own, n)]
    return "other " + ", ".join(names) if names else "another command line, folder or environment"


def _decoded(key: str, view: View, kind: type[R]) -> R | None:
    entry = view.entries.get(key)
    try:
        return None if entry is None else decode(key, entry.value, kind)
    except RecordError:
        return None


def _tell(done: Submitted) -> None:
    print(done.job, flush=True)
    if done.result is not None:
        print(f"heet: it has {done.result.outcome} already (--again: runs it anew)", file=sys.stderr)
    elif done.existing:
        print("heet: it was submitted before", file=sys.stderr)


# --------------------------------------------------------------------------- reading flags


def _fresh_id(script: str) -> str:
    stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(script).stem)[:40].strip("-") or "job"
    return f"{stem}-{secrets.token_hex(3)}"


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
