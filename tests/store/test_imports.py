"""What importing the store costs and needs (case C30)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run(program: str) -> str:
    """Standard output of a fresh Python that runs `program`."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_a_missing_library_is_named_with_what_to_install(missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
from heet_elastic.errors import UsageError
try:
    import heet_elastic.store.etcd
except UsageError as e:
    print(e)
"""
    assert "pip install heet-elastic" in run(program)


def test_everything_but_etcd_works_without_its_libraries() -> None:
    program = """
import sys
for name in ("grpc", "google.protobuf", "etcd3"):
    sys.modules[name] = None
import heet_elastic.store.embedded, heet_elastic.store.memory, heet_elastic.store.mirror, heet_elastic.store.snapshot
print("well")
"""
    assert run(program) == "well\n"


def test_the_callers_environment_stays_as_it_was_and_grpc_says_nothing_of_its_own() -> None:
    program = """
import os
before = dict(os.environ)
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
assert dict(os.environ) == before
print("well")
"""
    assert run(program) == "well\n"
