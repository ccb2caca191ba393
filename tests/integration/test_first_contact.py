"""What a user reads when something is missing or wrong, and the exit code: cases C04, C13 to C15, C28, C42."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from heet_elastic.model import Control, Result
from heet_elastic.store.api import Put
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import encode
from tests.integration.harness import Cluster
from tests.integration.processes import free_port, wait_until

SLOW = 60.0
IDLE = ["--no-group"]


@pytest.fixture
def web_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ({"endpoint": "127.0.0.1:xx"}, 2, "port 'xx'"),
        ({"job": "none"}, 2, "--rdzv-id"),
        ({"job": "two\nlines"}, 2, "control character"),
        ({"conf": {"min_worker": 2}}, 2, "unknown key 'min_worker'"),
        ({"conf": {"min_workers": "many"}}, 2, "min_workers='many'"),
        ({"conf": {"min_workers": 9}}, 2, "no world size is allowed"),
        ({"conf": {"workers": "3/5"}}, 2, "no world size is allowed"),
        ({"conf": {"password": "x"}}, 2, "password_file"),
        ({"conf": {"total_steps": 5, "total_epochs": 1}}, 2, "one unit"),
        ({"conf": {"prefix": "heet"}}, 2, "prefix"),
        ({"conf": {"user": "u", "password_file": "/nowhere"}}, 2, "/nowhere"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else None,
)
def test_c42_a_wrong_argument_is_a_sentence_and_an_exit_code(lab: Cluster, flags, code, words):
    agent = lab.torchrun(host="a", nnodes="1:2", **flags)
    assert agent.wait(SLOW) == code, agent.tail()
    assert words in agent.output
    assert "Traceback" not in agent.output
    with lab.store() as store:
        assert not list(store.read(Keys().jobs).entries)


def test_c28_a_web_server_on_the_port_is_named(lab: Cluster, web_server: int):
    agent = lab.torchrun(host="a", endpoint=f"127.0.0.1:{web_server}")
    assert agent.wait(SLOW) == 4
    assert "is a web server, not etcd" in agent.output
    assert "Traceback" not in agent.output


def test_c04_no_etcd_is_said_at_once_and_ends_after_join_timeout(lab: Cluster):
    nobody = f"127.0.0.1:{free_port()}"
    quick = lab.torchrun(host="a", endpoint=nobody)
    patient = lab.torchrun(host="b", endpoint=nobody, conf={"join_timeout": 12})
    wait_until(lambda: "does not answer yet" in patient.output, SLOW, "the first message")
    told = time.monotonic()
    assert quick.wait(SLOW) == 6, quick.tail()
    assert f"etcd at {nobody}" in quick.output
    assert patient.wait(SLOW) == 6
    assert time.monotonic() - told > 8, "join_timeout is honoured"


def test_c04_too_few_hosts_are_said_with_numbers(lab: Cluster):
    agent = lab.torchrun(host="a", nnodes="2:3", conf={"join_timeout": 5}, args=IDLE)
    assert agent.wait(SLOW) == 6, agent.tail()
    assert "1 of at least 2 agents are here (no coordinator leads)" in agent.output


def test_c04_no_coordinator_is_said_where_one_has_led(lab: Cluster):
    from heet_elastic.model import Epoch

    with lab.store() as store:
        store.txn([], [Put(Keys().epoch, encode(Epoch("u")))])
    agent = lab.torchrun(host="a", nnodes="1:3", conf={"join_timeout": 5}, args=IDLE)
    assert agent.wait(SLOW) == 6, agent.tail()
    assert "no coordinator leads now: start heet-coordinator" in agent.output


def test_c42_done_failed_and_cancelled_have_their_codes(lab: Cluster):
    done = lab.torchrun(host="a", job="done", nnodes="1:2", args=[*IDLE, "--steps=2"])
    failed = lab.torchrun(host="b", job="failed", nnodes="1:2", args=[*IDLE, "--fail-step=1"])
    cancelled = lab.torchrun(host="c", job="cancelled", nnodes="1:2", args=IDLE)
    lab.wait_step("cancelled", world=1, timeout_s=SLOW)
    keys = Keys()
    with lab.store() as store:
        spec = store.read(keys.spec("cancelled")).entries[keys.spec("cancelled")]
        from heet_elastic.model import JobSpec
        from heet_elastic.store.records import decode

        incarnation = decode(spec.key, spec.value, JobSpec).incarnation
        result = Result("cancelled", "a person asked for it", incarnation)
        store.txn(
            [],
            [Put(keys.result("cancelled"), encode(result)), Put(keys.control("cancelled"), encode(Control("cancel")))],
        )
    assert cancelled.wait(SLOW) == 7, cancelled.tail()
    assert done.wait(SLOW) == 0, done.tail()
    assert failed.wait(SLOW) == 1, failed.tail()
    assert "exitcode  : 3" in failed.output
    assert "Traceback" not in cancelled.output


def test_c14_an_id_used_again_is_a_new_run_and_another_script_is_refused_while_live(lab: Cluster):
    first = lab.torchrun(host="a", nnodes="1:2", args=[*IDLE, "--steps=2"], conf={"late_join_s": 1})
    assert first.wait(SLOW) == 0, first.tail()
    start = time.monotonic()
    again = lab.torchrun(host="a", nnodes="1:2", args=IDLE, conf={"late_join_s": 1})
    lab.wait_step(world=1, after=start, timeout_s=SLOW)
    other = lab.torchrun(host="b", nnodes="1:3", args=IDLE)
    assert other.wait(SLOW) == 5, other.tail()
    assert "max_hosts is 3 here and 2 in the live job" in other.output
    assert again.alive


def test_c14_a_spare_that_comes_late_to_a_finished_run_ends_with_0(lab: Cluster):
    first = lab.torchrun(host="a", nnodes="1:2", args=[*IDLE, "--steps=2"], conf={"late_join_s": 60})
    assert first.wait(SLOW) == 0
    late = lab.torchrun(host="b", nnodes="1:2", args=[*IDLE, "--steps=2"], conf={"late_join_s": 60})
    assert late.wait(SLOW) == 0, late.tail()
    assert not lab.events(host="b")


def test_c15_odd_ids_are_kept_apart(lab: Cluster):
    jobs = ["j", "j1", "j 1", "jö", "x" * 100]
    agents = [
        lab.torchrun(host=f"h{n}", job=job, nnodes="1:2", args=[*IDLE, "--steps=2"]) for n, job in enumerate(jobs)
    ]
    assert [a.wait(SLOW * 2) for a in agents] == [0] * len(jobs)
    with lab.store() as store:
        specs = [k for k in store.read(Keys().jobs).entries if k.endswith("/spec")]
    assert len(specs) == len(jobs)
    assert {e.world for job in jobs for e in lab.events(job)} == {1}
