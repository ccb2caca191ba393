from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from heet_elastic.store.embedded import EmbeddedEtcd
from tests.store.labs import EtcdLab, Lab, MemoryLab, new_etcd

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEtcd]:
    """One etcd for all tests of this worker that leave it running."""
    server = new_etcd(tmp_path_factory.mktemp("shared-etcd"))
    yield server
    server.kill()


@pytest.fixture(params=["memory", "etcd"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A store that keeps running, under a prefix that nobody else uses."""
    one: Lab
    if request.param == "memory":
        one = MemoryLab()
    else:
        one = EtcdLab(request.getfixturevalue("shared_etcd"), f"/t{next(_numbers)}/", own=False)
    yield one
    one.close()


@pytest.fixture(params=["memory", "etcd"])
def own_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A store that the test may kill, compact and empty."""
    one: Lab = MemoryLab() if request.param == "memory" else EtcdLab(new_etcd(tmp_path), "/t/", own=True)
    yield one
    one.close()
