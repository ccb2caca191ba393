"""Records as bytes: they come back as they went, and nothing that anybody writes makes reading fail otherwise."""

from __future__ import annotations

import copy
import gc
import json
import random
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heet_elastic import model
from heet_elastic.errors import RecordError
from heet_elastic.model import (
    Account,
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Cell,
    CellCounters,
    Claim,
    Claims,
    Configuration,
    Control,
    Done,
    Epoch,
    Exclusion,
    Failure,
    Frozen,
    Gpu,
    HostRecord,
    JobFeatures,
    JobSpec,
    JobStatus,
    LeaderRecord,
    Member,
    Phase,
    Profile,
    Progress,
    Result,
    RoundStore,
    SampleRecord,
    Wanted,
)
from heet_elastic.store.api import MAX_VALUE_BYTES
from heet_elastic.store.records import RECORD_TYPES, decode, encode

CELL = Configuration("V100-nvlink", 4, 2)
SAMPLES: list[Any] = [
    HostRecord("h", "a", "10.0.0.1", "boot", (Gpu("GPU-1", "V100", "Tesla V100", 16384, "7.0", "nvlink", 0),), ("x",)),
    JobSpec("j", "name", "i", 1, 4, 2, 16, (2, 4), 2, 3.5, 90000.0, "samples", "train.py", "me"),
    AgentRecord("a", "h", "10.0.0.1", AgentState.FAILED, 3, 2, 8, 1, "i", 4711, ("GPU-1",), "job x"),
    Allocation(3, Cause.FAILURE, (Member("a", "h", ("GPU-1", "GPU-2")),), "a worker failed", 1, "i", CELL, "u", False),
    RoundStore(3, "a", "10.0.0.1", 29400),
    Failure(3, "a", "h", 0, 1, "ValueError: x", "train.py:3", 17, True),
    Done("a", 3, "i"),
    Frozen("a", 3, "i"),
    Result("failed", "budget gone", "i", 3, 1, 17.5, 60.0),
    Wanted("h", "i", "room for two more"),
    Account("i", 60.0, 1.0, 59.0, 10.0, 2, 4.0, 1.0, (("V100", 120.0),), (Exclusion("h", 30.0, 2, "died"),), 3, True),
    JobStatus(Phase.WAITING, "no room", 2, ("needs 2 hosts",)),
    Control("pause", 2.0, ("h",)),
    LeaderRecord("uuid", "h", 1, "heet", "0.1"),
    Epoch("uuid"),
    Claims("h", (Claim("j", "a", 3, ("GPU-1",)),)),
    SampleRecord("a", 3, (CellCounters(CELL, 1.0, 10, 320.0, 0.0, 0.1, 0.01, 3, 2),), Progress(5.0), JobFeatures(7), 9),
    Profile("resnet50", ((CELL, Cell(812.0, 60.0, 5, 0.1, 3.0)),), JobFeatures(7), 90000.0, "steps", "resnet"),
]


def test_there_is_a_sample_of_every_kind_of_record() -> None:
    assert {type(record) for record in SAMPLES} == set(RECORD_TYPES.values())


@pytest.mark.parametrize("record", SAMPLES, ids=lambda r: type(r).__name__)
def test_a_record_comes_back_as_it_went_and_equal_records_give_equal_bytes(record: Any) -> None:
    value = encode(record)
    assert decode("k", value, type(record)) == record
    assert encode(decode("k", value, type(record))) == value
    assert json.loads(value)["v"] == 1


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        AgentRecord,
        agent=st.text(st.characters(categories=("L", "N")), min_size=1, max_size=20),
        host=st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20),
        address=st.text(max_size=20),
        state=st.sampled_from(AgentState),
        round=st.integers(0, 2**53),
        busy_holder=st.text(max_size=200),
        busy=st.lists(st.text(max_size=9)).map(tuple),
    )
)
def test_any_text_survives(record: AgentRecord) -> None:
    assert decode("k", encode(record), AgentRecord) == record


def test_fields_of_a_newer_version_are_ignored_and_missing_ones_take_their_default() -> None:
    value = json.loads(encode(Epoch("u")))
    value["r"]["new"], value["new"] = {"deep": [1]}, 2
    assert decode("k", json.dumps(value).encode(), Epoch) == Epoch("u")
    assert decode("k", b'{"v":1,"r":{}}', Control) == Control()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not a HostRecord"),
        (b"\xff\xfe", "not a HostRecord"),
        (b"null", "not a HostRecord"),
        (b'{"r":{}}', "missing required field `v`"),
        (b'{"v":2,"r":{"host":1}}', "written by another heet (record version 2, this one reads 1)"),
        (b'{"v":1,"r":{"host":"h"}}', "missing required field `agent`"),
        (b'{"v":1,"r":{"host":"","agent":"a","address":"","boot_id":"","gpus":[]}}', "host name is empty"),
        (b'{"v":1,"r":{"host":"h","agent":"a","address":"","boot_id":"","gpus":[1]}}', "$.gpus[0]"),
        (b'{"v":1,"r":' + b"[" * 200_000, "recursion"),
        (b" " * (MAX_VALUE_BYTES + 1), "1048577 bytes, at most 1048576 are read"),
    ],
    ids=lambda x: x[:12] if isinstance(x, bytes) else None,
)
def test_what_cannot_be_read_names_the_key_and_what_is_wrong(value: bytes, words: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode("/heet/v1/hosts/h/a", value, HostRecord)
    assert str(caught.value).startswith("/heet/v1/hosts/h/a: ")
    assert words in str(caught.value)


def test_a_hostile_value_is_not_repeated_in_full() -> None:
    value = b'{"v":1,"r":{"phase":"' + b"x" * 500_000 + b'","reason":""}}'
    with pytest.raises(RecordError) as caught:
        decode("k", value, JobStatus)
    assert len(str(caught.value)) < 1000


JUNK: list[Any] = [None, True, 0, -1, 2**70, 1e308, -1e308, 0.5, "", "x", "\x00", "é" * 999, [], {}, [[]], {"a": 1}]
JUNK += [float("nan"), float("inf"), "\ud800", ["x"] * 50, {str(n): n for n in range(50)}]


def junk(rng: random.Random) -> Any:
    """Something that does not belong there."""
    return copy.deepcopy(rng.choice(JUNK))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def change_structure(value: Any, rng: random.Random) -> Any:
    """The JSON value with one part replaced, removed, repeated or added."""
    place = rng.choice(places(value))
    if not place:
        return junk(rng)
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    match rng.randrange(4):
        case 0:
            parent[place[-1]] = junk(rng)
        case 1:
            del parent[place[-1]]
        case 2:
            parent[place[-1]] = [parent[place[-1]]] * rng.randrange(4)
        case _ if isinstance(parent, dict):
            parent[rng.choice(["v", "r", "round", "host", "new"])] = junk(rng)
        case _:
            parent.append(junk(rng))
    return value


def change_bytes(value: bytes, rng: random.Random) -> bytes:
    """The bytes with some flipped, cut out, put in or doubled."""
    changed = bytearray(value)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = rng.randbytes(1)
            case 1:
                del changed[at : at + rng.randrange(10)]
            case 2:
                changed[at:at] = rng.randbytes(rng.randrange(10))
            case _:
                changed[at:at] = changed[rng.randrange(len(changed) + 1) :][:60]
    return bytes(changed)


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """A collection of the whole process's garbage must not count as time that reading a record took."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_10_000_mutations_are_read_or_refused_with_a_sentence_and_soon() -> None:
    """Half of them change the bytes, half the structure. Read ones keep the invariants of their type."""
    rng, refused, read = random.Random(20240427), list[str](), 0
    for n in range(10_000):
        record = rng.choice(SAMPLES)
        value = encode(record)
        if n % 2:
            value = change_bytes(value, rng)
        else:
            tree = json.loads(value)
            for _ in range(rng.randrange(1, 4)):
                tree = change_structure(tree, rng)
            value = json.dumps(tree).encode()
        start = time.thread_time()
        try:
            got = decode("k", value, type(record))
        except RecordError as e:
            refused.append(str(e))
        else:
            read += 1
            check_types(got)
        assert time.thread_time() - start < 0.010, value
    assert all(sentence.startswith("k: ") for sentence in refused)
    assert len(refused) > 5000
    assert read > 500


def check_types(record: Any) -> None:
    """Rebuilding the record from its fields passes its own checks, and it holds tuples, never lists."""
    if isinstance(record, tuple):
        for item in record:
            check_types(item)
    elif is_dataclass(record) and not isinstance(record, type):
        values = {f.name: getattr(record, f.name) for f in fields(record)}
        type(record)(**values)
        for value in values.values():
            check_types(value)
    else:
        assert record is None or isinstance(record, (str, int, float, bool, *ENUMS)), record


ENUMS = (model.AgentState, model.Cause, model.Phase)
