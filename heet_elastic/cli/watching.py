"""Following one job from a command: its newest state, as long as a person or a script wants to know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated

import typer

from heet_elastic.cli.access import Access, open_store
from heet_elastic.errors import UsageError
from heet_elastic.model import JobView, Result
from heet_elastic.store.api import Store
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.snapshot import SnapshotDecoder


@contextmanager
def opened(access: Access) -> Iterator[Store]:
    """A connected store for one command."""
    store = open_store(access)
    try:
        yield store
    finally:
        store.close()


class JobWatch:
    """A live view of one job. Use as a context manager."""

    def __init__(self, store: Store, keys: Keys, job: str) -> None:
        self.job = job
        self._mirror = Mirror(store, keys.job(job), keys, create_store_id=False)
        self._decoder = SnapshotDecoder(keys)
        self._revision = 0
        self._generation = 0

    def __enter__(self) -> JobWatch:
        self._mirror.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._mirror.close()

    @property
    def silent_for_s(self) -> float:
        """Seconds since etcd was last heard."""
        return self._mirror.silent_for_s()

    def view(self) -> JobView:
        """The job as it is now; empty where nothing is known of it."""
        self._revision, self._generation = self._mirror.view.revision, self._mirror.generation
        view, changed = self._mirror.drain()
        return self._decoder.decode(view, changed).snapshot.jobs.get(self.job, JobView(self.job))

    def wait(self, timeout_s: float) -> None:
        """Until something of the job changes after the last `view`."""
        self._mirror.wait(self._revision, timeout_s, self._generation)

    def result(self, timeout_s: float | None) -> Result | None:
        """How the job ended, waited for; None when `timeout_s` has passed. UsageError for a job that is not known."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            view = self.view()
            known_as_job(view)
            found = result_of(view)
            if found is not None:
                return found
            left_s = 5.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                return None
            self.wait(min(left_s, 5.0))


JobArgument = Annotated[str, typer.Argument(help="The job's id (--rdzv-id).", metavar="JOB")]


def known_as_job(view: JobView) -> JobView:
    """`view`, if there is such a job; UsageError otherwise."""
    if view.spec is None:
        raise UsageError(f"there is no job {view.job!r} (heet jobs: lists those that there are)")
    return view


def result_of(view: JobView) -> Result | None:
    """The result of the job's present run."""
    if view.result is None or view.spec is None:
        return None
    return view.result.record if view.result.record.incarnation in ("", view.spec.record.incarnation) else None


def unfinished_jobs(store: Store, keys: Keys) -> list[JobView]:
    """Submitted jobs that have no result yet, by name."""
    jobs = SnapshotDecoder(keys).decode(store.read(keys.jobs)).snapshot.jobs
    views = [view for _, view in sorted(jobs.items())]
    return [v for v in views if v.spec is not None and v.spec.record.submitted and result_of(v) is None]


def exit_code(result: Result) -> int:
    """What a command that waited for the job ends with: 0, 7 for a cancelled job, else the job's own code."""
    return {"succeeded": 0, "cancelled": 7}.get(result.outcome, result.exit_code or 1)
