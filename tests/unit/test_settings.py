"""The coordinator's settings: file, then environment, then flags; what is wrong is named with what is accepted."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from heet_elastic.coordinator.settings import SETTINGS, CoordinatorSettings, as_markdown, as_toml, build
from heet_elastic.errors import UsageError
from tests.checkout import ROOT


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path):
    file = tmp_path / "heet.toml"
    file.write_text('ttl_s = 4\ncooldown_s = 5.5\ninterval_s = 60\nhost = "from file"\n')
    settings = build({"interval_s": "90", "etcd": None}, {"HEET_COOLDOWN_S": "7", "HEET_INTERVAL_S": "80"}, str(file))
    assert (settings.ttl_s, settings.cooldown_s, settings.interval_s) == (4.0, 7.0, 90.0)
    assert settings.host == "from file"
    assert settings.etcd == ""


def test_what_is_printed_can_be_read_back(tmp_path: Path):
    settings = build({"ttl_s": "3", "host": 'a "quoted" näme'}, {}, None)
    file = tmp_path / "printed.toml"
    file.write_text(as_toml(settings))
    assert build({}, {}, str(file)) == settings


@pytest.mark.parametrize(
    ("values", "environment", "words"),
    [
        ({"ttl_s": "soon"}, {}, ["flag --ttl-s", "'soon'", "a number"]),
        ({"retained_jobs": "1.5"}, {}, ["retained_jobs", "'1.5'", "a whole number"]),
        ({"ttl_s": "0"}, {}, ["ttl_s is 0", ">= 1"]),
        ({"ttl_s": "nan"}, {}, ["ttl_s is nan", ">= 1"]),
        ({"policy": "best"}, {}, ["policy is 'best'", "expected one of", "heet"]),
        ({"log_level": "loud"}, {}, ["log_level", "debug"]),
        ({"settle_s": "9"}, {}, ["settle_most_s", "settle_s = 9"]),
        ({"cert": "a.pem"}, {}, ["cert and key"]),
        ({"prefix": "heet"}, {}, ["prefix", "/heet/v1"]),
        ({"nonsense": "1"}, {}, ["'nonsense' is no setting", "ttl_s"]),
        ({}, {"HEET_TTL_S": "x"}, ["environment variable HEET_TTL_S", "a number"]),
    ],
)
def test_wrong_settings_are_errors_that_name_them(values, environment, words):
    with pytest.raises(UsageError) as caught:
        build(values, environment, None)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttl_s = [", ["no TOML"]),
        ('ttl = 5\nhost = "x"', ["'ttl' is no setting"]),
        ("ttl_s = true", ["ttl_s is True", "a number"]),
        ("host = 5", ["host is 5", "text"]),
        ("[table]\nttl_s = 1", ["'table' is no setting"]),
    ],
)
def test_wrong_files_are_errors_that_name_file_and_setting(tmp_path: Path, text: str, words: list[str]):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        build({}, {}, str(file))
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(UsageError, match=r"absent\.toml: No such file"):
        build({}, {}, str(tmp_path / "absent.toml"))


def test_every_setting_has_a_sentence_and_the_documentation_has_the_same_table():
    assert all(f.metadata["help"] for f in fields(CoordinatorSettings))
    assert list(SETTINGS) == [f.name for f in fields(CoordinatorSettings)]
    page = (ROOT / "docs" / "coordinator.md").read_text(encoding="utf-8")
    assert as_markdown() in page, "run: python -m heet_elastic.coordinator.settings, and paste its table"
