"""A whole job over TLS with client certificates and a user limited to the prefix, and who sees its secrets: case C37.

That each wrong certificate, authority, user and password has a sentence of its own is tested in tests/store.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heet_elastic.store.embedded import EmbeddedEtcd
from tests.integration.harness import Cluster
from tests.integration.processes import wait_until
from tests.store.certificates import Authority
from tests.store.labs import Admin
from tests.store.test_refusals import add_user, enable_auth, tls_etcd

SLOW = 90.0
PASSWORD = "correct-horse-battery"


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


def guarded(server: EmbeddedEtcd) -> None:
    with Admin(server.endpoint) as admin:
        add_user(admin, "heet", PASSWORD, ["/heet/v1/"])
        enable_auth(admin)


def seen_by_everybody(lab: Cluster) -> str:
    """Command lines and output of every process of the test."""
    family = {pid: line for proc in lab.procs for pid, line in proc.family().items()}
    return "\n".join([*family.values(), *(proc.output for proc in lab.procs)])


def test_c37_a_job_trains_over_tls_as_a_limited_user_and_its_password_shows_nowhere(
    lab: Cluster, tmp_path: Path, ca: Authority
):
    served, mine = ca.issue("server"), ca.issue("mine", common_name="anybody")
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    flags = ("--client-cert-auth", f"--trusted-ca-file={ca.cacert}")
    with tls_etcd(tmp_path / "tls", *flags, f"--cert-file={served.cert}", f"--key-file={served.key}") as (
        server,
        https,
    ):
        guarded(server)
        access = {"cacert": ca.cacert, "cert": mine.cert, "key": mine.key, "user": "heet", "password_file": str(secret)}
        environment = {f"HEET_{k.upper()}": v for k, v in access.items()}
        command = [f"--{k.replace('_', '-')}={v}" for k, v in access.items()]
        lab.start("coordinator", [*_coordinator(), "--etcd", https, *command])
        agent = lab.torchrun(host="a", nnodes="1:2", endpoint=https, conf={"ttl_s": 2, **access}, args=["--no-group"])
        other = lab.torchrun(host="b", nnodes="1:2", endpoint=https, env=environment, args=["--no-group"])
        lab.wait_step(world=2, timeout_s=SLOW)
        assert PASSWORD not in seen_by_everybody(lab)
        wrong = tmp_path / "wrong"
        wrong.write_text("guess")
        refused = lab.torchrun(
            host="c", endpoint=https, conf={**access, "password_file": str(wrong)}, args=["--no-group"]
        )
        assert refused.wait(SLOW) == 4, refused.tail()
        assert "does not accept the user 'heet' with this password" in refused.output
        assert "guess" not in refused.output
        for proc in (agent, other):
            proc.terminate()
            proc.wait(SLOW)
        wait_until(lambda: not agent.family(), SLOW, "the workers are gone")


def _coordinator() -> list[str]:

    return [sys.executable, "-m", "heet_elastic.cli.coordinator", "--settle-s=0.5", "--ttl-s=2", "--cooldown-s=0"]
