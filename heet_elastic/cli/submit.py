"""`heet submit`, `heet sweep`: hand jobs to the pool. A job exists once or not at all, however often it is tried."""

from __future__ import annotations

import inspect
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from heet_elastic.agents.node_records import JobCommand
from heet_elastic.cli.access import Access
from heet_elastic.cli.limits import why_never
from heet_elastic.cli.request import Request, describe
from heet_elastic.cli.watching import opened
from heet_elastic.errors import HeetError, RecordError, RefusedError, StoreUnavailableError, UsageError
from heet_elastic.model import Host, JobSpec, Result
from heet_elastic.store.api import MAX_VALUE_BYTES, Committed, Compare, Delete, Operation, Put, Store, View, absent
from heet_elastic.store.fence import ensure_store_id, same_store
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode, encode
from heet_elastic.store.snapshot import SnapshotDecoder

TRIES = 6
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a submission. existing: the same job was there before; result: it has ended."""

    job: str
    existing: bool = False
    result: Result | None = None


def submit(access: Access, **flags: Any) -> None:
    """Submit a job to the hosts that run a heet-agent. Prints the job id."""
    request: Request = describe(**flags)
    with opened(access) as store:
        if not request.unchecked:
            check_script(request.command)
            check_limits(request.spec, pool_of(store, access.keys))
        _tell(put_job(store, access.keys, request.spec, request.command, request.again))
        if request.follow:
            from heet_elastic.cli.follow import follow  # it needs far more than submitting does

            raise typer.Exit(follow(store, access.keys, request.spec.job))


# The flags of `submit` are the parameters of `describe`.
submit.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("access", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Access),
        *(
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in inspect.signature(describe, eval_str=True).parameters.values()
        ),
    ]
)


def sweep(
    access: Access,
    file: Annotated[Path, typer.Argument(help="One job a line, as behind `heet submit`; - = standard input.")],
) -> None:
    """Submit many jobs at once: each line of FILE holds the flags and the script of one. Prints the job ids.

    Jobs with an --id are submitted once, so the same file can be given again after an interruption.
    """
    requests = list(read_sweep(file))
    with opened(access) as store:
        hosts = pool_of(store, access.keys)
        for number, request in requests:
            if not request.unchecked:
                with _at_line(file, number):
                    check_script(request.command)
                    check_limits(request.spec, hosts)
        for number, request in requests:
            with _at_line(file, number):
                _tell(put_job(store, access.keys, request.spec, request.command, request.again))


def read_sweep(file: Path) -> Iterator[tuple[int, Request]]:
    """(line number, what it asks for). Empty lines and those that begin with # are passed over. UsageError."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(describe)
    parser = typer.main.get_command(app)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{file} cannot be read: {e}") from e
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            with _at_line(file, number):
                yield number, _parse(parser, line)


def _parse(parser: Any, line: str) -> Request:
    try:
        words = shlex.split(line)
        if any(w in ("--help", "--follow", "-f") for w in words[: words.index("--") if "--" in words else None]):
            raise UsageError("--help and --follow have no place in a sweep")
        found = parser.main(words, prog_name="heet submit", standalone_mode=False)
    except ValueError as e:
        raise UsageError(str(e)) from None
    except Exception as e:
        explain = getattr(e, "format_message", None)  # click's own errors; typer may bring a click of its own
        if explain is None:
            raise
        raise UsageError(explain()) from None
    if not isinstance(found, Request):
        raise UsageError("it is no job")
    return found


@contextmanager
def _at_line(file: Path, number: int) -> Iterator[None]:
    """Errors of one line name it."""
    try:
        yield
    except HeetError as e:
        raise type(e)(f"{file}, line {number}: {e}") from e


# --------------------------------------------------------------------------- checks


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


def pool_of(store: Store, keys: Keys) -> Mapping[str, Host]:
    """The hosts that are there; says where nobody is there to run or to plan a job."""
    if not store.read(keys.nodes).entries:
        print("heet: no heet-agent is here yet: jobs wait for one", file=sys.stderr)
    if keys.leader not in store.read(keys.leader).entries:
        print("heet: no coordinator leads at present: jobs wait for one", file=sys.stderr)
    return SnapshotDecoder(keys).decode(store.read(keys.hosts)).snapshot.hosts


def check_limits(spec: JobSpec, hosts: Mapping[str, Host]) -> None:
    """Refuse limits that no host type of the pool could ever meet. UsageError."""
    why = why_never(spec, hosts)
    if why is not None:
        raise UsageError(f"job {spec.job} could never run here: {why} (--unchecked to submit it all the same)")


# --------------------------------------------------------------------------- writing


def put_job(store: Store, keys: Keys, spec: JobSpec, command: JobCommand, again: bool = False) -> Submitted:
    """Write the job, in one transaction: it exists once, or not at all.

    An answer that was lost is looked up, so trying again is safe. RefusedError where another job has the id;
    StoreUnavailableError when etcd stays away: then the same command with the same --id settles it. UsageError for a
    command that is too large.
    """
    size = len(encode(command))
    if size > MAX_VALUE_BYTES:
        raise UsageError(
            f"arguments, environment and secrets of job {spec.job} have {size} bytes together, at most "
            f"{MAX_VALUE_BYTES} (1 MiB) are possible: put what is large into files that the hosts can read"
        )
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
        print(f"heet: it has ended already: {done.result.outcome} (--again: runs it anew)", file=sys.stderr)
    elif done.existing:
        print("heet: it was submitted before", file=sys.stderr)
