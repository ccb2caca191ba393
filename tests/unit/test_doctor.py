"""`heet doctor`: what is looked at, and that every problem comes with what to do."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
import typer
from typer.testing import CliRunner

from heet_elastic.agents.hosts import HostSettings
from heet_elastic.agents.visible import Request
from heet_elastic.cli import checks
from heet_elastic.cli.access import Access, open_store
from heet_elastic.cli.checks import Finding
from heet_elastic.cli.doctor import doctor
from heet_elastic.model import LeaderRecord
from heet_elastic.store import records
from heet_elastic.store.api import Put
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings, free_port
from heet_elastic.store.memory import MemoryStore
from tests.fake_nvml import boxes, build

app = typer.Typer()
app.command()(doctor)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with EmbeddedEtcd(EmbeddedSettings(str(tmp_path_factory.mktemp("etcd")))) as server:
        yield server


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.libraries()))
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "box"))
    boxes.a10_pair().write(tmp_path / "box")
    return HostSettings(host="h", lock_dir=tmp_path / "locks", address="127.0.0.1")


def named(findings, what: str) -> Finding:
    found: list[Finding] = [f for f in findings if f.what == what]
    assert len(found) == 1
    return found[0]


def test_a_healthy_host_and_etcd_have_no_problem(etcd, settings):
    findings = checks.examine(Access(etcd.endpoint), settings)
    for what in ("etcd", "etcd speed", "etcd role", "clock", "ports", "devices", "locks"):
        assert named(findings, what).state == "ok", named(findings, what)
    assert named(findings, "coordinator").state == "warning"
    assert "2 of 2 usable (A10 24GB pcie)" in named(findings, "devices").text
    assert {f.what for f in findings if f.state == "problem"} <= {"plug-in"}  # heet may be run from a checkout
    assert all(f.fix for f in findings if f.state == "problem")


def test_looking_at_etcd_leaves_nothing_in_it(etcd, settings):
    access = Access(etcd.endpoint, prefix="/doctored")
    list(checks.check_etcd(access))
    with contextlib.closing(open_store(access)) as store:
        assert store.read("/doctored").entries == {}


def test_the_leader_is_named():
    store, access = MemoryStore(), Access("none")
    store.txn([], [Put(access.keys.leader, records.encode(LeaderRecord("u", "node1", 42, "market")))])
    assert checks._leader(store, access).text == "pid 42 on node1 leads, policy market"
    store.txn([], [Put(access.keys.leader, b"rubbish")])
    assert checks._leader(store, access).state == "problem"


def test_an_etcd_that_is_not_there_is_a_problem_with_what_to_do():
    (finding,) = checks.check_etcd(Access(f"127.0.0.1:{free_port('127.0.0.1')}"))
    assert (finding.state, finding.what) == ("problem", "etcd")
    assert "HEET_ETCD" in finding.fix


@pytest.mark.parametrize(
    ("version", "state"),
    [("3.4.21", "warning"), ("3.4.23", "ok"), ("3.5.0", "warning"), ("3.5.16", "ok"), ("3.6.0", "ok")],
)
def test_versions_of_etcd_that_can_lose_data_are_warned_about(version, state):
    assert checks._etcd_version(version, "here").state == state


@pytest.fixture
def web_server():
    """An HTTP server whose clock is off by `seconds`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        seconds = 0.0

        def date_time_string(self, timestamp=None):
            return formatdate(time.time() + self.seconds, usegmt=True)

        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port, Handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("seconds", "state", "text"),
    [(0, "ok", "within 2 s"), (90, "warning", "s behind etcd's host"), (-90, "warning", "s ahead of etcd's host")],
)
def test_clocks_apart_are_seen(web_server, seconds, state, text):
    port, handler = web_server
    handler.seconds = seconds
    finding = checks._clock(Access(f"127.0.0.1:{port}"))
    assert finding.state == state
    assert text in finding.text


def test_wrong_visible_devices_and_unusable_devices_are_found(settings, tmp_path):
    box = boxes.a10_pair()
    box.set("gpu", 1, lost=1)
    box.write(tmp_path / "box")
    findings = list(checks.check_host(settings))
    assert named(findings, "devices").state == "ok"
    assert any("lost" in f.text for f in findings if f.state == "warning")
    wrong = replace(settings, visible=Request("9"))
    (finding,) = checks.check_host(wrong)
    assert finding.state == "problem"
    assert "CUDA_VISIBLE_DEVICES=9 names no device" in finding.text


def test_a_lock_folder_that_cannot_be_used_is_found(tmp_path):
    (tmp_path / "file").touch()
    (finding,) = checks.check_locks(tmp_path / "file")
    assert finding.state == "problem"
    assert "HEET_LOCK_DIR" in finding.text


def test_checking_locks_leaves_no_file(tmp_path):
    (finding,) = checks.check_locks(tmp_path / "locks")
    assert finding.state == "ok"
    assert list((tmp_path / "locks").iterdir()) == []


def test_the_command_prints_findings_with_their_fix_and_ends_with_1_for_a_problem(settings, tmp_path):
    variables = {
        "HEET_ETCD": f"127.0.0.1:{free_port('127.0.0.1')}",
        "HEET_LOCK_DIR": str(tmp_path / "locks"),
        "HEET_HOST": "h",
        "CUDA_VISIBLE_DEVICES": "",
    }
    result = CliRunner().invoke(app, [], env=variables, catch_exceptions=False)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("problem  etcd "))
    assert "nobody listens at" in lines[at]
    assert "-> give its endpoints with --etcd" in lines[at + 1]
    as_json = CliRunner().invoke(app, ["--json"], env=variables, catch_exceptions=False)
    assert as_json.exit_code == 1
    assert {"state", "what", "text", "fix"} == set(json.loads(as_json.output)[0])
