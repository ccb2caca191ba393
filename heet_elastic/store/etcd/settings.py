"""Where etcd is and how to speak to it: endpoints, certificates, user. Values; files are read when they are used."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from heet_elastic.errors import UsageError

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_EXPECTED = "expected HOST:PORT, several separated by commas"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of etcd. `tls` is None where no http:// or https:// was written."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def numeric(self) -> int:
        """4 or 6 for an IP address, 0 for a name."""
        try:
            return ipaddress.ip_address(self.host).version
        except ValueError:
            return 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str, default_port: int = 2379) -> tuple[Endpoint, ...]:
    """The endpoints in "H1:2379,https://H2:2379,[::1]:2379", in order, without repetitions.

    UsageError names the part that cannot be an endpoint, and what was expected.
    """
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UsageError(f"no etcd endpoint is given: {_EXPECTED}")
    return tuple(dict.fromkeys(_parse_endpoint(part, default_port) for part in parts if part))


def _parse_endpoint(text: str, default_port: int) -> Endpoint:
    scheme, separator, rest = text.rpartition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise UsageError(f"etcd endpoint {text!r}: {scheme}:// is not known here; use http:// or https://")
    if "@" in rest:
        raise UsageError("an etcd endpoint holds a user or password: give them as user and password_file instead")
    address = rest.removesuffix("/")
    if "/" in address:
        raise UsageError(f"etcd endpoint {text!r} has a path: {_EXPECTED}")
    host, port = _split_port(address, text, default_port)
    tls = {"http": False, "https": True}.get(scheme.lower())
    return Endpoint(host, port, tls)


def _split_port(address: str, text: str, default_port: int) -> tuple[str, int]:
    if address.startswith("["):
        host, bracket, tail = address[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise UsageError(f"etcd endpoint {text!r}: an IPv6 address is written [ADDRESS]:PORT")
        port_text = tail[1:] if tail else None
    elif address.count(":") > 1:
        host, port_text = address, None
    else:
        host, colon, tail = address.partition(":")
        port_text = tail if colon else None
    return _check_host(host, text), default_port if port_text is None else _check_port(port_text, text)


def _check_host(host: str, text: str) -> str:
    if not host:
        raise UsageError(f"etcd endpoint {text!r} names no host: {_EXPECTED}")
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError as e:
            raise UsageError(f"etcd endpoint {text!r}: {host} is no IPv6 address; {_EXPECTED}") from e
    if not _HOST_NAME.fullmatch(host):
        raise UsageError(f"etcd endpoint {text!r}: {host!r} is no host name; {_EXPECTED}")
    return host


def _check_port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"etcd endpoint {text!r}: port {port!r} is not within 1 to 65535")
    return int(port)


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How to reach etcd. Paths are PEM files; the password comes from a file or the caller, never from a command line.

    timeout_s: of every call. server_name: the name that every member's certificate carries, where it is not the host
    in the endpoint. store_id_key: the key whose value tells one store from another behind the same address.
    """

    endpoints: tuple[Endpoint, ...]
    timeout_s: float = 3.0
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    store_id_key: str | None = None

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise UsageError(f"no etcd endpoint is given: {_EXPECTED}")
        if not self.timeout_s > 0:
            raise UsageError(f"timeout_s is {self.timeout_s}: expected seconds above 0")
        if (self.cert is None) != (self.key is None):
            raise UsageError("a client certificate needs both cert and key")
        if self.user is None and (self.password is not None or self.password_file is not None):
            raise UsageError("an etcd password is given without a user: set user as well")
        if self.user is not None and self.password is None and self.password_file is None:
            raise UsageError(f"etcd user {self.user!r} has no password: set password_file")
        if self.password is not None and self.password_file is not None:
            raise UsageError("both password and password_file are given: keep one")
        self._check_schemes()

    def _check_schemes(self) -> None:
        schemes = {e.tls for e in self.endpoints if e.tls is not None}
        if len(schemes) > 1:
            raise UsageError("the etcd endpoints mix http:// and https://: one cluster speaks one of them")
        if schemes == {False} and (self.cacert or self.cert):
            raise UsageError("cacert, cert and key need https://, but the etcd endpoints say http://")

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.cacert is not None or self.cert is not None or any(e.tls for e in self.endpoints)

    @property
    def where(self) -> str:
        """The endpoints as people write them, for messages."""
        return ",".join(map(str, self.endpoints))

    @property
    def files(self) -> tuple[str, ...]:
        """The certificate files in use."""
        return tuple(f for f in (self.cacert, self.cert, self.key) if f is not None)

    def read_password(self) -> str:
        """The password, read anew from its file so that a changed one is taken up. UsageError when unreadable."""
        if self.password_file is None:
            return self.password or ""
        return read_file("password_file", self.password_file).decode(errors="replace").rstrip("\r\n")


def read_file(setting: str, path: str) -> bytes:
    """The content of a file that a setting names; UsageError names setting, path and reason."""
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise UsageError(f"{setting}={path} cannot be read: {e.strerror}") from e
