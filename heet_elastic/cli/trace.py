"""`heet trace export`: the cluster's own history as a trace for `heet simulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from heet_elastic.cli.access import Access, open_store
from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.predictor import METHODS
from heet_elastic.simulator.history import history_of, learned_csv, trace_csv
from heet_elastic.store.snapshot import SnapshotDecoder


def trace(
    access: Access,
    action: Annotated[Literal["export"], typer.Argument(help="export: write the jobs that the store holds.")],
    out: Annotated[Path | None, typer.Option(help="File of the trace; default: print it.")] = None,
    throughputs: Annotated[
        Path | None, typer.Option(help="Also write what was learned of the jobs, as a table of throughputs.")
    ] = None,
    predictor: Annotated[str, typer.Option(help="What completes that table.")] = DEFAULT_PREDICTOR,
) -> None:
    """Write the cluster's own history as a trace that heet simulate --trace takes."""
    del action  # there is one
    if predictor not in METHODS:
        raise UsageError(f"--predictor is {predictor!r}: expected one of {', '.join(METHODS)}")
    store = open_store(access)
    try:
        snapshot = SnapshotDecoder(access.keys).decode(store.read(access.keys.root)).snapshot
    finally:
        store.close()
    past = history_of(snapshot)
    if throughputs is not None:
        _write(throughputs, learned_csv(snapshot, past.jobs, predictor), "--throughputs")
    if out is None:
        sys.stdout.write(trace_csv(past.jobs))
    else:
        _write(out, trace_csv(past.jobs), "--out")
        print(f"{len(past.jobs)} jobs", file=sys.stderr)
    for reason, n in past.left_out:
        print(f"{n} jobs left out: {reason}", file=sys.stderr)


def _write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{option}: cannot write {path}: {e.strerror or e}") from None
