"""`heet unfinished`: submitted jobs that have no result yet, for scripts that end a pool."""

from __future__ import annotations

import typer

from heet_elastic.cli.access import Access
from heet_elastic.cli.watching import opened, unfinished_jobs

SOME = 75
"""Exit code where jobs are left (EX_TEMPFAIL): run the pool again."""


def unfinished(access: Access) -> None:
    """Print the ids of submitted jobs that are not finished, one a line. Ends with 75 if there are any."""
    with opened(access) as store:
        left = unfinished_jobs(store, access.keys)
    for view in left:
        print(view.job)
    if left:
        raise typer.Exit(SOME)
