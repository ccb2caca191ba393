"""Leases on etcd: one thread keeps all leases of a store alive, and each fences itself at its TTL.

`alive` is computed from the clock, not set by the thread: a process that was stopped for longer than the TTL finds its
lease dead in its first instruction. The TTL counts from when a keep-alive was *sent*: etcd renews the lease later than
that, so the holder always gives up before the server does.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from heet_elastic.errors import HeetError, StoreUnavailableError
from heet_elastic.store.etcd import errors
from heet_elastic.store.etcd.connection import Connector
from heet_elastic.store.etcd.errors import Kind
from heet_elastic.store.etcd.etcd3_loader import load

log = logging.getLogger(__name__)

_BEATS = 3
"""Keep-alives a TTL."""
_RETRIES = 10
"""Tries a TTL while etcd does not answer."""


class EtcdLease:
    """A lease that its keeper renews; see `heet_elastic.store.api.Lease`."""

    def __init__(self, keeper: LeaseKeeper, lease_id: int, ttl_s: float, sent_at: float) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.on_lost: Callable[[str], None] | None = None
        self.next_beat = sent_at + ttl_s / _BEATS
        self._keeper = keeper
        self._last_ack = sent_at
        self._lost = False

    @property
    def alive(self) -> bool:
        """False once it is gone, or `ttl_s` after the last confirmed keep-alive was sent."""
        return not self._lost and time.monotonic() - self._last_ack < self.ttl_s

    @property
    def last_ack(self) -> float:
        """Monotonic time at which the last confirmed keep-alive was sent."""
        return self._last_ack

    def acknowledge(self, sent_at: float, ttl_s: float) -> None:
        """The server has confirmed the keep-alive sent then."""
        self._last_ack, self.ttl_s = sent_at, ttl_s
        self.next_beat = sent_at + ttl_s / _BEATS

    def lose(self, reason: str) -> None:
        """It is gone: tell the holder once, from a thread of its own."""
        callback, self.on_lost = self.on_lost, None
        if self._lost:
            return
        self._lost = True
        if callback is not None:
            threading.Thread(target=callback, args=(reason,), name=f"lease-lost {self.id:x}", daemon=True).start()

    def revoke(self) -> None:
        """End it and its keys now. StoreUnavailableError: unknown, it runs out within `ttl_s`."""
        self._keeper.drop(self)
        self.on_lost, self._lost = None, True
        self._keeper.revoke(self.id)

    def abandon(self) -> None:
        """Stop keeping it alive; it runs out by itself, and `alive` with it."""
        self._keeper.drop(self)
        self.on_lost = None


class LeaseKeeper:
    """Grants leases and keeps them alive, all from one thread that starts with the first."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._changed = threading.Condition()
        self._leases: dict[int, EtcdLease] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def grant(self, ttl_s: float, on_lost: Callable[[str], None] | None) -> EtcdLease:
        """A new lease of at least `ttl_s` (etcd counts whole seconds and has a minimum)."""
        sent_at = time.monotonic()
        request = load().LeaseGrantRequest(TTL=max(1, math.ceil(ttl_s)))
        response = self._connector.call("lease", "LeaseGrant", request)
        lease = EtcdLease(self, response.ID, float(response.TTL), sent_at)
        lease.on_lost = on_lost
        with self._changed:
            if self._closed:
                raise StoreUnavailableError("this connection to etcd was closed")
            self._leases[lease.id] = lease
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="etcd-leases", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return lease

    def revoke(self, lease_id: int) -> None:
        """End a lease on the server; one that is gone already is no error."""
        try:
            self._connector.call("lease", "LeaseRevoke", load().LeaseRevokeRequest(ID=lease_id))
        except grpc.RpcError as e:
            if errors.classify(e) is not Kind.NOT_FOUND:
                raise

    def drop(self, lease: EtcdLease) -> None:
        """Keep it alive no longer."""
        with self._changed:
            self._leases.pop(lease.id, None)

    def close(self) -> None:
        """End the thread; leases run out by themselves."""
        with self._changed:
            self._closed = True
            self._leases.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def after_fork(self) -> None:
        """In a forked child: the leases are the parent's."""
        for lease in self._leases.values():
            lease.on_lost, lease._lost = None, True
        self._changed = threading.Condition()
        self._leases, self._thread = {}, None

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._wait_for_due()
                if self._closed:
                    return
            if due:
                self._beat(due)

    def _wait_for_due(self) -> list[EtcdLease]:
        """Leases to renew now; empty after a change or a loss (the caller comes again)."""
        now = time.monotonic()
        for lease in [lease for lease in self._leases.values() if not lease.alive]:
            del self._leases[lease.id]
            lease.lose(f"nothing was heard from etcd for {lease.ttl_s:g} s")
        leases = list(self._leases.values())
        due = [lease for lease in leases if lease.next_beat <= now + 0.05]
        if not due and not self._closed:
            wake_at = min((min(x.next_beat, x.last_ack + x.ttl_s) for x in leases), default=None)
            self._changed.wait(None if wake_at is None else max(wake_at - now, 0.001))
        return due

    def _beat(self, due: list[EtcdLease]) -> None:
        """Renew `due` in one stream. Whatever fails is tried again `_RETRIES` times a TTL."""
        sent_at = time.monotonic()
        for lease in due:
            lease.next_beat = sent_at + lease.ttl_s / _RETRIES * random.uniform(0.8, 1.2)
        timeout_s = min(min(lease.ttl_s / 4, lease.last_ack + lease.ttl_s - sent_at) for lease in due)
        try:
            for response in self._keep_alive(due, max(timeout_s, 0.05)):
                lease_or_none = self._leases.get(response.ID)
                if lease_or_none is None:
                    continue
                if response.TTL > 0:
                    lease_or_none.acknowledge(sent_at, float(response.TTL))
                else:
                    self.drop(lease_or_none)
                    lease_or_none.lose("etcd does not know the lease any more")
        except (HeetError, grpc.RpcError, ValueError) as e:  # ValueError: the channel was closed meanwhile
            log.debug("keep-alive failed: %s", e)

    def _keep_alive(self, due: list[EtcdLease], timeout_s: float) -> Any:
        api = load()
        channel = self._connector.current()
        self._connector.authenticate(channel)
        requests = iter([api.LeaseKeepAliveRequest(ID=lease.id) for lease in due])
        try:
            yield from channel.lease.LeaseKeepAlive(
                requests, metadata=channel.metadata, timeout=timeout_s, wait_for_ready=True
            )
            channel.served()
        except grpc.RpcError as e:
            kind = errors.classify(e)
            if kind is Kind.TOKEN:
                self._connector.renew(channel, channel.token)
            elif kind is Kind.UNAVAILABLE:
                self._connector.failed(channel, e)
            raise
