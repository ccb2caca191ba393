"""`heet up` and `heet down`: a pool on this box in one command; further boxes join it.

The processes run on when the command has ended. Their identities (pid and start time) and logs are in a folder of this
user and host, as is the data of etcd: jobs that were not finished at `heet down` go on at the next `heet up`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from heet_elastic.agents.hosts import HostSettings
from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.agent import default_state
from heet_elastic.cli.box import Box, check, end, start
from heet_elastic.cli.reading import read_nodes
from heet_elastic.cli.watching import unfinished_jobs
from heet_elastic.errors import HeetError, StoreUnavailableError, UsageError
from heet_elastic.model import HostRecord, JobView
from heet_elastic.store.api import Store
from heet_elastic.store.etcd import parse_endpoints
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode

READY_S = 60.0
JOIN_S = 5.0
"""The etcd of a pool that is there already needs no time to start: a wrong address is told soon."""


def up(
    access: Access,
    join: Annotated[str | None, typer.Option(help="Join the pool whose etcd is at HOST:PORT.")] = None,
    listen: Annotated[str, typer.Option(help="ADDRESS:PORT of the new etcd; others can join at a real one.")] = (
        "127.0.0.1:2379"
    ),
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder for data and logs.")] = None,
    coordinator_arg: Annotated[
        list[str] | None,
        typer.Option(help="Further argument of heet-coordinator, e.g. --coordinator-arg=--policy=heet"),
    ] = None,
    agent_arg: Annotated[list[str] | None, typer.Option(help="Further argument of heet-agent.")] = None,
) -> None:
    """Start a pool on this box: a coordinator with an etcd of its own, and a heet-agent. Or join one."""
    place = folder_of(folder)
    known = Box.read(place)
    if known is not None and all(p.alive for p in known.processes):
        print(f"this box is up already: etcd at {known.endpoint} (heet down: ends it)")
        return
    if known is not None:
        ended = ", ".join(f"heet-{p.name}" for p in known.processes if not p.alive)
        print(f"heet: {ended} has ended: what is left of the pool here ends first, workers save", file=sys.stderr)
        with _waiting("workers save and end") as tell:
            end(known, tell)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    endpoint = join or _free(_endpoint(listen))
    box = Box(endpoint)
    try:
        if join is None:
            _warn_open(listen)
            words = ["--listen", listen, "--data-dir", str(place / "etcd"), "--prefix", access.prefix]
            log = place / "coordinator.log"
            skip = log.stat().st_size if log.exists() else 0
            box = start(box, place, "coordinator", [*words, *(coordinator_arg or ())])
            with _waiting(f"waiting for etcd at {endpoint}"):
                _await_etcd(box, place, skip)
        with _waiting(f"waiting for etcd at {endpoint}"):
            store = _reach(access, box, place, READY_S if join is None else JOIN_S)
        try:
            words = ["--etcd", endpoint, "--prefix", access.prefix, *_credentials(access)]
            box = start(box, place, "agent", [*words, *(agent_arg or ())])
            with _waiting("waiting for the heet-agent"):
                _await_agent(store, access.keys, box, place)
            _welcome(store, access.keys, endpoint, listen if join is None else "")
        finally:
            store.close()
    except BaseException:
        end(box, lambda _: None)
        raise


def down(access: Access, folder: Annotated[Path | None, typer.Option("--dir", help="As for heet up.")] = None) -> None:
    """End what `heet up` started here. Workers save first; jobs that are not finished go on at the next `heet up`."""
    place = folder_of(folder)
    box = Box.read(place)
    if box is None:
        print("nothing of a pool runs here")
        return
    left = _unfinished(access, box)
    with _waiting("workers save and end") as tell:
        end(box, tell)
    (place / "up.json").unlink(missing_ok=True)
    print("down")
    for view in left:
        print(f"  {view.job} is not finished: it goes on when the pool is up again")


def folder_of(given: Path | None) -> Path:
    """The folder of this user's pool on this host."""
    host = HostSettings.from_environment(os.environ).host
    return given.absolute() if given is not None else default_state(os.environ, host) / "up"


def _await_etcd(box: Box, place: Path, skip: int) -> None:
    """Until our own coordinator says that its etcd serves; another one may be answering at that address already."""
    deadline = time.monotonic() + READY_S
    while b"etcd: " not in (place / "coordinator.log").read_bytes()[skip:]:
        check(box, place)
        if time.monotonic() > deadline:
            raise HeetError(f"etcd has not begun to serve within {READY_S:g} s (log: {place / 'coordinator.log'})")
        time.sleep(0.05)


def _reach(access: Access, box: Box, place: Path, patience_s: float) -> Store:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return open_store(_at(access, box.endpoint))
        except StoreUnavailableError:
            check(box, place)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _await_agent(store: Store, keys: Keys, box: Box, place: Path) -> None:
    pid = box.processes[-1].pid
    deadline = time.monotonic() + READY_S
    while not any(n.pid == pid for n in read_nodes(store, keys).values()):
        check(box, place)
        if time.monotonic() > deadline:
            raise HeetError(f"heet-agent has not registered within {READY_S:g} s (log: {place / 'agent.log'})")
        time.sleep(0.1)


def _welcome(store: Store, keys: Keys, endpoint: str, listen: str) -> None:
    found: dict[str, HostRecord] = {}
    for key, entry in store.read(keys.hosts).entries.items():
        record = decode(key, entry.value, HostRecord)
        found[record.host] = record
    for record in found.values():
        types = {g.host_type: sum(h.host_type == g.host_type for h in record.gpus) for g in record.gpus}
        print(f"host {record.host}: {', '.join(f'{n} x {t}' for t, n in types.items()) or 'no device'}")
    print(f"the pool is up:\n  export HEET_ETCD={endpoint}\n  heet submit -- train.py\n  heet status")
    if listen and not _loopback(listen):
        print(f"  heet up --join {endpoint}        # on another box")


def _unfinished(access: Access, box: Box) -> list[JobView]:
    """Submitted jobs without a result, where this box has the coordinator."""
    if not any(p.name == "coordinator" and p.alive for p in box.processes):
        return []
    try:
        store = open_store(_at(access, box.endpoint))
    except HeetError:
        return []
    try:
        return unfinished_jobs(store, access.keys)
    except HeetError:
        return []
    finally:
        store.close()


def _at(access: Access, endpoint: str) -> Access:
    return Access(endpoint, *(getattr(access, n) for n in Access.__slots__ if n != "etcd"))


def _credentials(access: Access) -> list[str]:
    """What of etcd's access was given, for the agent; a password only as its file."""
    names = ("cacert", "cert", "key", "user", "password_file")
    given = [(n, getattr(access, n)) for n in names]
    return [word for name, value in given if value for word in (f"--{name.replace('_', '-')}", value)]


def _endpoint(listen: str) -> str:
    endpoint, *others = parse_endpoints(listen, default_port=2379)
    if others or endpoint.host in ("0.0.0.0", "::"):  # noqa: S104 (refused, not bound to)
        raise UsageError(f"--listen is {listen!r}: expected one address of this box, e.g. 127.0.0.1:2379")
    return str(endpoint)


def _free(endpoint: str) -> str:
    """`endpoint`, if nobody listens there. UsageError otherwise: a second etcd would end and the first one answer."""
    address = parse_endpoints(endpoint)[0]
    with socket.socket(socket.AF_INET6 if address.numeric == 6 else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as e:
            raise UsageError(
                f"cannot listen at {endpoint}: {e.strerror} (heet up --join {endpoint}: joins a pool that is there; "
                f"--listen: another address)"
            ) from None
    return endpoint


def _loopback(listen: str) -> bool:
    return _endpoint(listen).startswith(("127.", "[::1]", "localhost"))


def _warn_open(listen: str) -> None:
    if not _loopback(listen):
        text = f"whoever reaches {listen} can run programs as you: use a network that you trust (docs/pool.md)"
        print(f"heet: {text}", file=sys.stderr)


@contextmanager
def _waiting(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(f"{text} ...") as status:
        yield lambda said: status.update(f"{said} ...")
