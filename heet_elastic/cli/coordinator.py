"""`heet-coordinator`: one coordinator process, on a given etcd or on one of its own.

Every setting of `CoordinatorSettings` is a flag, a HEET_* variable and a key of the file given with --config.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from heet_elastic import __version__
from heet_elastic.agents.network import local_address
from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.errors import run
from heet_elastic.cli.signals import on_signals
from heet_elastic.coordinator.daemon import Coordinator
from heet_elastic.coordinator.settings import SETTINGS, CoordinatorSettings, as_toml, build
from heet_elastic.errors import UsageError
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings
from heet_elastic.store.etcd import parse_endpoints
from heet_elastic.store.keeper import kept

log = logging.getLogger("heet_elastic.coordinator")


def parser() -> argparse.ArgumentParser:
    """The command line, made from the table of settings."""
    p = argparse.ArgumentParser(
        prog="heet-coordinator",
        description="Plan which job trains on which GPUs. Start two or more: one leads, the others stand by.",
    )
    p.add_argument("--version", action="version", version=f"heet-coordinator {__version__}")
    p.add_argument("--config", metavar="FILE", help="TOML file with settings (environment and flags win over it)")
    p.add_argument("--print-config", action="store_true", help="print the settings as they would be used, and end")
    for name, setting in SETTINGS.items():
        choices = setting.metadata["choices"]
        text = setting.metadata["help"] + (f" ({', '.join(choices)})" if choices else "")
        if setting.default != "":
            text += f" [{setting.default}]"
        p.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="VALUE", help=text.replace("%", "%%"))
    return p


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(run(lambda: _main(sys.argv[1:] if arguments is None else arguments)))


def _main(arguments: Sequence[str]) -> int:
    given = vars(parser().parse_args(arguments))
    file, print_config = given.pop("config"), given.pop("print_config")
    settings = build(given, os.environ, file or os.environ.get("HEET_CONFIG"))
    if print_config:
        print(as_toml(settings), end="")
        return 0
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    with _endpoint(settings) as endpoint:
        access = Access(
            endpoint,
            settings.prefix,
            settings.cacert or None,
            settings.cert or None,
            settings.key or None,
            settings.user or None,
            settings.password_file or None,
        )
        store = open_store(access)
        coordinator = Coordinator(store, settings, settings.host or socket.gethostname())

        def stop(number: int) -> None:
            del number
            coordinator.stop()

        on_signals(stop)
        try:
            coordinator.run()
        finally:
            store.close()
    return 0


@contextmanager
def _endpoint(settings: CoordinatorSettings) -> Iterator[str]:
    """Endpoints of the etcd to use: those given, or that of an etcd started for as long as this process lives."""
    if settings.etcd:
        yield settings.etcd
        return
    listen, *others = parse_endpoints(settings.listen, default_port=0)
    if others:
        raise UsageError(f"listen is {settings.listen!r}: expected one address, HOST or HOST:PORT")
    folder = settings.data_dir or str(Path.home() / ".local" / "share" / "heet" / "etcd")
    with EmbeddedEtcd(EmbeddedSettings(folder, listen.host, listen.port, advertised(listen.host))) as etcd:
        log.info("etcd serves at %s, data in %s", etcd.endpoint, folder)
        print(f"etcd: {etcd.endpoint}", flush=True)
        with kept(etcd):
            yield etcd.endpoint


def advertised(listen: str) -> str | None:
    """The address by which others reach an etcd that listens at all of them; None = the one it listens at."""
    return local_address() if listen in ("0.0.0.0", "::") else None  # noqa: S104 (compared with, not bound to)


if __name__ == "__main__":
    main()
