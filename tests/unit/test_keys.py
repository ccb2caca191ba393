"""Key names: two ids never collide, none escapes the prefix, and every key says what it is about."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heet_elastic.store.keys import Keys, Name, decode_id, encode_id

KEYS = Keys("/heet/v1")

# What `model.check_id` allows: anything printable, up to 128 characters.
ids = st.text(
    st.characters(exclude_categories=["Cs"]).filter(lambda c: ord(c) >= 32 and ord(c) != 127), min_size=1, max_size=128
)
rounds = st.integers(0, 10**12 - 1)

AWKWARD = [
    "j",
    "j1",
    "j/1",
    "../x",
    "..",
    ".",
    "a b",
    "ü",
    "%6A",
    "%",
    "jobs",
    "spec",
    "x" * 128,
    "a\u2028b",
    "/",
    "\\",
]


@settings(deadline=None)
@given(ids)
def test_an_encoded_id_is_one_plain_segment_and_gives_the_id_back(text: str) -> None:
    segment = encode_id(text)
    assert segment.isascii()
    assert "/" not in segment
    assert segment.strip(".") != ""
    assert decode_id(segment) == text


@settings(deadline=None)
@given(ids, ids)
def test_two_ids_never_share_a_segment(one: str, other: str) -> None:
    assert (encode_id(one) == encode_id(other)) is (one == other)


@settings(deadline=None)
@given(ids, ids, rounds)
def test_every_key_says_what_it_is_about(job: str, who: str, number: int) -> None:
    expected = {
        KEYS.host(job, who): Name("host", host=job, who=who),
        KEYS.claims(job): Name("claims", host=job),
        KEYS.profile(job): Name("profile", who=job),
        KEYS.agent(job, who): Name("agent", job=job, who=who),
        KEYS.wanted(job, who): Name("wanted", job=job, host=who),
        KEYS.start(job, who): Name("start", job=job, host=who),
        KEYS.node(who): Name("node", host=who),
        KEYS.done(job, who): Name("done", job=job, who=who),
        KEYS.samples(job, who): Name("samples", job=job, who=who),
        KEYS.round_store(job, number): Name("round_store", job=job, round=number),
        KEYS.failure(job, number, who): Name("failure", job=job, who=who, round=number),
    }
    for kind in ("spec", "allocation", "frozen", "result", "account", "status", "control", "command"):
        expected[getattr(KEYS, kind)(job)] = Name(kind, job=job)
    for kind in ("store_id", "epoch", "leader"):
        expected[getattr(KEYS, kind)] = Name(kind)
    assert {key: KEYS.parse(key) for key in expected} == expected
    assert len(expected) == 22


@pytest.mark.parametrize("job", AWKWARD)
def test_the_keys_of_one_job_are_never_under_anothers_prefix(job: str) -> None:
    inside = {other for other in AWKWARD if KEYS.agent(job, other).startswith(KEYS.job(other))}
    assert inside == {job}


@pytest.mark.parametrize(
    "key",
    [
        "/elsewhere/leader",
        "/heet/v1",
        "/heet/v1/",
        "/heet/v10/leader",
        "/heet/v1/unknown",
        "/heet/v1/leader/more",
        "/heet/v1/hosts/h",
        "/heet/v1/hosts//a",
        "/heet/v1/jobs/j/unknown",
        "/heet/v1/jobs//spec",
        "/heet/v1/jobs/j/rounds/1/store",
        "/heet/v1/jobs/j/rounds/00000000000²/store",
        "/heet/v1/jobs/j/rounds/-00000000001/store",
        "/heet/v1/jobs/j/failures/x/a",
        "/heet/v1/jobs/%6A/spec",
        "/heet/v1/jobs/%6a/spec",
        "/heet/v1/jobs/%ff/spec",
        "/heet/v1/jobs/ü/spec",
        "/heet/v1/jobs/../spec",
        "/heet/v1/jobs/\udcff/spec",
    ],
)
def test_keys_that_heet_does_not_write_are_unknown(key: str) -> None:
    assert KEYS.parse(key) is None


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_key_of_anybody_makes_parsing_fail(text: str) -> None:
    KEYS.parse(KEYS.root + text)
    KEYS.parse(KEYS.jobs + text)


@settings(deadline=None)
@given(ids, ids)
def test_at_most_one_key_is_about_a_thing(job: str, text: str) -> None:
    """Whatever key is known is the key that we would write."""
    name = KEYS.parse(f"{KEYS.jobs}{text}/spec")
    if name is not None:
        assert KEYS.spec(name.job) == f"{KEYS.jobs}{text}/spec"
    name = KEYS.parse(f"{KEYS.job(job)}agents/{text}")
    if name is not None:
        assert KEYS.agent(name.job, name.who) == f"{KEYS.job(job)}agents/{text}"


@pytest.mark.parametrize("prefix", ["", "heet", "/heet/"])
def test_a_prefix_that_cannot_hold_keys_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        Keys(prefix)
