"""The inventory file, good and bad."""

from __future__ import annotations

import re

import pytest

from heet_elastic.agents.inventory import read_inventory
from heet_elastic.errors import UsageError

THREE_HOSTS = """
[hosts.left]
address = "127.0.0.2"
network = "10GbE"
gpus = [
  { model = "A100-SXM4", memory_mib = 40960, link = "nvswitch", count = 2 },
  { model = "T4", memory_mib = 15360, uuids = ["GPU-x"], numa_node = 1, unusable = "broken fan" },
]
[hosts."right one"]
slots = 3
cpu = "small"
[hosts.empty]
gpus = []
"""


def inventory(tmp_path, text: str):
    (tmp_path / "inventory.toml").write_text(text)
    return read_inventory(tmp_path / "inventory.toml")


def test_three_pretend_hosts_are_one_file(tmp_path):
    hosts = inventory(tmp_path, THREE_HOSTS).hosts
    left = hosts["left"]
    assert (left.address, left.network) == ("127.0.0.2", "10GbE")
    assert [(g.uuid, g.host_type, g.link) for g in left.gpus] == [
        ("GPU-left-0", "A100-SXM4 40GB nvswitch", "nvswitch"),
        ("GPU-left-1", "A100-SXM4 40GB nvswitch", "nvswitch"),
        ("GPU-x", "T4 16GB pcie", "pcie"),
    ]
    assert (left.gpus[2].numa_node, left.gpus[2].unusable) == (1, "broken fan")
    assert [(g.uuid, g.host_type) for g in hosts["right one"].gpus] == [
        (f"CPU-right one-{i}", "CPU small") for i in range(3)
    ]
    assert hosts["empty"].gpus == ()


def test_several_groups_of_a_host_number_their_devices_on(tmp_path):
    text = '[hosts.a]\ngpus = [{model="T4", count=2}, {model="V100", count=1, host_type="fast"}]'
    gpus = inventory(tmp_path, text).hosts["a"].gpus
    assert [(g.uuid, g.host_type) for g in gpus] == [
        ("GPU-a-0", "T4 pcie"),
        ("GPU-a-1", "T4 pcie"),
        ("GPU-a-2", "fast"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hosts = 3", "Expected `object`"),
        ("", "missing required field `hosts`"),
        ("[hosts.a]\nslots = = 3", "Invalid value"),
        ("[hosts.a]", "host 'a' needs either gpus or slots"),
        ("[hosts.a]\nslots = 1\ngpus = []", "host 'a' needs either gpus or slots"),
        ("[hosts.a]\nslots = 0", "slots of host 'a' is 0: expected 1 to 1024"),
        ("[hosts.a]\nslots = 1\nadress = ''", "unknown field `adress`"),
        ('[hosts.a]\ngpus = [{model="T4"}]', "the T4 group of host 'a' needs either count or uuids"),
        ('[hosts.a]\ngpus = [{model="T4", count=0}]', "count of the T4 group of host 'a' is 0"),
        ('[hosts.a]\ngpus = [{model="T4", count="2"}]', "Expected `int | null`"),
        ('[hosts.a]\ngpus = [{model="T4", count=1, link="fast"}]', "Invalid enum value 'fast'"),
        ('[hosts.a]\ngpus = [{model="T4", uuids=["x", "x"]}]', "lists one device id twice"),
        ('[hosts.a]\ngpus = [{model="T4", uuids=[""]}]', "the device id is empty"),
        ("\xff", "HEET_INVENTORY"),
    ],
)
def test_mistakes_are_sentences_with_the_file_and_the_place(tmp_path, text, complaint):
    (tmp_path / "inventory.toml").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=re.escape(complaint)) as raised:
        read_inventory(tmp_path / "inventory.toml")
    assert f"HEET_INVENTORY={tmp_path}/inventory.toml" in str(raised.value)


def test_a_missing_file_and_a_missing_host_are_sentences(tmp_path):
    with pytest.raises(UsageError, match=r"cannot be read: No such file"):
        read_inventory(tmp_path / "nothing.toml")
    found = inventory(tmp_path, THREE_HOSTS)
    with pytest.raises(UsageError, match=r"no host 'middle' \(it has: left, right one, empty\): set HEET_HOST"):
        found.host("middle")
