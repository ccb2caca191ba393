"""What a store holds as the start of a simulation, and its history as a trace: the commands over the memory store."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from heet_elastic.cli import simulate as simulate_command
from heet_elastic.cli import trace as trace_command
from heet_elastic.cli.main import main
from heet_elastic.coordinator.api import SetAccount
from heet_elastic.coordinator.writes import transactions
from heet_elastic.errors import UsageError
from heet_elastic.model import (
    Account,
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    CellCounters,
    Configuration,
    Gpu,
    HostRecord,
    JobSpec,
    Member,
    Profile,
    Result,
    RoundProgress,
    SampleRecord,
    Snapshot,
)
from heet_elastic.simulator.history import NO_WORK, NOT_SEEN, history_of, trace_csv
from heet_elastic.simulator.traces import read_trace
from heet_elastic.store.api import Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.memory import MemoryStore
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder

KEYS = Keys()
NOON = 1.7e9
"""Some time of day, in seconds since 1970."""


class OpenStore(MemoryStore):
    """Stays readable when a command closes it."""

    def close(self) -> None:
        pass


def put(store: MemoryStore, records: Mapping[str, object]) -> None:
    for key, record in records.items():
        store.txn([], [Put(key, encode(record))])


def snapshot_of(store: MemoryStore) -> Snapshot:
    decoded = SnapshotDecoder(KEYS).decode(store.read(KEYS.root))
    assert decoded.problems == ()
    return decoded.snapshot


def add_host(store: MemoryStore, host: str, kind: str, gpus: int) -> None:
    devices = tuple(Gpu(f"{host}-{i}", kind, kind) for i in range(gpus))
    put(store, {KEYS.host(host, f"heet-agent@{host}"): HostRecord(host, f"heet-agent@{host}", host, "b", devices)})


def add_job(store: MemoryStore, job: str, came_s: float, spec: JobSpec, *, host: str = "t4", gpus: int = 0) -> None:
    """A job that came `came_s` after noon; it runs on `gpus` of its host, and has for a minute."""
    put(store, {KEYS.spec(job): spec})
    members = tuple(Member("a1", host, tuple(f"{host}-{i}" for i in range(gpus))) for _ in range(bool(gpus)))
    received = (("T4", 60.0 * gpus),) if gpus else ()
    account = Account(spec.incarnation, age_s=60.0, ran_s=60.0 if gpus else 0.0, received_s=received)
    ((compares, operations), _), *_ = transactions(
        [SetAccount(job, account)], KEYS, snapshot_of(store), wall_s=NOON + came_s + 60.0
    )
    store.txn(compares, operations)
    state = AgentState.RUNNING if gpus else AgentState.WAITING
    agent = AgentRecord("a1", host, host, state, round=1 if gpus else 0, most_workers=4, incarnation=spec.incarnation)
    put(store, {KEYS.agent(job, "a1"): agent})
    if gpus:
        configuration = Configuration("T4", gpus, 1)
        round_ = Allocation(1, Cause.PLAN, members, "granted", 0, spec.incarnation, configuration, "someone")
        cell = CellCounters(configuration, 60.0, 600, 0.0, 0.0, 0.1, 0.001, 12, gpus)
        sample = SampleRecord("a1", 1, (cell,), rounds=(RoundProgress(1, steps=600.0),))
        put(store, {KEYS.allocation(job): round_, KEYS.samples(job, "a1"): sample})


def spec_of(job: str, **more: object) -> JobSpec:
    return JobSpec(**{"job": job, "name": "bert", "incarnation": "run1", "max_hosts": 2, "script": "t.py", **more})  # type: ignore[arg-type]


@pytest.fixture
def store() -> OpenStore:
    """A cluster of 4 T4, on which one job runs, one waits, one has ended, and one came before times were noted."""
    store = OpenStore(threads=False)
    add_host(store, "t4", "T4", 4)
    add_job(store, "ended", 0.0, spec_of("ended", requested_workers=2), gpus=2)
    put(store, {KEYS.result("ended"): Result("succeeded", "all workers ended with 0", "run1", 1)})
    add_job(store, "runs", 30.0, spec_of("runs", total_work=6000.0, max_workers=4, priority=2.0), gpus=2)
    add_job(store, "waits", 45.5, spec_of("waits", total_work=1200.0, name=""))
    put(store, {KEYS.spec("old"): spec_of("old", total_work=5.0), KEYS.account("old"): Account("run1", age_s=5.0)})
    add_job(store, "vague", 50.0, spec_of("vague", name="vague"))
    put(store, {KEYS.profile("unrelated"): Profile("unrelated", ())})
    return store


def heet(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_history_is_work_and_arrivals_as_they_were(store, tmp_path):
    past = history_of(snapshot_of(store))
    assert [(j.job, j.row, j.submit_s, j.total_work, j.requested, j.priority) for j in past.jobs] == [
        ("ended", "bert", 0.0, 600.0, 2, 1.0),
        ("runs", "bert", 30.0, 6000.0, 1, 2.0),
        ("waits", "waits", 45.5, 1200.0, 1, 1.0),
    ]
    assert dict(past.left_out) == {NOT_SEEN: 1, NO_WORK: 1}
    path = tmp_path / "trace.csv"
    path.write_text(trace_csv(past.jobs))
    read = read_trace(path)
    assert read.format == "own"
    assert [(j.job_id, j.row, j.submit_s, j.total_work) for j in read.jobs] == [
        (j.job, j.row, j.submit_s, j.total_work) for j in past.jobs
    ]


def test_a_job_was_first_seen_when_its_account_was_first_written(store):
    later = SetAccount("runs", Account("run1", age_s=400.0))  # a leader that knows nothing of the time of day
    for action, wall_s, expected in (
        (later, NOON + 9000.0, NOON + 30.0),
        (SetAccount("runs", Account("run2", age_s=1.0)), NOON + 9000.0, NOON + 8999.0),  # the id was used again
    ):
        (((_, operations), _),) = transactions([action], KEYS, snapshot_of(store), wall_s)
        store.txn([], operations)
        view = snapshot_of(store).jobs["runs"]
        assert view.account is not None
        assert view.account.record.first_seen == expected


def test_a_failed_job_counts_with_what_it_did_and_a_rigid_one_with_what_it_held(store):
    rigid = spec_of("rigid", name="r", max_hosts=1, total_work=9000.0)
    add_job(store, "rigid", 10.0, rigid, gpus=2)
    put(store, {KEYS.result("rigid"): Result("failed", "a worker failed", "run1", 1, exit_code=1)})
    (job,) = [j for j in history_of(snapshot_of(store)).jobs if j.job == "rigid"]
    assert (job.total_work, job.requested, job.min_workers, job.max_workers, job.rigid) == (600.0, 2, 2, 2, True)


def test_an_empty_store_has_no_history():
    with pytest.raises(UsageError, match="no job that could go into a trace"):
        history_of(snapshot_of(OpenStore(threads=False)))


def test_exported_trace_and_table_run_in_the_simulator(store, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(trace_command, "open_store", lambda _: store)
    trace, table = tmp_path / "trace.csv", tmp_path / "table.csv"
    assert heet("trace", "export", "--out", str(trace), "--throughputs", str(table)) == 0
    said = capfd.readouterr().err
    assert "3 jobs" in said
    assert f"1 jobs left out: {NOT_SEEN}" in said
    words = ["--throughputs", str(table), "--trace", str(trace), "--cluster", "T4:1x4", "--processes", "1"]
    assert heet("simulate", *words, "--policy", "market,fifo", "--json") == 0
    data = json.loads(capfd.readouterr().out)
    assert data["jobs"] == 3
    assert all(p["unfinished"] == 0 for p in data["policies"].values())


def test_export_prints_the_trace_where_no_file_is_named(store, monkeypatch, capfd):
    monkeypatch.setattr(trace_command, "open_store", lambda _: store)
    assert heet("trace", "export") == 0
    assert capfd.readouterr().out.splitlines()[0].startswith("job,total_work,requested,submit_time_s")
    assert heet("trace", "export", "--out", "/nowhere/at/all.csv") == 2
    assert "cannot write /nowhere/at/all.csv" in capfd.readouterr().err


def test_from_cluster_says_what_another_policy_would_do(store, monkeypatch, capfd):
    monkeypatch.setattr(simulate_command, "open_store", lambda _: store)
    assert heet("simulate", "--from-cluster", "--policy", "market,fifo", "--processes", "1", "--json") == 0
    data = json.loads(capfd.readouterr().out)
    assert data["jobs"] == 4  # the ended one is no start
    assert {p["unfinished"] for p in data["policies"].values()} == {0.0}
    assert any("learned table" in n for n in data["notes"])
    assert any("a guess for vague" in n for n in data["notes"])


def test_from_cluster_says_what_eight_more_gpus_would_do(store, monkeypatch, capfd):
    monkeypatch.setattr(simulate_command, "open_store", lambda _: store)
    means, notes = [], []
    for more in ([], ["--cluster", "a100:1x8"], ["--cluster", "t4:2x4"]):
        assert heet("simulate", "--from-cluster", *more, "--policy", "market", "--processes", "1", "--json") == 0
        data = json.loads(capfd.readouterr().out)
        means.append(data["policies"]["market"]["mean_jct_s"])
        notes.append(" ".join(data["notes"]))
        assert data["policies"]["market"]["unfinished"] == 0
    assert means[1] < means[0]
    assert means[2] < means[0]
    assert "on a100: speeds there are a prior" in notes[1]


def test_from_cluster_without_jobs_is_a_sentence(monkeypatch, capfd):
    monkeypatch.setattr(simulate_command, "open_store", lambda _: OpenStore(threads=False))
    assert heet("simulate", "--from-cluster", "--policy", "market") == 2
    assert "nothing to simulate" in capfd.readouterr().err
