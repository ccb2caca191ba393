"""`heet logs JOB`: what its workers said, from the hosts that have it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from heet_elastic.agents.node_logs import MOST_BYTES
from heet_elastic.cli.access import Access
from heet_elastic.cli.follow import follow_rank
from heet_elastic.cli.reading import Reader, Source, source_of_rank, sources_on
from heet_elastic.cli.watching import JobWatch, exit_code, known_as_job, opened
from heet_elastic.errors import UsageError
from heet_elastic.model import JobView


def logs(
    access: Access,
    job: Annotated[str, typer.Argument(help="Job id.")],
    rank: Annotated[int | None, typer.Option(min=0, help="Global rank in the newest round. Default: 0.")] = None,
    host: Annotated[str | None, typer.Option(help="Everything that this host has: torchrun and all workers.")] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=1, help="Only the last lines. Default: all.")
    ] = None,
    follow_it: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
) -> None:
    """Print what a job's workers said. Only submitted jobs have logs here; torchrun's own go where you sent them."""
    if rank is not None and host is not None:
        raise UsageError("--rank and --host are both given: a rank has one host, choose one of them")
    if follow_it and host is not None:
        raise UsageError("--follow follows one rank: give --rank instead of --host")
    with opened(access) as store, JobWatch(store, access.keys, job) as watch:
        view = known_as_job(watch.view())
        if view.spec is not None and not view.spec.record.submitted:
            raise UsageError(f"job {job} was started by hand: its output is where its torchruns run")
        reader = Reader(store, access.keys, job)
        if follow_it:
            result = follow_rank(watch, reader, rank or 0, lines)
            raise typer.Exit(exit_code(result))
        chosen, problems = choose(view, reader, rank, host)
        for problem in problems:
            print(f"heet: {problem}", file=sys.stderr)
        for source in chosen:
            if len(chosen) > 1:
                print(f"==> {source.host}, {name_of(source)} <==", flush=True)
            copy(reader, source, lines)
    if not chosen:
        raise UsageError(f"job {job} has no log{f' on host {host}' if host else ''} yet")


def choose(view: JobView, reader: Reader, rank: int | None, host: str | None) -> tuple[list[Source], list[str]]:
    """The streams to print: of a host, of a rank of the newest round, or of everybody where no round is left."""
    nodes = reader.nodes()
    if host is not None:
        return sources_on(nodes, view.job, [host])
    allocation = None if view.allocation is None else view.allocation.record
    if allocation is not None and allocation.members:
        source = source_of_rank(allocation, rank or 0)
        if source is None:
            raise UsageError(
                f"--rank {rank}: the newest round of {view.job} has ranks 0 to {allocation.world_size - 1}"
            )
        return [source], []
    found, problems = sources_on(nodes, view.job, sorted(nodes))
    return ([s for s in found if s.stream != "torchrun"] or found), problems


def name_of(source: Source) -> str:
    """The stream in words."""
    return source.stream if source.stream == "torchrun" else f"local rank {source.stream}"


def copy(reader: Reader, source: Source, lines: int | None) -> None:
    """Print a stream, or its last lines (looked for in its last MiB)."""
    if lines is not None:
        reader.start_at(source, -MOST_BYTES)
        kept = reader.more(source).data.splitlines(keepends=True)[-lines:]
        sys.stdout.buffer.write(b"".join(kept))
    else:
        while data := reader.more(source).data:
            sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
