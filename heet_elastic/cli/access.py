"""How commands reach etcd: the options that they share, and the store behind them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from heet_elastic.errors import UsageError
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keys import DEFAULT_PREFIX, Keys

PANEL = "Where etcd is"


@dataclass(frozen=True, slots=True)
class Access:
    """Where etcd is and who we are there. None = not used."""

    etcd: str
    prefix: str = DEFAULT_PREFIX
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password_file: str | None = None

    @property
    def keys(self) -> Keys:
        """Names of the keys under the prefix. UsageError for a prefix that cannot be one."""
        try:
            return Keys(self.prefix)
        except ValueError as e:
            raise UsageError(str(e)) from None


def open_store(access: Access) -> EtcdStore:
    """A connected store. UsageError, StoreUnavailableError or StoreRefusedError with a sentence, within 5 s."""
    keys = access.keys
    store = EtcdStore(
        EtcdSettings(
            parse_endpoints(access.etcd),
            cacert=access.cacert,
            cert=access.cert,
            key=access.key,
            user=access.user,
            password_file=access.password_file,
            store_id_key=keys.store_id,
        )
    )
    try:
        store.connect()
    except BaseException:
        store.close()
        raise
    return store


def _option(variable: str, text: str, *names: str) -> Any:
    return typer.Option(*names, envvar=variable, help=text, rich_help_panel=PANEL, show_default=False)


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "etcd": (Annotated[str, _option("HEET_ETCD", "Endpoints HOST:PORT,HOST:PORT.", "--etcd")], "127.0.0.1:2379"),
    "prefix": (Annotated[str, _option("HEET_PREFIX", "Prefix of all keys.")], DEFAULT_PREFIX),
    "cacert": (Annotated[str | None, _option("HEET_CACERT", "Authority that signed etcd's certificate.")], None),
    "cert": (Annotated[str | None, _option("HEET_CERT", "Client certificate.")], None),
    "key": (Annotated[str | None, _option("HEET_KEY", "Key of the client certificate.")], None),
    "user": (Annotated[str | None, _option("HEET_USER", "etcd user.")], None),
    "password_file": (Annotated[str | None, _option("HEET_PASSWORD_FILE", "File with its password.")], None),
}


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """A typer command whose first parameter, an Access, is filled from the shared options."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        command(Access(**{name: given.pop(name) for name in _OPTIONS}), **given)

    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _OPTIONS.items()
    ]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    wrapped.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*keyword, *shared)}
    del wrapped.__wrapped__
    return wrapped
