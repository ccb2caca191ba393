"""The two stores under test behind one face, with the levers that a test of outages needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Event, Put, Store, View
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings, free_port
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.memory import MemoryStore
from tests.integration import processes

DEADLINE_S = 20.0
STORE_ID_KEY = "/heet/v1/store_id"


class Lab(Protocol):
    """A server, and clients of it."""

    prefix: str

    @property
    def store(self) -> Store:
        """A client."""

    def client(self) -> Store:
        """Another client of the same server."""

    def compact(self) -> None:
        """Forget all history."""

    def end_lease(self, lease_id: int) -> None:
        """The server ends a lease behind its holder's back."""

    def down(self) -> None:
        """The server is killed (without effect on a store in this process)."""

    def up(self) -> None:
        """The server is back with its data."""

    def up_emptied(self, fill: Sequence[Put] = ()) -> None:
        """The server is back without any data, then with these keys, written before a client of the old one came by."""

    def close(self) -> None:
        """End all clients, and the server where it is the lab's own."""


@dataclass
class MemoryLab:
    """A MemoryStore is server and client in one."""

    prefix: str = "/t/"
    store: MemoryStore = field(default_factory=lambda: MemoryStore(store_id_key=STORE_ID_KEY))

    def client(self) -> MemoryStore:
        return self.store

    def compact(self) -> None:
        self.store.compact(self.store.revision)

    def end_lease(self, lease_id: int) -> None:
        self.store.expire(lease_id)

    def down(self) -> None:
        """A store in this process cannot be away."""

    def up(self) -> None:
        """It was never away."""

    def up_emptied(self, fill: Sequence[Put] = ()) -> None:
        self.store.wipe()
        for put in fill:
            self.store.txn([], [put])

    def close(self) -> None:
        self.store.close()


class EtcdLab:
    """Clients of one etcd, each test under a prefix of its own. own: the server ends with the lab."""

    def __init__(self, server: EmbeddedEtcd, prefix: str, own: bool) -> None:
        self.server = server
        self.prefix = prefix
        self._own = own
        self._clients: list[EtcdStore] = []
        self.store = self.client()

    def settings(self) -> EtcdSettings:
        return EtcdSettings(parse_endpoints(self.server.endpoint), timeout_s=10.0, store_id_key=STORE_ID_KEY)

    def client(self) -> EtcdStore:
        store = EtcdStore(self.settings())
        self._clients.append(store)
        return store

    def compact(self) -> None:
        self.store.compact(self.store.read(self.prefix).revision)

    def end_lease(self, lease_id: int) -> None:
        with Admin(self.server.endpoint) as admin:
            admin.call("Lease", "LeaseRevoke", ID=lease_id)

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.start()
        self._until_served()

    def up_emptied(self, fill: Sequence[Put] = ()) -> None:
        """`fill` is written while the new store still listens elsewhere."""
        self.server.wipe()
        if fill:
            with EmbeddedEtcd(self.server.settings) as elsewhere:
                store = EtcdStore(EtcdSettings(parse_endpoints(elsewhere.endpoint)))
                for put in fill:
                    store.txn([], [put])
                store.close()
        self.up()

    def _until_served(self) -> None:
        def served() -> bool:
            try:
                self.store.read(self.prefix)
            except StoreUnavailableError:
                return False
            return True

        wait_until(served)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self._own:
            self.server.kill()


def new_etcd(folder: Path, *extra: str) -> EmbeddedEtcd:
    """A started etcd of a test's own."""
    server = EmbeddedEtcd(EmbeddedSettings(str(folder), extra_arguments=extra))
    server.start()
    return server


def wait_until(true: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Return when `true()` is; AssertionError after `deadline_s` of a machine with nothing else to do."""
    processes.wait_until(true, deadline_s, f"{true}", poll_s=0.02)


class Admin:
    """What an operator does to an etcd, over its bare API."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)

    def call(self, service: str, method: str, **fields: object) -> object:
        """One call, e.g. `call("Lease", "LeaseRevoke", ID=3)`."""
        api = load()
        request = getattr(api, REQUESTS.get(method, f"{method}Request"))(**fields)
        return getattr(getattr(api, f"{service}Stub")(self._channel), method)(request, timeout=5)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


REQUESTS = {method: f"Auth{method}Request" for method in ("UserAdd", "RoleAdd", "RoleGrantPermission", "UserGrantRole")}
"""Methods whose request is not simply named after them."""


class Recorder:
    """Callbacks of a watch that remember what they were told."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.batches: list[tuple[int, tuple[Event, ...]]] = []
        self.resyncs: list[str] = []
        self.views: list[View] = []
        self._store = store
        self._prefix = prefix
        self._changed = threading.Condition()

    def on_events(self, events: Sequence[Event], revision: int) -> None:
        with self._changed:
            self.batches.append((revision, tuple(events)))
            self._changed.notify_all()

    def on_resync(self, reason: str) -> int:
        view = self._store.read(self._prefix)
        with self._changed:
            self.resyncs.append(reason)
            self.views.append(view)
            self._changed.notify_all()
        return view.revision

    @property
    def keys(self) -> list[str]:
        """Keys of all events, in the order of delivery."""
        with self._changed:
            return [event.key for _, events in self.batches for event in events]

    @property
    def revisions(self) -> list[int]:
        """Revisions of the batches, in the order of delivery."""
        with self._changed:
            return [revision for revision, _ in self.batches]

    def wait(self, true: Callable[[Recorder], bool]) -> None:
        """Return when `true(self)` is; AssertionError after the deadline."""
        with self._changed:
            assert self._changed.wait_for(lambda: true(self), DEADLINE_S * processes.crowding()), (
                self.batches,
                self.resyncs,
            )


@contextmanager
def three_members(folder: Path) -> Iterator[list[EmbeddedEtcd]]:
    """Three members of one etcd, all started."""
    ports = [(free_port("127.0.0.1"), free_port("127.0.0.1")) for _ in range(3)]
    initial = ",".join(f"m{n}=http://127.0.0.1:{peer}" for n, (_, peer) in enumerate(ports))
    members = []
    for n, (port, peer) in enumerate(ports):
        url = f"http://127.0.0.1:{peer}"
        extra = (
            *(f"--name=m{n}", f"--listen-peer-urls={url}", f"--initial-advertise-peer-urls={url}"),
            *(f"--initial-cluster={initial}", "--heartbeat-interval=100", "--election-timeout=1000"),
        )
        members.append(EmbeddedEtcd(EmbeddedSettings(str(folder / str(n)), port=port, extra_arguments=extra)))
    starters = [threading.Thread(target=member.start) for member in members]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    try:
        yield members
    finally:
        for member in members:
            member.kill()
