"""Connections to etcd: channels with their credentials and token, and unary calls with errors made into sentences.

A channel is never mended but replaced: after a fork, when certificate files changed, and by the next endpoint when one
fails. Every call has a timeout. A token that is no longer good is renewed once a call (nothing was applied then).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from heet_elastic.errors import HeetError, StoreRefusedError, StoreUnavailableError, UsageError
from heet_elastic.store.etcd import errors
from heet_elastic.store.etcd.channel import Channel, check_files, open_channel
from heet_elastic.store.etcd.diagnose import diagnose
from heet_elastic.store.etcd.errors import Kind
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.etcd.settings import EtcdSettings

log = logging.getLogger(__name__)

T = TypeVar("T")
_CLOSED = "this connection to etcd was closed"
_ROTATE_PAUSE_S = 1.0
SETTLE_S = 1.0
"""Longest wait of a call for a broken channel to connect."""
CONNECT_S = 2.5
"""Longest wait of `connect`, before it looks for the reason for another 2 s at most."""
_left_by_fork: list[Channel] = []  # channels of the parent: closing one in the child could hang it


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
        self._worked: set[tuple[str, bool]] = set()
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
        A refusal of what has worked before (a changed password, a full database) is an outage that a person will end:
        training must not end with it, so that is StoreUnavailableError as well.
        """
        try:
            response = self._call(service, method, request, asked, retry, timeout_s)
        except StoreRefusedError as e:
            if (method, retry) in self._worked:
                raise StoreUnavailableError(str(e)) from (e.__cause__ or e)
            raise
        self._worked.add((method, retry))
        return response

    def _call(self, service: str, method: str, request: Any, asked: str, retry: bool, timeout_s: float) -> Any:
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
                    self.failed(channel, e)
                    if retry and time.monotonic() + pause_s < deadline:
                        time.sleep(pause_s * random.uniform(0.5, 1.0))
                        pause_s *= 2
                        continue
                    if not self._proven:
                        raise self._explain(self._to_heet(e, asked)) from e
                raise self._to_heet(e, asked) from e

    def _attempt(self, channel: Channel, service: str, method: str, request: Any, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        try:
            channel.settle(min(timeout_s, SETTLE_S))
            self.authenticate(channel, max(deadline - time.monotonic(), 0.01))
            stub = getattr(getattr(channel, service), method)
            response = stub(request, timeout=max(deadline - time.monotonic(), 0.01), metadata=channel.metadata)
        except ValueError as e:  # gRPC's word for a channel that was closed meanwhile
            if self._closed:
                raise StoreUnavailableError(_CLOSED) from e
            raise
        channel.served()
        self._proven = True
        return response

    def authenticate(self, channel: Channel, timeout_s: float | None = None) -> None:
        """Get a token for a channel that has none yet, when a user is set."""
        if self.settings.user is not None and not channel.authenticated:
            self.renew(channel, None, timeout_s)

    def renew(self, channel: Channel, seen: str | None, timeout_s: float | None = None) -> None:
        """Get another token than `seen`, unless another thread just did. StoreRefusedError: user or password."""
        if self.settings.user is None:
            return
        with channel.token_lock:
            if channel.authenticated and channel.token != seen:
                return
            password = self._with_files(self.settings.read_password)
            request = load().AuthenticateRequest(name=self.settings.user, password=password)
            try:
                channel.token = channel.auth.Authenticate(request, timeout=timeout_s or self.settings.timeout_s).token
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
                raise StoreUnavailableError(_CLOSED)
            self._sweep()
            if self._channel is None:
                self._channel = self._with_files(lambda: open_channel(self.settings, self._turn))
            return self._channel

    def _with_files(self, use: Callable[[], T]) -> T:
        """Use files that settings name. Once all has worked, a file that is missing just now is no user's mistake."""
        try:
            return use()
        except UsageError as e:
            if self._proven:
                raise StoreUnavailableError(f"no new connection to etcd: {e}") from e
            raise

    def failed(self, channel: Channel, error: grpc.RpcError) -> None:
        """A call or stream found nobody behind `channel`: wait before it is used again, or use another."""
        channel.broken = channel.broken or errors.code_of(error) is grpc.StatusCode.UNAVAILABLE
        self.rotate(channel)

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


def backoff(first_s: float, most_s: float) -> Iterator[float]:
    """Pauses that double up to `most_s`, each shortened by up to a half at random."""
    pause_s = first_s
    while True:
        yield min(pause_s, most_s) * random.uniform(0.5, 1.0)
        pause_s = min(pause_s * 2, most_s)
