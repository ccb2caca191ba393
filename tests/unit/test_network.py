"""The class of the network and the address on the route."""

from __future__ import annotations

import socket

import psutil
import pytest

from heet_elastic.agents.network import local_address, network_class, speed_class


def port(sysfs, device: str, state: str, rate: str, layer: str, number: int = 1) -> None:
    folder = sysfs / "class/infiniband" / device / "ports" / str(number)
    folder.mkdir(parents=True)
    for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
        (folder / name).write_text(f"{text}\n")


def test_rdma_is_known_by_its_fastest_active_port(tmp_path):
    port(tmp_path, "mlx5_0", "4: ACTIVE", "100 Gb/sec (4X EDR)", "InfiniBand")
    port(tmp_path, "mlx5_1", "4: ACTIVE", "200 Gb/sec (4X HDR)", "InfiniBand")
    port(tmp_path, "mlx5_2", "1: DOWN", "400 Gb/sec (4X NDR)", "InfiniBand")
    assert network_class("127.0.0.1", tmp_path) == "InfiniBand 200G"


@pytest.mark.parametrize(
    ("device", "layer", "rate", "expected"),
    [
        ("mlx5_0", "Ethernet", "100 Gb/sec (4X EDR)", "RoCE 100G"),
        ("efa_0", "Unspecified", "100 Gb/sec (4X EDR)", "EFA 100G"),
        ("mlx5_0", "InfiniBand", "2.5 Gb/sec (1X SDR)", "InfiniBand 2.5G"),
        ("mlx5_0", "InfiniBand", "", "InfiniBand"),
    ],
)
def test_kinds_of_rdma(tmp_path, device, layer, rate, expected):
    port(tmp_path, device, "4: ACTIVE", rate, layer)
    assert network_class("127.0.0.1", tmp_path) == expected


def test_without_rdma_the_interface_of_the_address_decides(tmp_path):
    assert network_class("127.0.0.1", tmp_path) == "loopback"
    assert network_class("203.0.113.77", tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("mbit_s", "expected"),
    [(1000, "1GbE"), (25000, "25GbE"), (2500, "2.5GbE"), (0, "unknown"), (-1, "unknown"), (65535, "unknown")],
)
def test_speeds_of_interfaces(mbit_s, expected):
    assert speed_class(mbit_s) == expected


def test_the_local_address_is_the_one_on_the_route_and_one_of_ours():
    assert local_address(("127.0.0.1", 2379)) == "127.0.0.1"
    if socket.has_ipv6 and any(a.address == "::1" for a in psutil.net_if_addrs().get("lo", ())):
        assert local_address(("::1", 2379)) == "::1"
    ours = {a.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for a in addresses}
    assert local_address() in ours
    assert local_address(("no such host.invalid", 1)) in ours
