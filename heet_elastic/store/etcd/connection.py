"""Connections to etcd: channels with their credentials and token, and unary calls with errors made into sentences.

A channel is never mended but replaced: after a fork, when certificate files changed, and by the next endpoint when one
fails. Every call has a timeout. A token that is no longer good is renewed once a call (nothing was applied then).
"""

from __future__ import annotations

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from heet_elastic.errors import HeetError, StoreUnavailableError, UsageError
from heet_elastic.store.etcd import errors
from heet_elastic.store.etcd.diagnose import diagnose
from heet_elastic.store.etcd.errors import Kind
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.etcd.settings import Endpoint, EtcdSettings, read_file

log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),  # a quiet watch must still notice a peer that vanished
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a proxy for web pages is no way to etcd
    ("grpc.use_local_subchannel_pool", 1),  # a replaced channel must make its own connections
)

_ROTATE_PAUSE_S = 1.0
CONNECT_S = 2.0
"""Longest wait of `connect` before it looks for the reason, which takes 3 s at most."""
_left_by_fork: list[Channel] = []  # channels of the parent: closing one in the child could hang it


class Channel:
    """One gRPC channel with its stubs and token."""

    def __init__(self, channel: grpc.Channel, target: str) -> None:
        api = load()
        self.grpc_channel = channel
        self.target = target
        self.opened_at = time.monotonic()
        self.proven = False  # it has served a call
        self.token: str | None = None
        self.authenticated = False
        self.token_lock = threading.Lock()
        self.kv = api.KVStub(channel)
        self.lease = api.LeaseStub(channel)
        self.watch = api.WatchStub(channel)
        self.auth = api.AuthStub(channel)
        self.maintenance = api.MaintenanceStub(channel)

    @property
    def metadata(self) -> Metadata:
        """What authenticates a call."""
        return () if self.token is None else (("token", self.token),)


class Connector:
    """Opens channels as they are needed and makes unary calls over the current one."""

    def __init__(self, settings: EtcdSettings, on_moved: Callable[[], None] = lambda: None) -> None:
        """on_moved: called when streams had better go over to another channel."""
        self.settings = settings
        self._on_moved = on_moved
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._retired: list[tuple[float, Channel]] = []
        self._turn = 0
        self._proven = False
        self._closed = False

    def connect(self) -> None:
        """Make sure that etcd is there and will serve us; see `heet_elastic.store.etcd.EtcdStore.connect`."""
        check_files(self.settings)
        deadline = time.monotonic() + min(self.settings.timeout_s, CONNECT_S)
        failed: StoreUnavailableError | None = None
        for _ in self.settings.endpoints:
            channel = self.current()
            try:
                self._first(channel, max(deadline - time.monotonic(), 0.2))
                return
            except StoreUnavailableError as e:
                failed = e
                self.rotate(channel)
        if failed is not None:
            raise self._explain(failed) from failed

    def _first(self, channel: Channel, timeout_s: float) -> None:
        """Read one key. Where no key of ours is known, "permission denied" proves as well that we are served."""
        key = self.settings.store_id_key
        try:
            self._attempt(channel, "kv", "Range", load().RangeRequest(key=(key or "/heet").encode()), timeout_s)
        except grpc.RpcError as e:
            if key is not None or "permission denied" not in errors.text_of(e):
                raise self._to_heet(e, key or "") from e

    def _explain(self, error: HeetError) -> HeetError:
        found = diagnose(self.settings)
        return error if found is None else found

    def call(
        self, service: str, method: str, request: Any, asked: str = "", retry: bool = False, timeout_s: float = 0.0
    ) -> Any:
        """The response of a unary call. retry: it reads only, so it may be repeated within the timeout.

        Raises StoreUnavailableError (unknown), StoreRefusedError, or grpc.RpcError with NOT_FOUND for a missing lease.
        """
        deadline = time.monotonic() + (timeout_s or self.settings.timeout_s)
        pause_s, renewed = 0.05, False
        while True:
            channel = self.current()
            try:
                return self._attempt(channel, service, method, request, deadline - time.monotonic())
            except grpc.RpcError as e:
                kind = errors.classify(e)
                if kind is Kind.NOT_FOUND:
                    raise
                if kind is Kind.TOKEN and not renewed:
                    renewed = True
                    self.renew(channel, channel.token)
                    continue
                if kind is Kind.UNAVAILABLE:
                    self.rotate(channel)
                    if retry and time.monotonic() + pause_s < deadline:
                        time.sleep(pause_s * random.uniform(0.5, 1.0))
                        pause_s *= 2
                        continue
                    if not self._proven:
                        raise self._explain(self._to_heet(e, asked)) from e
                raise self._to_heet(e, asked) from e

    def _attempt(self, channel: Channel, service: str, method: str, request: Any, timeout_s: float) -> Any:
        self.authenticate(channel)
        stub = getattr(getattr(channel, service), method)
        response = stub(request, timeout=max(timeout_s, 0.01), metadata=channel.metadata)
        channel.proven = self._proven = True
        return response

    def authenticate(self, channel: Channel) -> None:
        """Get a token for a channel that has none yet, when a user is set."""
        if self.settings.user is not None and not channel.authenticated:
            self.renew(channel, None)

    def renew(self, channel: Channel, seen: str | None) -> None:
        """Get another token than `seen`, unless another thread just did. StoreRefusedError: user or password."""
        if self.settings.user is None:
            return
        with channel.token_lock:
            if channel.authenticated and channel.token != seen:
                return
            request = load().AuthenticateRequest(name=self.settings.user, password=self.settings.read_password())
            try:
                channel.token = channel.auth.Authenticate(request, timeout=self.settings.timeout_s).token
            except grpc.RpcError as e:
                if errors.classify(e) is not Kind.NO_AUTH:
                    # `from None`: the request, and with it the password, must not hang on the error.
                    raise self._to_heet(e) from None
                log.warning("etcd runs without users, so user is not used", extra={"etcd": self.settings.where})
            channel.authenticated = True

    def _to_heet(self, e: grpc.RpcError, asked: str = "") -> HeetError:
        return errors.to_heet(e, self.settings.where, self.settings.user, asked)

    def current(self) -> Channel:
        """The channel to use now."""
        with self._lock:
            if self._closed:
                raise StoreUnavailableError("this connection to etcd was closed")
            self._sweep()
            if self._channel is None:
                self._channel = _open(self.settings, self._turn)
            return self._channel

    def rotate(self, failed: Channel) -> None:
        """Go on with the next endpoint after `failed`, where there are several; soon if that one never served us."""
        with self._lock:
            if self._channel is not failed or len(self.settings.endpoints) == 1:
                return
            if failed.proven and time.monotonic() - failed.opened_at <= _ROTATE_PAUSE_S:
                return
            self._turn += 1
            self._retire()
        self._on_moved()

    def replace(self) -> None:
        """Go on with a new channel (changed certificates); calls under way end on the old one."""
        with self._lock:
            self._retire()
        self._on_moved()

    def _retire(self) -> None:
        if self._channel is not None:
            self._retired.append((time.monotonic() + 2 * self.settings.timeout_s, self._channel))
            self._channel = None

    def _sweep(self) -> None:
        now = time.monotonic()
        for at, channel in self._retired:
            if at <= now:
                channel.grpc_channel.close()
        self._retired = [(at, channel) for at, channel in self._retired if at > now]

    def after_fork(self) -> None:
        """In a forked child: forget the parent's channels without touching them."""
        self._lock = threading.Lock()
        _left_by_fork.extend(channel for _, channel in self._retired)
        if self._channel is not None:
            _left_by_fork.append(self._channel)
        self._channel, self._retired = None, []

    def close(self) -> None:
        """Close every channel; later calls raise StoreUnavailableError."""
        with self._lock:
            self._closed = True
            self._retire()
            for _, channel in self._retired:
                channel.grpc_channel.close()
            self._retired = []


def check_files(settings: EtcdSettings) -> None:
    """UsageError that names a certificate file which cannot be read or used."""
    for name in ("cacert", "cert", "key"):
        path = getattr(settings, name)
        if path is not None:
            read_file(name, path)
    try:
        context = ssl.create_default_context(cafile=settings.cacert)
    except (OSError, ssl.SSLError) as e:
        raise UsageError(f"cacert={settings.cacert} holds no certificate in PEM form") from e
    try:
        if settings.cert is not None:
            context.load_cert_chain(settings.cert, settings.key)
    except (OSError, ssl.SSLError) as e:
        raise UsageError(
            f"cert and key do not fit together, or are not in PEM form: cert={settings.cert} key={settings.key}"
        ) from e


def _open(settings: EtcdSettings, turn: int) -> Channel:
    """A channel that starts with the endpoint whose turn it is. No I/O but reading certificate files."""
    shift = turn % len(settings.endpoints)
    target = _target(settings, settings.endpoints[shift:] + settings.endpoints[:shift])
    options: list[tuple[str, Any]] = list(OPTIONS)
    if not settings.tls:
        return Channel(grpc.insecure_channel(target, options=options), target)
    if settings.server_name is not None:
        options.append(("grpc.ssl_target_name_override", settings.server_name))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_file("cacert", settings.cacert) if settings.cacert else _system_authorities(),
        private_key=read_file("key", settings.key) if settings.key else None,
        certificate_chain=read_file("cert", settings.cert) if settings.cert else None,
    )
    return Channel(grpc.secure_channel(target, credentials, options=options), target)


def _target(settings: EtcdSettings, endpoints: tuple[Endpoint, ...]) -> str:
    """All addresses in one target where gRPC can hold them: numeric, of one family, and under one TLS name.

    Else the first alone; `Connector.rotate` brings the others.
    """
    family = endpoints[0].numeric
    one_name = not settings.tls or settings.server_name is not None or len({e.host for e in endpoints}) == 1
    if family and one_name:
        same = [str(e) for e in endpoints if e.numeric == family]
        return f"ipv{family}:{','.join(same)}"
    return f"dns:///{endpoints[0]}"


def _system_authorities() -> bytes | None:
    path = ssl.get_default_verify_paths().cafile
    return read_file("cacert", path) if path and Path(path).exists() else None


def backoff(first_s: float, most_s: float) -> Iterator[float]:
    """Pauses that double up to `most_s`, each shortened by up to a half at random."""
    pause_s = first_s
    while True:
        yield min(pause_s, most_s) * random.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, most_s)
