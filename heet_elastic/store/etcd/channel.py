"""Channels to etcd: one gRPC channel with its stubs and token, opened from the settings; certificate files checked."""

from __future__ import annotations

import ssl
import threading
import time
from pathlib import Path
from typing import Any

import grpc

from heet_elastic.errors import UsageError
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.etcd.settings import Endpoint, EtcdSettings, read_file

Metadata = tuple[tuple[str, str], ...]

OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # despite its name: the time that one attempt to connect is given
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),  # a quiet watch must still notice a peer that vanished
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a proxy for web pages is no way to etcd
    ("grpc.use_local_subchannel_pool", 1),  # a replaced channel must make its own connections
)


_NOBODY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class Channel:
    """One gRPC channel with its stubs and token."""

    def __init__(self, channel: grpc.Channel, target: str) -> None:
        api = load()
        self.grpc_channel = channel
        self.target = target
        self.opened_at = time.monotonic()
        self.proven = False  # it has served a call
        self.broken = False  # its last call or stream found nobody
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

    def served(self) -> None:
        """A call or stream was answered."""
        self.proven, self.broken = True, False

    def settle(self, timeout_s: float) -> None:
        """Where the channel is broken, give it time to connect; at once when it is connected.

        gRPC up to 1.7x makes progress with a connection only while some call waits on it, and calls on a broken channel
        fail without waiting. So this is a call that waits; whatever etcd answers shows that it is there.
        """
        if not self.broken:
            return
        request = load().RangeRequest(key=b"\0", limit=1, keys_only=True, serializable=True)
        try:
            self.kv.Range(request, timeout=max(timeout_s, 0.01), metadata=self.metadata, wait_for_ready=True)
        except grpc.RpcError as e:
            self.broken = e.code() in _NOBODY
        else:
            self.broken = False


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


def open_channel(settings: EtcdSettings, turn: int) -> Channel:
    """A channel that starts with the endpoint whose turn it is. No I/O but reading certificate files."""
    shift = turn % len(settings.endpoints)
    target = target_of(settings, settings.endpoints[shift:] + settings.endpoints[:shift])
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


def target_of(settings: EtcdSettings, endpoints: tuple[Endpoint, ...]) -> str:
    """All addresses in one target where gRPC can hold them: numeric, of one family, and under one TLS name.

    Else the first alone; `heet_elastic.store.etcd.connection.Connector.rotate` brings the others.
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
