"""What only etcd can do to us: hang, stop a process for longer than a lease, fork, lose its leader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heet_elastic.errors import StoreRefusedError, StoreUnavailableError
from heet_elastic.store.api import Committed, Put
from heet_elastic.store.embedded import EmbeddedEtcd, find_etcd
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.etcd.connection import Connector
from heet_elastic.store.etcd.etcd3_loader import load
from heet_elastic.store.etcd.watch import EtcdWatch
from tests.store.labs import EtcdLab, Recorder, new_etcd, three_members, wait_until


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[EtcdLab]:
    one = EtcdLab(new_etcd(tmp_path), "/t/", own=True)
    yield one
    one.close()


def test_a_call_to_a_server_that_hangs_ends_in_time_as_unknown(lab: EtcdLab) -> None:
    store = EtcdStore(replace(lab.settings(), timeout_s=0.5))
    store.read("/t/")
    os.kill(lab.server.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="did not answer in time"):
            store.txn([], [Put("/t/k", b"")])
        with pytest.raises(StoreUnavailableError):
            store.read("/t/")
        assert time.monotonic() - start < 5
    finally:
        os.kill(lab.server.pid, signal.SIGCONT)
    store.close()


def test_a_lease_fences_itself_before_a_hanging_server_could_end_it(lab: EtcdLab) -> None:
    told: list[str] = []
    lease = lab.store.lease(1.0, told.append)
    lab.store.txn([], [Put("/t/k", b"", lease.id)])
    os.kill(lab.server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not lease.alive)
        assert time.monotonic() - lease.last_ack >= lease.ttl_s
        wait_until(lambda: told == ["nothing was heard from etcd for 1 s"])
    finally:
        os.kill(lab.server.pid, signal.SIGCONT)
    assert not lease.alive


def test_a_lease_counts_from_when_a_keep_alive_was_sent_not_from_its_answer(lab: EtcdLab) -> None:
    """The server renewed it at some time in between, so only the sending is safe to count from."""
    lease = lab.store.lease(6.0)
    granted = lease.last_ack
    os.kill(lab.server.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: time.monotonic() > granted + lease.ttl_s / 3 + 0.5)
        answered = time.monotonic()
    finally:
        os.kill(lab.server.pid, signal.SIGCONT)
    wait_until(lambda: lease.last_ack > granted)
    assert lease.last_ack < answered


def test_a_full_database_can_be_read_and_says_what_to_do(tmp_path: Path) -> None:
    """For who has written before it is an outage; for who comes new, a refusal."""
    lab = EtcdLab(new_etcd(tmp_path, "--quota-backend-bytes=1000000"), "/t/", own=True)
    words = r"its database is full: compact, defragment.*alarm disarm"

    def fill() -> None:
        for n in range(100):
            lab.store.txn([], [Put(f"/t/{n}", b"x" * 100_000)])

    try:
        with pytest.raises(StoreUnavailableError, match=words):
            fill()
        with pytest.raises(StoreRefusedError, match=words):
            lab.client().txn([], [Put("/t/x", b"x" * 100_000)])
        assert "/t/0" in lab.store.read("/t/").entries
    finally:
        lab.close()


def test_another_store_is_noticed_without_a_store_id_by_its_lower_revision(lab: EtcdLab) -> None:
    store = EtcdStore(replace(lab.settings(), store_id_key=None))
    recorder = Recorder(store, "/t/")
    for n in range(5):
        store.txn([], [Put("/t/k", b"%d" % n)])
    watch = store.watch("/t/", store.read("/t/").revision, recorder.on_events, recorder.on_resync)
    lab.down()
    lab.up_emptied()
    recorder.wait(lambda r: len(r.resyncs) == 1)
    assert "went back from revision 6 to 1" in recorder.resyncs[0]
    watch.close()
    store.close()


def test_a_lease_survives_a_server_that_is_back_within_its_ttl(lab: EtcdLab) -> None:
    told: list[str] = []
    lease = lab.store.lease(9.0, told.append)
    lab.store.txn([], [Put("/t/k", b"", lease.id)])
    lab.down()
    lab.up()
    restarted = time.monotonic()
    wait_until(lambda: lease.last_ack > restarted)
    assert lease.alive
    assert told == []


FROZEN = """
import sys, time
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
store = EtcdStore(EtcdSettings(parse_endpoints(sys.argv[1])))
lease = store.lease(1.0)
print("ready", flush=True)
sys.stdin.readline()
print(lease.alive, flush=True)
"""


def test_a_process_that_was_stopped_for_its_ttl_finds_its_lease_dead_at_once(lab: EtcdLab) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FROZEN, lab.server.endpoint],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped > 1.5)
        process.stdin.write("\n")
        process.stdin.flush()
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "False\n"


FORKING = """
import os, sys, threading
from heet_elastic.errors import StoreUnavailableError
from heet_elastic.store.api import Put
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
store = EtcdStore(EtcdSettings(parse_endpoints(sys.argv[1])))
lease = store.lease(5.0)
seen = threading.Event()
watch = store.watch("/t/", store.read("/t/").revision, lambda events, revision: seen.set(), lambda reason: 0)
pid = os.fork()
if pid == 0:
    assert not lease.alive, "the lease is the parent's"
    for _ in range(20):  # the first call may find a connection that gRPC's own fork handling has ended
        try:
            store.txn([], [Put("/t/child", b"")])
            break
        except StoreUnavailableError as e:
            print(e, file=sys.stderr)
    own = store.lease(5.0)
    assert own.alive
    store.close()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert seen.wait(20)
assert lease.alive
store.txn([], [Put("/t/parent", b"", lease.id)])
watch.close()
store.close()
print("well")
"""


def test_after_a_fork_the_child_has_its_own_connection_and_the_parent_keeps_its(lab: EtcdLab) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, lab.server.endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "well\n", done.stderr
    assert set(lab.store.read("/t/").entries) == {"/t/child", "/t/parent"}


def test_closing_leaves_no_thread_and_later_calls_say_so(lab: EtcdLab) -> None:
    before = set(threading.enumerate())
    store, recorder = lab.client(), Recorder(lab.store, "/t/")
    lease = store.lease(5.0)
    store.watch("/t/", store.read("/t/").revision, recorder.on_events, recorder.on_resync)
    store.watch("/u/", store.read("/u/").revision, recorder.on_events, recorder.on_resync)
    store.close()
    store.close()
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("etcd-")])
    with pytest.raises(StoreUnavailableError, match="was closed"):
        store.read("/t/")
    with pytest.raises(StoreUnavailableError, match="was closed"):
        lease.revoke()


def test_many_leases_and_watches_share_one_client(lab: EtcdLab) -> None:
    leases = [lab.store.lease(3.0) for _ in range(100)]
    recorders = [Recorder(lab.store, "/t/") for _ in range(20)]
    start = lab.store.read("/t/").revision
    watches = [lab.store.watch("/t/", start, r.on_events, r.on_resync) for r in recorders]
    granted = time.monotonic()
    wait_until(lambda: all(lease.last_ack > granted for lease in leases))
    lab.store.txn([], [Put("/t/k", b"")])
    for recorder in recorders:
        recorder.wait(lambda r: r.keys == ["/t/k"])
    assert all(lease.alive for lease in leases)
    for watch in watches:
        watch.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[EmbeddedEtcd]]:
    """Three members of one etcd, all started."""
    with three_members(tmp_path) as members:
        yield members


@pytest.mark.parametrize(
    ("identity", "another"),
    [((b"id", 120), False), ((b"id", 100), False), ((b"id", 99), True), ((b"other", 120), True), ((None, 120), True)],
)
def test_a_member_that_lags_behind_is_the_same_store(identity: tuple[bytes | None, int], another: bool) -> None:
    """What the whole cluster has agreed on counts, not the revision of the member that one happens to talk to."""
    connector = Connector(EtcdSettings(parse_endpoints("nowhere.invalid")))
    watch = EtcdWatch(connector, lambda: identity, b"id", "/t/", 100, lambda *_: None, lambda _: 0, lambda _: None)
    lagging = load().ResponseHeader(cluster_id=1, revision=98)
    assert (watch._another_store(lagging) is not None) is another


def test_a_member_that_is_cut_off_from_its_cluster_counts_as_silence(cluster: list[EmbeddedEtcd]) -> None:
    """It accepts connections and would keep a watch open for ever, without ever having anything to say."""
    store = EtcdStore(EtcdSettings(parse_endpoints(cluster[0].endpoint), timeout_s=5.0))
    recorder = Recorder(store, "/t/")
    watch = store.watch("/t/", store.read("/t/").revision, recorder.on_events, recorder.on_resync)
    wait_until(lambda: watch.silent_for_s() == 0)
    for member in cluster[1:]:
        member.kill()
    wait_until(lambda: watch.silent_for_s() > 0.5, 60)
    cluster[1].start()
    wait_until(lambda: watch.silent_for_s() == 0, 60)
    watch.close()
    store.close()


def test_with_three_members_any_one_may_die_or_hang_and_nothing_is_missed(cluster: list[EmbeddedEtcd]) -> None:
    """Each member in turn is taken away, first killed, the last by a stop that leaves its connections open."""
    assert find_etcd(os.environ)
    endpoints = parse_endpoints(",".join(member.endpoint for member in cluster))
    store = EtcdStore(EtcdSettings(endpoints, timeout_s=5.0, store_id_key="/t/store_id"))
    store.connect()
    store.txn([], [Put("/t/store_id", b"id")])
    told: list[str] = []
    lease = store.lease(15.0, told.append)
    recorder = Recorder(store, "/t/k")
    watch = store.watch("/t/k", store.read("/t/k").revision, recorder.on_events, recorder.on_resync)

    def put(key: str) -> bool:
        try:
            return isinstance(store.txn([], [Put(key, b"", lease.id)]), Committed)
        except StoreUnavailableError:
            return False

    for n, member in enumerate(cluster):
        hang = n == 2
        if hang:
            os.kill(member.pid, signal.SIGSTOP)
        else:
            member.kill()
        wait_until(lambda n=n: put(f"/t/k{n}"), 60)  # type: ignore[misc]
        recorder.wait(lambda r, n=n: bool(r.keys) and r.keys[-1] == f"/t/k{n}")  # type: ignore[misc]
        if hang:
            os.kill(member.pid, signal.SIGCONT)
        else:
            member.start()
    seen = time.monotonic()
    wait_until(lambda: lease.last_ack > seen)
    watch.close()
    store.close()
    assert list(dict.fromkeys(recorder.keys)) == ["/t/k0", "/t/k1", "/t/k2"]
    assert recorder.revisions == sorted(set(recorder.revisions))
    assert recorder.resyncs == []
    assert told == []
