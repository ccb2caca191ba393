"""The embedded etcd: found, started, killed, restarted on its port and data, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from heet_elastic.errors import StoreUnavailableError, UsageError
from heet_elastic.store.api import Put
from heet_elastic.store.embedded import (
    EmbeddedEtcd,
    EmbeddedSettings,
    etcd_version,
    find_etcd,
    free_port,
    version_warning,
)
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from heet_elastic.store.keeper import kept
from tests.store.labs import wait_until


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    server = EmbeddedEtcd(EmbeddedSettings(str(tmp_path / "new" / "data")))
    yield server
    server.kill()


def client(server: EmbeddedEtcd) -> EtcdStore:
    return EtcdStore(EtcdSettings(parse_endpoints(server.endpoint), timeout_s=10.0))


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that waits for its parent has)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_serves_when_start_returns_and_ends_when_stop_does(etcd: EmbeddedEtcd) -> None:
    etcd.start()
    etcd.start()
    store = client(etcd)
    store.connect()
    assert store.status().version == etcd_version(find_etcd(os.environ))
    store.close()
    pid = etcd.pid
    assert etcd.running
    etcd.stop()
    assert gone(pid)
    assert (etcd.running, etcd.pid) == (False, 0)
    etcd.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_and_port_outlive_the_process_and_wipe_ends_the_data(etcd: EmbeddedEtcd, end: str) -> None:
    etcd.start()
    endpoint, store = etcd.endpoint, client(etcd)
    store.txn([], [Put("/k", b"v")])
    getattr(etcd, end)()
    etcd.restart()
    assert etcd.endpoint == endpoint
    wait_until(lambda: readable(store))
    assert store.read("/k").entries["/k"].value == b"v"
    etcd.wipe()
    etcd.start()
    wait_until(lambda: readable(store))
    assert store.read("/k").entries == {}
    store.close()


def readable(store: EtcdStore) -> bool:
    try:
        store.read("/")
    except StoreUnavailableError:
        return False
    return True


def test_it_is_a_context_manager(tmp_path: Path) -> None:
    with EmbeddedEtcd(EmbeddedSettings(str(tmp_path))) as server:
        pid = server.pid
        assert not gone(pid)
    assert gone(pid)


PARENT = """
import sys, threading, time
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings
server = EmbeddedEtcd(EmbeddedSettings(sys.argv[1]))
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.pid, server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_it_dies_with_its_parent_but_not_with_the_thread_that_started_it(tmp_path: Path, victim: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with parent:
        assert parent.stdout is not None
        etcd_pid, supervisor = map(int, parent.stdout.readline().split())
        try:
            assert not gone(etcd_pid)
            os.kill(parent.pid if victim == "parent" else supervisor, signal.SIGKILL)
            wait_until(lambda: gone(etcd_pid))
            wait_until(lambda: gone(supervisor))
        finally:
            parent.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_one_that_ends_by_itself_is_started_again_on_its_port_and_data(etcd: EmbeddedEtcd, number: int) -> None:
    etcd.start()
    endpoint, store = etcd.endpoint, client(etcd)
    store.txn([], [Put("/k", b"v")])
    with kept(etcd):
        first = etcd.pid
        os.kill(first, number)
        wait_until(lambda: etcd.pid not in (0, first) and readable(store))
        assert (etcd.endpoint, store.read("/k").entries["/k"].value) == (endpoint, b"v")
    store.close()
    etcd.stop()
    assert not etcd.running, "after the block nobody starts it again"


def test_one_that_cannot_come_back_is_tried_again_until_it_can(
    etcd: EmbeddedEtcd, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd.start()
    address = parse_endpoints(etcd.endpoint)[0]
    with kept(etcd):
        monkeypatch.setattr(etcd, "restart", refuse_first(etcd.restart))
        os.kill(etcd.pid, signal.SIGKILL)
        wait_until(lambda: "does not come back: not yet; tried again in 1 s" in caplog.text)
        wait_until(lambda: "serves again" in caplog.text)
        with socket.create_connection((address.host, address.port)):
            pass


def refuse_first(restart: Callable[[], None]) -> Callable[[], None]:
    tries = iter(range(1000))

    def tried() -> None:
        if next(tries) == 0:
            raise StoreUnavailableError("not yet")
        restart()

    return tried


def test_a_terminal_s_interrupt_does_not_reach_it(etcd: EmbeddedEtcd) -> None:
    etcd.start()
    assert os.getpgid(etcd.pid) != os.getpgid(0)
    assert os.getsid(etcd.pid) != os.getsid(0)


class TestWhatCanGoWrong:
    def test_a_port_that_is_taken(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            server = EmbeddedEtcd(EmbeddedSettings(str(tmp_path), port=other.getsockname()[1]))
            with pytest.raises(UsageError, match=rf"cannot listen on {server.endpoint}: another program listens there"):
                server.start()
        assert not server.running

    def test_a_port_where_another_etcd_answers_is_not_taken_for_ours(self, etcd: EmbeddedEtcd, tmp_path: Path) -> None:
        """However long ours takes to find out: the other one says that it is healthy all the while."""
        etcd.start()
        slow = tmp_path / "slow"
        slow.write_text(f'#!/bin/sh\nsleep 1\nexec {find_etcd(os.environ)} "$@"\n')
        slow.chmod(0o755)
        port = parse_endpoints(etcd.endpoint)[0].port
        second = EmbeddedEtcd(EmbeddedSettings(str(tmp_path / "second"), port=port, binary=str(slow)))
        with pytest.raises(UsageError, match="another program listens there"):
            second.start()
        assert not second.running

    def test_a_program_that_ends_at_once(self, tmp_path: Path) -> None:
        server = EmbeddedEtcd(EmbeddedSettings(str(tmp_path), binary="/bin/false"))
        with pytest.raises(StoreUnavailableError, match="etcd ended while starting"):
            server.start()

    def test_a_folder_that_cannot_be_used(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"etcd's data folder .*file.* cannot be used"):
            EmbeddedEtcd(EmbeddedSettings(str(tmp_path / "file" / "data"))).start()

    def test_an_address_of_another_machine(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
            EmbeddedEtcd(EmbeddedSettings(str(tmp_path), listen="192.0.2.1")).start()

    def test_no_binary_anywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(UsageError, match=r"no etcd was found: install it \(Debian: apt install etcd-server"):
            find_etcd({"PATH": "/nowhere"})

    def test_a_named_binary_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="HEET_ETCD_BIN=/etc/passwd is no program"):
            find_etcd({"HEET_ETCD_BIN": "/etc/passwd", "PATH": os.environ["PATH"]})


def test_a_named_binary_wins_over_the_path(tmp_path: Path) -> None:
    for name in ("etcd", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_etcd({"PATH": str(tmp_path)}) == str(tmp_path / "etcd")
    assert find_etcd({"PATH": str(tmp_path), "HEET_ETCD_BIN": str(tmp_path / "mine")}) == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("3.4.22", None),
        ("3.4.23", None),
        ("3.5.6", None),
        ("3.6.0", None),
        ("3.4.21", "use 3.4.22 or later"),
        ("3.3.25", "use 3.4.22 or later"),
        ("3.5.0", "can corrupt its data"),
        ("3.5.2", "can corrupt its data"),
        ("3.5.5", "3.5.6 or later"),
        ("", "does not tell"),
        ("new", "'new' is not known"),
    ],
)
def test_versions_that_must_not_hold_data_are_warned_about(version: str, words: str | None) -> None:
    warning = version_warning(version)
    assert (warning is None) if words is None else (warning is not None and words in warning)


def test_a_free_port_is_free() -> None:
    port = free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        assert 1024 <= port <= 65535
