"""`--rdzv-conf` and HEET_*: what is accepted, what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heet_elastic.errors import UsageError
from heet_elastic.rendezvous.settings import PARSERS, RendezvousSettings, asked_spec, read_settings

USAGE = Path(__file__).parents[2] / "docs" / "usage.md"


def read(environ: dict[str, str] | None = None, **conf: object) -> RendezvousSettings:
    settings, _ = read_settings(
        endpoint="e:1", run_id="j", min_nodes=1, max_nodes=3, local_addr=None, conf=conf, environ=environ or {}
    )
    return settings


def test_every_key_is_in_the_docs_and_every_key_of_the_docs_exists():
    table = USAGE.read_text().split("## `--rdzv-conf`")[1].split("## ")[0]
    named = {
        k
        for line in table.splitlines()
        if line.startswith("| `")
        for k in line.split("|")[1].replace("`", "").split(", ")
    }
    assert {k.strip() for k in named} == set(PARSERS)


def test_values_come_from_conf_then_environment_then_defaults():
    assert read().ttl_s == 10
    assert read({"HEET_TTL_S": "4"}).ttl_s == 4
    assert read({"HEET_TTL_S": "4"}, ttl_s="2").ttl_s == 2
    assert read(workers="8/2/4").workers == (2, 4, 8)
    assert read(self_formed="no").self_formed is False


def test_keys_of_other_backends_are_named_and_ignored_and_torchs_timeout_is_not_even_named():
    _, ignored = read_settings(
        endpoint="e:1",
        run_id="j",
        min_nodes=1,
        max_nodes=1,
        local_addr=None,
        conf={"timeout": 900, "last_call_timeout": 30, "is_host": True},
        environ={},
    )
    assert ignored == ("is_host", "last_call_timeout")


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"ttl_s": "soon"}, "ttl_s='soon': expected a number >= 1"),
        ({"ttl_s": "nan"}, "expected a number >= 1"),
        ({"ttl_s": "inf"}, "expected a number >= 1"),
        ({"max_workers": "0"}, "expected a whole number >= 1"),
        ({"workers": "1/x"}, "expected a whole number >= 1"),
        ({"self_formed": "maybe"}, "expected true or false"),
        ({"name": ""}, "name is empty"),
        ({"min_workers": "5", "max_workers": "3"}, "max_workers=3 is below min_workers=5"),
    ],
)
def test_a_wrong_value_names_the_key_and_what_is_accepted(conf: dict[str, Any], words: str):
    with pytest.raises(UsageError) as caught:
        read(**conf)
    assert words in str(caught.value)


def test_the_environment_is_checked_like_the_command_line():
    with pytest.raises(UsageError, match="HEET_PRIORITY='high'"):
        read({"HEET_PRIORITY": "high"})


def test_a_rigid_job_and_an_elastic_one_ask_for_different_things():
    elastic = asked_spec(read(), nproc=4, script="t.py", incarnation="i", user="u", origin="")
    assert (elastic.rigid, elastic.min_workers, elastic.max_workers, elastic.name) == (False, 1, None, "t.py")
    settings, _ = read_settings(
        endpoint="e:1", run_id="j", min_nodes=2, max_nodes=2, local_addr=None, conf={}, environ={}
    )
    assert asked_spec(settings, nproc=4, script="t.py", incarnation="i", user="u", origin="").rigid


@pytest.mark.parametrize("conf", [{"min_workers": "13"}, {"workers": "13/16"}, {"multiple_of": "13"}])
def test_limits_that_these_hosts_can_never_meet_are_refused(conf: dict[str, Any]):
    with pytest.raises(UsageError, match="no world size is allowed: at most 3 hosts x 4 workers"):
        asked_spec(read(**conf), nproc=4, script="t.py", incarnation="i", user="u", origin="")


@pytest.mark.parametrize("run_id", ["a/b", "/", "ü" * 101, "none", "a\tb", "x" * 129])
def test_ids_that_torch_cannot_make_a_folder_of_are_refused_before_anything_is_written(run_id: str):
    with pytest.raises(UsageError, match="rdzv-id"):
        read_settings(endpoint="e:1", run_id=run_id, min_nodes=1, max_nodes=3, local_addr=None, conf={}, environ={})


@pytest.mark.parametrize("run_id", ["ein öß 日本 [b] %2F ..", ".", "..", "ü" * 100, "x" * 128])
def test_whatever_else_can_be_printed_is_a_job_id(run_id: str):
    settings, _ = read_settings(
        endpoint="e:1", run_id=run_id, min_nodes=1, max_nodes=3, local_addr=None, conf={}, environ={}
    )
    assert settings.job == run_id
