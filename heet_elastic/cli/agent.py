"""`heet-agent`: the daemon of one host, which runs submitted jobs there."""

from __future__ import annotations

import getpass
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from heet_elastic.agents.hosts import ENV_ADDRESS, ENV_HOST, ENV_SLOTS, HostSettings
from heet_elastic.agents.inventory import ENV_INVENTORY
from heet_elastic.agents.locks import ENV_LOCK_DIR
from heet_elastic.agents.network import local_address
from heet_elastic.agents.node import Node, NodeSettings
from heet_elastic.agents.node_command import Here
from heet_elastic.agents.node_reconcile import NodeTimes
from heet_elastic.cli.access import Access, open_store, with_access
from heet_elastic.cli.errors import run
from heet_elastic.cli.signals import on_signals
from heet_elastic.errors import UsageError
from heet_elastic.store.etcd import parse_endpoints
from heet_elastic.store.keys import encode_id

MIB = 1 << 20


@with_access
def agent(
    access: Access,
    state_dir: Annotated[
        Path | None, typer.Option(envvar="HEET_STATE_DIR", help="Folder for runs and logs; a local one, one a host.")
    ] = None,
    listen: Annotated[
        str, typer.Option(envvar="HEET_LISTEN_LOGS", help="ADDRESS or ADDRESS:PORT to serve logs at.")
    ] = "",
    ttl_s: Annotated[
        float, typer.Option(envvar="HEET_TTL_S", min=1, help="Lease of this host and of its torchruns.")
    ] = 10.0,
    idle_s: Annotated[
        float, typer.Option(envvar="HEET_IDLE_S", min=0, help="A torchrun without work here is ended after this.")
    ] = 120.0,
    log_mib: Annotated[
        int, typer.Option(envvar="HEET_LOG_MIB", min=1, help="Largest log of one worker, in MiB; older text goes.")
    ] = 64,
    keep_runs: Annotated[
        int, typer.Option(envvar="HEET_KEEP_RUNS", min=0, help="Ended runs whose logs are kept on this host.")
    ] = 100,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Offer this host to submitted jobs: run one torchrun for each job that the coordinator places here.

    SIGTERM and Ctrl-C end the torchruns too (their workers may save first). SIGHUP ends the daemon alone: the next one
    finds the torchruns that run.
    """
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level is {log_level!r}: expected debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    host = HostSettings.from_environment(os.environ)
    address, port = _listen(listen)
    settings = NodeSettings(
        state=state_dir or default_state(os.environ, host.host),
        user=_user(),
        ttl_s=ttl_s,
        listen=address,
        port=port,
        log_bytes=log_mib * MIB,
        keep_runs=keep_runs,
        times=NodeTimes(idle_s=idle_s),
    )
    store = open_store(access)
    try:
        here = replace(here_of(access, host, os.environ), conf={"ttl_s": f"{ttl_s:g}"})
        # The address on the way to etcd: behind the default route, on a box of several networks, others may not be.
        etcd = parse_endpoints(access.etcd)[0]
        host = host if host.address else replace(host, address=local_address((etcd.host, etcd.port)))
        node = Node(store, access.keys, settings, host, here)

        on_signals(lambda number: node.stop(drain=number != signal.SIGHUP))
        node.run()
    finally:
        store.close()


def here_of(access: Access, host: HostSettings, environ: Mapping[str, str]) -> Here:
    """What torchruns of this host are told, so that they see etcd and the host as this daemon does."""
    given = {"prefix": access.prefix, "cacert": access.cacert, "cert": access.cert, "key": access.key}
    given |= {"user": access.user, "password_file": access.password_file}
    identity = {ENV_HOST: host.host, ENV_LOCK_DIR: str(host.lock_dir), ENV_SLOTS: str(host.slots)}
    if host.address:
        identity[ENV_ADDRESS] = host.address
    if host.inventory is not None:
        identity[ENV_INVENTORY] = str(host.inventory.resolve())
    identity |= {f"HEET_{name.upper()}": value for name, value in given.items() if value}
    return Here(endpoint=access.etcd, python=sys.executable, devices=1, identity=identity, environment=dict(environ))


def default_state(environ: Mapping[str, str], host: str) -> Path:
    """A folder of this user and host (home folders may be shared by hosts)."""
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "heet" / encode_id(host)


def _listen(text: str) -> tuple[str, int]:
    if not text:
        return "", 0
    endpoint, *others = parse_endpoints(text, default_port=0)
    if others:
        raise UsageError(f"--listen is {text!r}: expected one address, ADDRESS or ADDRESS:PORT")
    return endpoint.host, endpoint.port


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("heet-agent")(agent)
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run(lambda: app(given, prog_name="heet-agent")))


if __name__ == "__main__":
    main()
