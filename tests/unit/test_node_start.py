"""What a heet-agent refuses before it offers its host to anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from heet_elastic.agents.hosts import HostSettings
from heet_elastic.agents.node import Node, NodeSettings
from heet_elastic.agents.node_command import Here
from heet_elastic.errors import UsageError
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore


@pytest.mark.parametrize(
    ("unusable", "sentence"),
    [
        ("state", r"the state folder .*/state/below cannot be used"),
        ("locks", "the lock folder .*/locks/below cannot be"),
    ],
)
def test_a_host_whose_folders_cannot_be_used_is_not_offered(tmp_path: Path, unusable: str, sentence: str):
    (tmp_path / unusable).touch()
    store = MemoryStore()
    node = Node(
        store,
        Keys(),
        NodeSettings(tmp_path / "state" / "below", "me"),
        HostSettings("h", tmp_path / "locks" / "below"),
        Here("e:1", "python", 1, {}, {}, {}),
    )
    with pytest.raises(UsageError, match=sentence):
        node.run()
    assert store.read("/").entries == {}
