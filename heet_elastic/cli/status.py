"""`heet status`, `heet jobs`, `heet hosts`: what is there and what it is doing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.output import console, print_json
from heet_elastic.cli.picture import Picture, host_lines, job_lines, take_picture
from heet_elastic.cli.render import as_json, hosts_table, jobs_table, whole
from heet_elastic.store.mirror import Mirror

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Keep it up to date until Ctrl-C.")]


def status(access: Access, json_: Json = False, watch: Watch = False) -> None:
    """Show who leads, all hosts and all jobs."""
    if watch and not json_:
        _follow(access, whole)
        return
    picture = fetch(access)
    if json_:
        print_json(as_json(picture))
    else:
        console().print(whole(picture))


def jobs(access: Access, json_: Json = False) -> None:
    """List jobs: phase, workers, measured speed, and why."""
    lines = job_lines(fetch(access))
    if json_:
        print_json([asdict(line) for line in lines])
    else:
        console().print(jobs_table(lines) if lines else "no jobs")


def hosts(access: Access, json_: Json = False) -> None:
    """List hosts: devices, who holds them, what is out of use and why."""
    lines = host_lines(fetch(access))
    if json_:
        print_json([asdict(line) for line in lines])
    else:
        console().print(hosts_table(lines) if lines else "no hosts: start torchrun or heet-agent somewhere")


def fetch(access: Access) -> Picture:
    """One picture of the store."""
    store = open_store(access)
    try:
        return take_picture(store, access.keys)
    finally:
        store.close()


def _follow(access: Access, view: Callable[[Picture], RenderableType]) -> None:
    """Show the view again whenever the store changes, at most four times a second."""
    store = open_store(access)
    mirror = Mirror(store, access.keys.root, access.keys, create_store_id=False)
    try:
        mirror.start()
        with Live(console=console(), auto_refresh=False, screen=False) as live:
            while True:
                revision = mirror.view.revision
                live.update(view(take_picture(store, access.keys)), refresh=True)
                time.sleep(0.25)
                mirror.wait(revision, 2.0)
    finally:
        mirror.close()
        store.close()
