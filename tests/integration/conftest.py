from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness import Cluster


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Cluster]:
    """An etcd and room for pretend hosts; fails the test when a process outlives its torchrun."""
    with Cluster(tmp_path) as cluster:
        yield cluster
