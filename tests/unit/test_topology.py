"""Links of pairs and classes of GPUs, from NVML's answers as values."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heet_elastic.agents.facts import GpuFacts, NvLink, PairFacts, Snapshot
from heet_elastic.agents.topology import Links, Path, find_links

SWITCH = "00000000:05:00.0"


def gpu(index: int, *links: NvLink, name: str = "V100", unknown_links: bool = False) -> GpuFacts:
    return GpuFacts(
        index,
        uuid=f"GPU-{index}",
        name=name,
        pci=f"00000000:{0x10 + index:02X}:00.0",
        memory_mib=16160,
        pcie_generation=3,
        pcie_width=16,
        links=None if unknown_links else links,
    )


def to(peer: int, number: int = 0, version: int | None = 2, speed: int | None = None, up: bool = True) -> NvLink:
    return NvLink(number, up, version, 0, f"0000:{0x10 + peer:02x}:00.0", speed)


def hidden(count: int) -> tuple[NvLink, ...]:
    return tuple(NvLink(i, True, 4, 255) for i in range(count))


def host(*gpus: GpuFacts, ancestor: int | None = 30, p2p_nvlink: bool | None = None) -> Snapshot:
    pairs = [PairFacts(a.index, b.index, ancestor, True, p2p_nvlink) for a in gpus for b in gpus if a.index < b.index]
    return Snapshot(gpus=gpus, pairs=tuple(pairs))


def path(links: Links, i: int, j: int) -> Path:
    return next(p.path for p in links.pairs if (p.first, p.second) == (i, j))


def dgx_1v() -> Snapshot:
    wires = "01:1 02:1 03:2 04:2 12:2 13:1 15:2 23:2 26:1 37:1 45:1 46:1 47:2 56:2 57:1 67:2"
    links: dict[int, list[NvLink]] = {i: [] for i in range(8)}
    for wire in wires.split():
        a, b, count = int(wire[0]), int(wire[1]), int(wire[3])
        for one, other in ((a, b), (b, a)):
            links[one] += [to(other, len(links[one]) + k) for k in range(count)]
    return host(*(gpu(i, *links[i]) for i in range(8)), ancestor=50)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (0, Path.BOARD),
        (10, Path.PCIE_SWITCH),
        (20, Path.PCIE_SWITCHES),
        (30, Path.HOST_BRIDGE),
        (40, Path.NUMA_NODE),
        (50, Path.SYSTEM),
        (35, Path.UNKNOWN),
        (None, Path.UNKNOWN),
    ],
)
def test_without_nvlink_a_pair_is_where_its_common_ancestor_is(level, expected):
    links = find_links(host(gpu(0), gpu(1), ancestor=level))
    assert path(links, 0, 1) == expected
    assert links.classes == {0: "pcie", 1: "pcie"}
    assert links.pairs[0].gb_s == pytest.approx(15.76)


def test_a_cube_mesh_is_one_nvlink_group_though_not_all_are_neighbours():
    links = find_links(dgx_1v())
    assert str(links.pairs[2]) == "nvlink x2 (52 GB/s)"
    assert path(links, 0, 5) == Path.SYSTEM
    assert set(links.labels.values()) == {"nvlink"}
    assert links.problems == ()


def test_one_link_down_keeps_the_type_of_a_mesh_and_is_reported():
    snapshot = dgx_1v()
    first = snapshot.gpus[0]
    down = (NvLink(0, up=False), *(first.links or ())[1:])
    links = find_links(replace(snapshot, gpus=(replace(first, links=down), *snapshot.gpus[1:])))
    assert set(links.labels.values()) == {"nvlink"}
    assert links.problems == ("GPU 0: NVLink 0 is down",)


def test_the_only_link_of_a_pair_down_makes_it_pcie():
    links = find_links(host(gpu(0, to(1, up=False)), gpu(1, to(0, up=False))))
    assert links.classes == {0: "pcie", 1: "pcie"}


def test_a_link_seen_from_one_end_alone_counts():
    assert path(find_links(host(gpu(0, to(1)), gpu(1, unknown_links=True))), 0, 1) == Path.NVLINK


def test_bridged_pairs_are_told_from_a_group_that_is_connected_throughout():
    four = host(gpu(0, to(1)), gpu(1, to(0)), gpu(2, to(3)), gpu(3, to(2)))
    assert find_links(four).labels == dict.fromkeys(range(4), "nvlink-pairs")
    two = host(gpu(0, to(1)), gpu(1, to(0)))
    assert find_links(two).labels == {0: "nvlink", 1: "nvlink"}
    three = host(gpu(0, to(1)), gpu(1, to(0)), gpu(2))
    assert find_links(three).labels == {0: "nvlink-pairs", 1: "nvlink-pairs", 2: "pcie"}


def test_islands_of_four_are_named_by_their_size():
    ring = {0: (1, 3), 1: (0, 2), 2: (1, 3), 3: (2, 0)}
    gpus = [gpu(i + base, *(to(p + base, k) for k, p in enumerate(ring[i]))) for base in (0, 4) for i in range(4)]
    assert set(find_links(host(*gpus)).labels.values()) == {"nvlink-islands-of-4"}


@pytest.mark.parametrize("remote_type", [2, None])
def test_links_into_switches_are_a_fabric_also_when_the_type_of_the_remote_is_not_told(remote_type):
    ends = tuple(NvLink(i, True, 6, remote_type, SWITCH, 26562) for i in range(18))
    links = find_links(host(gpu(0, *ends), gpu(1, *ends), gpu(2, *ends[:17])))
    assert str(links.pairs[0]) == "nvswitch x18 (478 GB/s)"
    assert str(links.pairs[1]) == "nvswitch x17 (452 GB/s)"
    assert set(links.classes.values()) == {"nvswitch"}


def test_links_with_unknown_remotes_on_all_gpus_are_a_fabric_seen_from_a_virtual_machine():
    links = find_links(host(*(gpu(i, *hidden(12)) for i in range(4))))
    assert set(links.classes.values()) == {"nvswitch"}
    assert str(links.pairs[0]) == "nvswitch x12 (300 GB/s)"


def test_unknown_remotes_are_no_fabric_when_counts_differ_or_the_driver_denies_it():
    uneven = find_links(host(gpu(0, *hidden(12)), gpu(1, *hidden(6))))
    assert uneven.classes == {0: "pcie", 1: "pcie"}
    denied = find_links(host(gpu(0, *hidden(12)), gpu(1, *hidden(12)), p2p_nvlink=False))
    assert denied.classes == {0: "pcie", 1: "pcie"}


def test_a_fabric_that_is_not_ready_is_pcie_and_says_so():
    ends = tuple(NvLink(i, True, 6, 2, SWITCH) for i in range(18))
    gpus = (replace(gpu(i, *ends), fabric=2) for i in range(2))
    links = find_links(host(*gpus, p2p_nvlink=False))
    assert links.classes == {0: "pcie", 1: "pcie"}
    assert "nvidia-fabricmanager" in links.problems[0]


def test_what_the_driver_says_of_a_pair_counts_where_links_cannot_be_asked():
    links = find_links(host(gpu(0, unknown_links=True), gpu(1, unknown_links=True), p2p_nvlink=True))
    assert links.classes == {0: "nvlink", 1: "nvlink"}
    assert links.pairs[0].links is None


def test_what_nobody_answers_is_unknown():
    links = find_links(host(gpu(0, unknown_links=True), gpu(1, unknown_links=True), ancestor=None))
    assert links.classes == {0: "unknown", 1: "unknown"}
    assert find_links(host(gpu(0, unknown_links=True))).classes == {0: "unknown"}


def test_a_gpu_alone_has_the_class_of_its_board():
    assert find_links(host(gpu(0))).classes == {0: "pcie"}
    assert find_links(host(gpu(0, NvLink(0, True, 6, 2, SWITCH)))).classes == {0: "nvswitch"}
    assert find_links(host(gpu(0, to(5)))).classes == {0: "pcie"}  # its neighbour is somebody else's


def test_a_mixed_host_is_two_groups_and_links_between_them_do_not_count():
    links = find_links(host(gpu(0, to(1)), gpu(1, to(0)), gpu(2, name="T4"), gpu(3, name="T4")))
    assert links.labels == {0: "nvlink", 1: "nvlink", 2: "pcie", 3: "pcie"}


@pytest.mark.parametrize(
    ("version", "speed", "expected"),
    [(2, None, 25.781), (4, None, 25.0), (6, None, 26.562), (7, None, 53.125), (4, 26562, 26.562), (99, None, None)],
)
def test_the_speed_reported_outranks_the_table_by_version_constants(version, speed, expected):
    links = find_links(host(gpu(0, to(1, version=version, speed=speed)), gpu(1)))
    assert links.pairs[0].gb_s == expected


def test_measurements_outrank_what_nvml_says():
    slow = find_links(host(gpu(0, to(1)), gpu(1, to(0))), {(0, 1): 9.5})
    assert slow.classes == {0: "pcie", 1: "pcie"}
    assert str(slow.pairs[0]) == "unknown (measured 10 GB/s)"
    fast = find_links(host(gpu(0), gpu(1)), {(0, 1): 45.0})
    assert fast.classes == {0: "nvlink", 1: "nvlink"}
    agreed = find_links(host(gpu(0, to(1)), gpu(1, to(0))), {(0, 1): 22.0})
    assert str(agreed.pairs[0]) == "nvlink x1 (measured 22 GB/s)"


def test_types_do_not_depend_on_the_order_of_gpus():
    snapshot = dgx_1v()
    expected = {g.uuid: find_links(snapshot).labels[g.index] for g in snapshot.gpus}
    rng = random.Random(7)
    for _ in range(20):
        order = rng.sample(range(8), 8)
        gpus = tuple(replace(snapshot.gpus[old], index=new) for new, old in enumerate(order))
        labels = find_links(host(*gpus, ancestor=50)).labels
        assert {g.uuid: labels[g.index] for g in gpus} == expected


def test_a_lost_gpu_takes_no_part():
    links = find_links(host(gpu(0, to(1)), replace(gpu(1, to(0)), lost="gone"), gpu(2)))
    assert set(links.classes) == {0, 2}
