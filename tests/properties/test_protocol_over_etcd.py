"""The protocol's machine over a real etcd: the same rules, faults and invariants, fewer histories."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings

from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from tests.faults.steered import SteeredEtcd
from tests.properties.protocol_lab import KEYS
from tests.properties.test_protocol_machine import ProtocolMachine
from tests.store.labs import new_etcd

LONG = os.environ.get("HEET_NIGHTLY") == "1"


class EtcdMachine(ProtocolMachine):
    """`ProtocolMachine` over `etcd`."""

    etcd: ClassVar[EtcdStore]

    def store(self, clock: Callable[[], float]) -> Any:
        return SteeredEtcd(self.etcd, clock, KEYS.root)


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
class TestProtocolOverEtcd(EtcdMachine.TestCase):  # type: ignore[valid-type,misc]
    """Shrinking is left to the machine in memory: it takes hours here."""

    settings = settings(
        max_examples=100 if LONG else 3,
        stateful_step_count=50 if LONG else 20,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = new_etcd(Path(cls.folder.name))
        EtcdMachine.etcd = EtcdStore(EtcdSettings(parse_endpoints(cls.server.endpoint), timeout_s=10.0))

    @classmethod
    def tearDownClass(cls) -> None:
        EtcdMachine.etcd.close()
        cls.server.stop()
        cls.folder.cleanup()
