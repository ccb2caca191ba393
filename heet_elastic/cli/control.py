"""`heet pause`, `resume`, `cancel`, `priority`, `release`: a person's word on a job, which the coordinator obeys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.output import console
from heet_elastic.cli.watching import JobArgument, known_as_job
from heet_elastic.errors import StoreUnavailableError, UsageError
from heet_elastic.model import Control, JobView
from heet_elastic.store.api import Committed, Compare, Put, View
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder

TRIES = 5


def pause(access: Access, job: JobArgument) -> None:
    """Take a job's GPUs away until `heet resume`; its agents wait."""
    change(
        access,
        job,
        lambda c, _: replace(c, action="pause", released=()),
        f"job {job} gives its GPUs back and waits for `heet resume`",
    )


def resume(access: Access, job: JobArgument) -> None:
    """Let a paused job run again."""
    change(access, job, lambda c, _: replace(c, action="run", released=()), f"job {job} takes part again")


def cancel(access: Access, job: JobArgument) -> None:
    """End a job for good; its torchruns end with exit code 7."""
    change(access, job, lambda c, _: replace(c, action="cancel", released=()), f"job {job} is cancelled")


def priority(
    access: Access, job: JobArgument, value: Annotated[float, typer.Argument(help="1 = normal, 2 = twice as urgent.")]
) -> None:
    """Change how urgent a job is."""
    if not 0.001 <= value <= 1e6:
        raise UsageError(f"priority {value:g}: expected a number between 0.001 and 1000000")
    change(access, job, lambda c, _: replace(c, priority=value, released=()), f"job {job} has priority {value:g}")


def release(
    access: Access,
    job: JobArgument,
    host: Annotated[
        str | None, typer.Argument(help="A host that is down for sure; default: all that vanished.")
    ] = None,
) -> None:
    """Say that a vanished host runs no worker of this job any more, so that the job may start again elsewhere.

    Only say so when you know it: two live copies of a job would write the same checkpoints.
    """

    def released(control: Control, view: JobView) -> Control:
        lost = vanished(view)
        if host is not None and host not in lost:
            raise UsageError(
                f"host {host!r} is no vanished host of job {job}; those are: {', '.join(sorted(lost)) or 'none'}"
            )
        # What was said before the newest round was written is void, and must not be said again by being kept.
        kept = control.released if view.control and said_of_newest(view) else ()
        return replace(control, released=tuple(sorted({*kept, *([host] if host else lost)})))

    change(access, job, released, f"job {job} may start again without {host or 'the hosts that vanished'}")


def vanished(view: JobView) -> set[str]:
    """Hosts of members, of the newest round or of earlier ones that may still run, of which nothing is heard."""
    members = list(view.allocation.record.members) if view.allocation else []
    if view.account is not None:
        members += [m for past in view.account.record.may_run for m in past.members]
    return {m.host for m in members if m.agent not in view.agents and m.agent not in view.done}


def said_of_newest(view: JobView) -> bool:
    """Whether the person's last word is younger than the newest round."""
    said = view.control.mod_revision if view.control else 0
    return view.allocation is None or said > view.allocation.mod_revision


def change(access: Access, job: str, new: Callable[[Control, JobView], Control], said: str) -> None:
    """Change the job's control record by compare-and-set, and say so."""
    store, keys = open_store(access), access.keys
    try:
        for _ in range(TRIES):
            view = _view(store.read(keys.job(job)), access, job)
            if view.result is not None:
                raise UsageError(f"job {job!r} has ended ({view.result.record.outcome}): {view.result.record.reason}")
            known = view.control
            record = new(known.record if known else Control(), view)
            compare = Compare(keys.control(job), "mod_revision", known.mod_revision if known else 0)
            if isinstance(store.txn([compare], [Put(keys.control(job), encode(record))]), Committed):
                console().print(said)
                return
        raise StoreUnavailableError(f"job {job!r} is being changed by somebody else again and again: try once more")
    finally:
        store.close()


def _view(view: View, access: Access, job: str) -> JobView:
    return known_as_job(SnapshotDecoder(access.keys).decode(view).snapshot.jobs.get(job, JobView(job)))
