"""The network between hosts as a class, and the address by which other hosts reach this one."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil


def local_address(towards: tuple[str, int] | None = None) -> str:
    """This host's numeric address on the route to `towards` (host, port); without it, or a route, the default route's.

    Sends nothing: connecting a datagram socket only looks the route up. "127.0.0.1" when there is no network at all.
    """
    for target in (towards, ("192.0.2.1", 9), ("2001:db8::1", 9)):  # far away, whoever has them
        if target is None:
            continue
        try:
            answers = socket.getaddrinfo(*target, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, proto, _, address in answers:
            with socket.socket(family, kind, proto) as probe:
                try:
                    probe.connect(address)
                    found = str(probe.getsockname()[0])
                except OSError:
                    continue
            if not ipaddress.ip_address(found.partition("%")[0]).is_unspecified:
                return found
    return "127.0.0.1"


def network_class(address: str, sysfs: Path = Path("/sys")) -> str:
    """The class of the network: "InfiniBand 200G", "RoCE 100G", "EFA", else the speed of the interface that holds
    `address` ("25GbE"); "unknown" where neither says (virtual interfaces often do not), "loopback" for this host only.
    """
    rdma = _rdma(sysfs)
    if rdma:
        return rdma
    interface = _interface_of(address)
    if interface is None:
        return "unknown"
    if interface == "lo":
        return "loopback"
    stats = psutil.net_if_stats().get(interface)
    return speed_class(stats.speed if stats is not None else 0)


def speed_class(mbit_s: int) -> str:
    """ "10GbE" for 10000. Virtual interfaces report 0, -1 or 65535 for "do not know"."""
    if mbit_s <= 0 or mbit_s >= 1_000_000 or mbit_s == 65535:
        return "unknown"
    return f"{mbit_s / 1000:g}GbE"


def _interface_of(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == address for a in addresses):
            return name
    return None


def _rdma(sysfs: Path) -> str | None:
    """The fastest active RDMA port, from /sys/class/infiniband/<device>/ports/<port>/."""
    best: tuple[float, str] | None = None
    for port in sorted(sysfs.glob("class/infiniband/*/ports/*")):
        values = {name: _read(port / name) for name in ("state", "rate", "link_layer")}
        if "ACTIVE" not in values["state"]:  # "4: ACTIVE"
            continue
        speed = _gbit(values)
        kind = "InfiniBand" if values["link_layer"] == "InfiniBand" else "RoCE"
        if port.parts[-3].startswith("efa"):
            kind = "EFA"
        name = f"{kind} {speed:g}G" if speed else kind
        if best is None or speed > best[0]:
            best = (speed, name)
    return best[1] if best else None


def _gbit(values: Mapping[str, str]) -> float:
    number = re.match(r"[\d.]+", values["rate"])  # "200 Gb/sec (4X HDR)"
    return float(number[0]) if number else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
