"""`heet wait JOB`: until the job has ended; ends with its exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from heet_elastic.cli.access import Access
from heet_elastic.cli.watching import JobWatch, exit_code, opened
from heet_elastic.errors import WaitTimeoutError


def wait(
    access: Access,
    job: Annotated[str, typer.Argument(help="Job id.")],
    timeout_s: Annotated[float | None, typer.Option(help="Give up after this many seconds (exit code 6).")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print how it ended.")] = False,
) -> None:
    """Wait until a job has ended. Ends with the job's exit code: 0, 1 for a failed one, 7 for a cancelled one."""
    with opened(access) as store, JobWatch(store, access.keys, job) as watch:
        result = watch.result(timeout_s)
    if result is None:
        raise WaitTimeoutError(f"job {job} has not ended within {timeout_s:g} s")
    if not quiet:
        print(f"{job} {result.outcome}: {result.reason}", file=sys.stderr)
    raise typer.Exit(exit_code(result))
