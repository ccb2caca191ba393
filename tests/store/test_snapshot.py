"""Decoding a view piece by piece gives what decoding it at once gives, and bad values are reported, not fatal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Claims,
    Control,
    Done,
    Epoch,
    Failure,
    Frozen,
    Gpu,
    Host,
    HostRecord,
    JobSpec,
    JobView,
    LeaderRecord,
    Member,
    Profile,
    Result,
    RoundStore,
    SampleRecord,
    Snapshot,
    Versioned,
    Wanted,
)
from heet_elastic.store.api import Delete, Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import Decoded, SnapshotDecoder

KEYS = Keys()
GPU = Gpu("GPU-1", "V100", "V100")


def agent(name: str, state: AgentState = AgentState.WAITING) -> AgentRecord:
    return AgentRecord(name, "h", "10.0.0.1", state)


def decoded(store: MemoryStore) -> Decoded:
    return SnapshotDecoder(KEYS).decode(store.read(KEYS.root))


def test_every_kind_of_key_finds_its_place() -> None:
    store = MemoryStore(threads=False)
    allocation = Allocation(2, Cause.PLAN, (Member("a", "h", ("GPU-1",)),), "r")
    failure, host = Failure(1, "a", "h", 0, 1, "e"), HostRecord("h", "a", "10.0.0.1", "b", (GPU,))
    spec, waiting, wanted = JobSpec("j/1", "j", "i"), agent("a"), Wanted("h", "i", "r")
    records = {
        KEYS.host("h", "a"): host,
        KEYS.claims("h"): Claims("h"),
        KEYS.profile("n"): Profile("n", ()),
        KEYS.epoch: Epoch("e"),
        KEYS.leader: LeaderRecord("u", "h", 1, "heet"),
        KEYS.spec("j/1"): spec,
        KEYS.allocation("j/1"): allocation,
        KEYS.frozen("j/1"): Frozen("a", 2, "i"),
        KEYS.result("j/1"): Result("succeeded", "", "i"),
        KEYS.control("j/1"): Control("pause"),
        KEYS.agent("j/1", "a"): waiting,
        KEYS.wanted("j/1", "h"): wanted,
        KEYS.done("j/1", "a"): Done("a", 2, "i"),
        KEYS.samples("j/1", "a"): SampleRecord("a", 2),
        KEYS.round_store("j/1", 2): RoundStore(2, "a", "10.0.0.1", 1),
        KEYS.failure("j/1", 1, "a"): failure,
    }
    store.txn([], [Put(key, encode(record)) for key, record in records.items()])
    store.txn([], [Put(KEYS.store_id, b"id"), Put(KEYS.root + "something/new", b"?")])

    def at(record: object) -> Versioned[object]:
        return Versioned(record, 2, 2)

    assert decoded(store) == Decoded(
        Snapshot(
            revision=3,
            hosts={"h": Host("h", (GPU,), "10.0.0.1", "b", ("a",))},
            jobs={
                "j/1": JobView(
                    "j/1",
                    spec=at(spec),  # type: ignore[arg-type]
                    allocation=at(allocation),  # type: ignore[arg-type]
                    agents={"a": at(waiting)},  # type: ignore[dict-item]
                    failures={(1, "a"): at(failure)},  # type: ignore[dict-item]
                    stores={2: RoundStore(2, "a", "10.0.0.1", 1)},
                    done={"a": Done("a", 2, "i")},
                    frozen=at(Frozen("a", 2, "i")),  # type: ignore[arg-type]
                    result=at(Result("succeeded", "", "i")),  # type: ignore[arg-type]
                    samples={"a": SampleRecord("a", 2)},
                    control=at(Control("pause")),  # type: ignore[arg-type]
                    wanted={"h": at(wanted)},  # type: ignore[dict-item]
                )
            },
            leader=at(LeaderRecord("u", "h", 1, "heet")),  # type: ignore[arg-type]
            epoch=Epoch("e"),
            claims={"h": at(Claims("h"))},  # type: ignore[dict-item]
            profiles={"n": Profile("n", ())},
        )
    )


def test_revisions_tell_rewrites_from_creations() -> None:
    store = MemoryStore(threads=False)
    for _ in range(2):
        store.txn([], [Put(KEYS.agent("j", "a"), encode(agent("a")))])
    assert decoded(store).snapshot.jobs["j"].agents["a"] == Versioned(agent("a"), 2, 3)


@pytest.mark.parametrize("bad", [b"", b"\xff", b'{"v":9}', b'{"v":1,"r":{}}'])
def test_an_unreadable_value_is_reported_skipped_and_healed_by_the_next(bad: bytes) -> None:
    store, decoder = MemoryStore(threads=False), SnapshotDecoder(KEYS)
    store.txn([], [Put(KEYS.agent("j", n), encode(agent(n))) for n in "ab"])
    decoder.decode(store.read(KEYS.root))
    store.txn([], [Put(KEYS.agent("j", "a"), bad)])
    got = decoder.decode(store.read(KEYS.root))
    assert set(got.snapshot.jobs["j"].agents) == {"b"}
    (problem,) = got.problems
    assert KEYS.agent("j", "a") in problem
    assert decoder.decode(store.read(KEYS.root)).problems == got.problems
    store.txn([], [Put(KEYS.agent("j", "a"), encode(agent("a")))])
    assert decoder.decode(store.read(KEYS.root)).problems == ()
    store.txn([], [Put(KEYS.agent("j", "a"), bad)])
    decoder.decode(store.read(KEYS.root))
    store.txn([], [Delete(KEYS.agent("j", "a"))])
    assert decoder.decode(store.read(KEYS.root)).problems == ()


@pytest.mark.parametrize(
    ("key", "record"),
    [
        (KEYS.agent("j", "a"), agent("b")),
        (KEYS.host("h", "a"), HostRecord("other", "a", "", "", ())),
        (KEYS.host("h", "a"), HostRecord("h", "other", "", "", ())),
        (KEYS.spec("j"), JobSpec("other", "j", "i")),
        (KEYS.round_store("j", 2), RoundStore(3, "a", "", 1)),
        (KEYS.failure("j", 2, "a"), Failure(3, "a", "h", 0, 1, "e")),
        (KEYS.claims("h"), Claims("other")),
        (KEYS.wanted("j", "h"), Wanted("other", "i", "r")),
        (KEYS.samples("j", "a"), SampleRecord("other", 1)),
        (KEYS.profile("n"), Profile("other", ())),
    ],
)
def test_a_record_that_speaks_of_another_than_its_key_is_reported_and_skipped(key: str, record: object) -> None:
    store = MemoryStore(threads=False)
    store.txn([], [Put(key, encode(record))])
    got = decoded(store)
    assert got.snapshot == Snapshot(2)
    assert len(got.problems) == 1
    assert "belongs under another key" in got.problems[0]


def test_a_job_is_gone_with_its_last_key() -> None:
    store, decoder = MemoryStore(threads=False), SnapshotDecoder(KEYS)
    store.txn([], [Put(KEYS.spec("j"), encode(JobSpec("j", "j", "i"))), Put(KEYS.agent("k", "a"), encode(agent("a")))])
    assert set(decoder.decode(store.read(KEYS.root)).snapshot.jobs) == {"j", "k"}
    store.txn([], [Delete(KEYS.job("j"), prefix=True)])
    assert set(decoder.decode(store.read(KEYS.root)).snapshot.jobs) == {"k"}


def test_a_host_is_merged_from_its_processes_and_gone_with_its_last() -> None:
    store, decoder = MemoryStore(threads=False), SnapshotDecoder(KEYS)
    unusable = replace(GPU, unusable="lost")
    store.txn([], [Put(KEYS.host("h", "a"), encode(HostRecord("h", "a", "1", "b", (GPU,))))])
    store.txn([], [Put(KEYS.host("h", "b"), encode(HostRecord("h", "b", "1", "b", (unusable,))))])
    host = decoder.decode(store.read(KEYS.root)).snapshot.hosts["h"]
    assert (host.agents, host.gpus) == (("a", "b"), (unusable,))
    store.txn([], [Delete(KEYS.host("h", "b"))])
    assert decoder.decode(store.read(KEYS.root)).snapshot.hosts["h"].gpus == (GPU,)
    store.txn([], [Delete(KEYS.hosts, prefix=True)])
    assert decoder.decode(store.read(KEYS.root)).snapshot.hosts == {}


def test_earlier_snapshots_are_not_touched_by_later_ones() -> None:
    store, decoder = MemoryStore(threads=False), SnapshotDecoder(KEYS)
    store.txn([], [Put(KEYS.agent("j", "a"), encode(agent("a")))])
    first = decoder.decode(store.read(KEYS.root)).snapshot
    store.txn([], [Put(KEYS.agent("j", "b"), encode(agent("b"))), Delete(KEYS.agent("j", "a"))])
    second = decoder.decode(store.read(KEYS.root)).snapshot
    assert set(first.jobs["j"].agents) == {"a"}
    assert set(second.jobs["j"].agents) == {"b"}


names = st.sampled_from("abc")
steps = st.one_of(
    st.builds(
        lambda job, who, state: Put(KEYS.agent(job, who), encode(agent(who, state))),
        names,
        names,
        st.sampled_from(AgentState),
    ),
    st.builds(lambda host, who: Put(KEYS.host(host, who), encode(HostRecord(host, who, "", "", (GPU,)))), names, names),
    st.builds(lambda job: Put(KEYS.spec(job), encode(JobSpec(job, job, "i"))), names),
    st.builds(lambda job, who: Put(KEYS.failure(job, 1, who), encode(Failure(1, who, "h", 0, 1, "e"))), names, names),
    st.builds(
        lambda who, value: Put(KEYS.profile(who), value), names, st.sampled_from([b"", encode(Profile("a", ()))])
    ),
    st.builds(lambda job: Put(KEYS.spec(job), b"bad"), names),
    st.builds(lambda job: Delete(KEYS.job(job), prefix=True), names),
    st.builds(lambda host, who: Delete(KEYS.host(host, who)), names, names),
    st.builds(lambda job, who: Delete(KEYS.agent(job, who)), names, names),
    st.sampled_from(["wipe", "pump", "look"]),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=40))
def test_step_by_step_equals_at_once(history: list[Put | Delete | str]) -> None:
    """Whatever happens, and however seldom one looks: same records, same order, same problems."""
    store = MemoryStore(clock=lambda: 0.0, threads=False, store_id_key=KEYS.store_id)
    mirror = Mirror(store, KEYS.root, KEYS)
    mirror.start()
    hinted, looking = SnapshotDecoder(KEYS), SnapshotDecoder(KEYS)
    for step in [*history, "look"]:
        if step == "wipe":
            store.wipe()
        elif step in ("pump", "look"):
            store.pump()
            if step == "look":
                at_once = SnapshotDecoder(KEYS).decode(mirror.view)
                for got in (hinted.decode(*mirror.drain()), looking.decode(mirror.view)):
                    assert got == at_once
                    assert list(got.snapshot.jobs) == list(at_once.snapshot.jobs) == sorted(at_once.snapshot.jobs)
                    for job, view in got.snapshot.jobs.items():
                        assert list(view.agents) == list(at_once.snapshot.jobs[job].agents)
        else:
            store.txn([], [step])  # type: ignore[list-item]
    assert mirror.view == store.read(KEYS.root)
