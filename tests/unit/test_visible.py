"""CUDA_VISIBLE_DEVICES and its relatives, as a table: what CUDA would let a process see, as UUIDs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heet_elastic.agents.visible import Card, Instance, Request, select, worker_environment
from heet_elastic.errors import UsageError

A, B, C = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb0000-0000"
M1, M2 = "MIG-11111111-0000", "MIG-22222222-0000"


def card(uuid: str, bus: str, model: str = "A10", minor: int | None = None, mig: tuple[str, ...] = ()) -> Card:
    instances = tuple(Instance(m, i + 1, 0) for i, m in enumerate(mig))
    return Card(uuid, f"00000000:{bus}:00.0", model, minor, bool(mig), instances)


# Given in another order than their addresses: neither the list's nor NVML's order may be taken for CUDA's.
SAME = (card(C, "9b", minor=2), card(A, "0a", minor=0), card(B, "1b", minor=1))
MIXED = (card(A, "0a", "GTX 1660"), card(B, "1b", "RTX 3090"))
WITH_MIG = (card(A, "0a", "A100", mig=(M1, M2)), card(B, "1b", "A100"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (A, B, C)),
        ("0", (A,)),
        ("2,0", (A, C)),
        (" 1 , 2 ", (B, C)),
        ("0,1,2", (A, B, C)),
        ("0,-1,2", (A,)),  # CUDA stops at the first entry that it does not know
        ("0,7,1", (A,)),
        ("1gpu,2", (B, C)),
        ("+1", (B,)),
        (C, (C,)),
        (f"{C},{A}", (A, C)),
        ("GPU-bbbb", (C,)),
        ("GPU-AAAA2", (B,)),
        (f"{A},GPU-ffff,{B}", (A,)),
        (f"{A},0", (A,)),
        ("", ()),
        ("-1", ()),
        ("none", ()),
        ("void", ()),
        ("NoDevFiles", ()),
    ],
)
@pytest.mark.parametrize("order", [None, "PCI_BUS_ID", "FASTEST_FIRST"])
def test_c48_visible_devices_become_uuids(value, order, expected):
    assert select(Request(value, order), SAME) == expected


@pytest.mark.parametrize("value", ["7", "0,0", f"{A},{A}", "GPU-aaaa", "GPU-", "GPU-ffff", "gpu0", "MIG-1", "-2"])
def test_c48_what_names_no_device_is_a_sentence_with_what_there_is(value):
    with pytest.raises(UsageError, match=f"CUDA_VISIBLE_DEVICES={value} names no device .*0: A10 {A}.*unset it"):
        select(Request(value), SAME)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (M1, M2, B)),
        ("0", (M1, M2)),
        ("1", (B,)),
        (M2, (M2,)),
        (f"{M2},{M1}", (M1, M2)),
        ("MIG-2222", (M2,)),
        (f"MIG-{A}/2/0", (M2,)),
        (A, (M1, M2)),
    ],
)
def test_c48_mig_instances_stand_for_their_card(value, expected):
    assert select(Request(value), WITH_MIG) == expected


def test_c49_indexes_count_in_pci_order_where_the_cards_are_alike_or_the_order_is_set():
    assert select(Request("0"), SAME) == (A,)
    assert select(Request("1", "PCI_BUS_ID"), MIXED) == (B,)
    assert not Request("1", "PCI_BUS_ID").asks_cuda(MIXED)
    assert not Request("1").asks_cuda(SAME)


def test_c49_on_a_mixed_host_cudas_own_order_decides_and_is_never_guessed():
    request = Request("0")  # the RTX 3090: CUDA lists the fastest first
    assert request.asks_cuda(MIXED)
    assert select(request, MIXED, cuda_sees=(B,)) == (B,)
    with pytest.raises(UsageError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the devices by UUID"):
        select(request, MIXED, cuda_sees=None)
    assert select(Request(B), MIXED) == (B,)


def test_bus_addresses_are_compared_as_numbers():
    cards = (Card(A, "00010000:01:00.0", "A10"), Card(B, "00000000:C1:00.0", "A10"), Card(C, "00000000:0F:00.0", "A10"))
    assert select(Request("0"), cards) == (C,)
    assert select(Request(), cards) == (C, B, A)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_GPUS": "0,2"}, (A, C)),
        ({"SLURM_JOB_GPUS": "0-1"}, (A, B)),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_STEP_GPUS": "1"}, (B,)),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "2"}, (C,)),  # Slurm sets both: CUDA's is what binds
        ({"SLURM_JOB_GPUS": "4,5,6"}, (A, B, C)),  # a cgroup shows these three as all there is
        ({"SLURM_JOB_GPUS": "gpu:a100"}, (A, B, C)),
        ({"SLURM_JOB_GPUS": ""}, (A, B, C)),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, (A, B, C)),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, (A, B, C)),  # the runtime has applied it
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (A, B, C)),
        ({"NVIDIA_VISIBLE_DEVICES": f"{B},{C}"}, (B, C)),  # Kubernetes: a privileged pod sees all of them
        ({"NVIDIA_VISIBLE_DEVICES": f"{B},{C}", "CUDA_VISIBLE_DEVICES": C}, (C,)),
    ],
)
def test_slurm_and_kubernetes_variables(variables, expected):
    assert select(Request.from_environment(variables), SAME) == expected


def test_slurm_minor_numbers_under_a_cgroup_and_unknown_ones():
    two = (card(A, "0a", minor=4), card(B, "1b", minor=5))
    assert select(Request(slurm="5"), two) == (B,)
    nameless = (card(A, "0a"), card(B, "1b"))
    assert select(Request(slurm="1"), nameless) == (B,)
    assert select(Request(slurm="6,7"), nameless) == (A, B)


def test_what_is_handed_on_is_uuids_in_pci_order_and_nothing_for_cpu_slots():
    assert worker_environment([A, M1]) == {"CUDA_VISIBLE_DEVICES": f"{A},{M1}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert worker_environment(["CPU-h-0", "CPU-h-1"]) == {}
    assert worker_environment([]) == {}


entries = st.sampled_from(["0", "1", "2", "3", "-1", "x", "", A, B, C, "GPU-a", "GPU-bbbb", M1])


@given(st.lists(entries, max_size=5).map(",".join), st.permutations(SAME))
def test_what_is_offered_is_here_comes_once_and_does_not_depend_on_the_order_of_probing(value, cards):
    try:
        offered = select(Request(value), cards)
    except UsageError:
        with pytest.raises(UsageError):
            select(Request(value), SAME)
        return
    assert offered == select(Request(value), SAME)
    assert len(set(offered)) == len(offered)
    assert set(offered) <= {A, B, C}
