"""The commands as a shell sees them: every one is there, mistakes are sentences with exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from heet_elastic.agents.network import local_address
from heet_elastic.cli import agent as agent_command
from heet_elastic.cli import coordinator as coordinator_command
from heet_elastic.cli import main as heet
from heet_elastic.cli.errors import run
from heet_elastic.coordinator.settings import CoordinatorSettings, build
from heet_elastic.errors import StoreRefusedError, UsageError


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return found


def ended(main, *words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEET_ETCD", "HEET_CONFIG", "HEET_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", sorted(heet.COMMANDS))
def test_every_command_exists_and_has_help(name: str, capsys):
    module, function = heet.COMMANDS[name][0].split(":")
    assert callable(getattr(import_module(module), function))
    assert ended(heet.main, name, "--help") == 0
    assert name in capsys.readouterr().out


def test_help_lists_every_command(capsys):
    assert ended(heet.main, "--help") == 0
    out = capsys.readouterr().out
    assert [name for name in heet.COMMANDS if name not in out] == []


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


@pytest.mark.parametrize("words", [["status"], ["cancel", "a"]])
def test_without_etcd_a_sentence_says_so_in_time(words: list[str], capsys):
    began = time.monotonic()
    assert ended(heet.main, *words, "--etcd", f"127.0.0.1:{closed_port()}") == 3
    assert time.monotonic() - began < 10.0
    err = capsys.readouterr().err
    assert err.startswith("heet: ")
    assert "127.0.0.1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["status", "--etcd", "a:b:c"], "a:b:c"),
        (["status", "--prefix", "heet/"], "prefix"),
        (["priority", "a", "-1"], ""),
        (["explain"], ""),
        (["dance"], "dance"),
    ],
)
def test_wrong_arguments_end_with_2(words: list[str], sentence: str, capsys):
    assert ended(heet.main, *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("main", [heet.main, agent_command.main, coordinator_command.main])
@pytest.mark.parametrize("words", [["--no-such-flag"], ["--etcd"], ["--prefix", "heet/", "--etcd", "127.0.0.1:1"]])
def test_every_program_answers_a_mistake_with_a_sentence_and_2(main, words: list[str], capsys):
    assert ended(main, *words) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert words[0] in err or "prefix" in err


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("that is wrong"), 2), (StoreRefusedError("no"), 4), (KeyboardInterrupt(), 130)]
)
def test_an_error_is_its_sentence_and_its_code(error: BaseException, code: int, capsys):
    def fails() -> int:
        raise error

    assert run(fails) == code
    err = capsys.readouterr().err
    assert err == ("" if code == 130 else f"heet: {error}\n")


@pytest.mark.parametrize("program", ["main", "coordinator"])
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">/dev/full", 1, "heet: No space left on device\n"),
        (">&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_output_that_nobody_takes_is_no_traceback(program: str, redirected: str, code: int, said: str):
    words = {"main": "jobs --help", "coordinator": "--print-config"}[program]
    command = f"{sys.executable} -m heet_elastic.cli.{program} {words} {redirected}"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_the_output_does_not_know_are_spelt_out(encoding: str):
    name = "töne-日本-\U0001f600"
    program = (
        "import sys; from heet_elastic.cli.errors import run; from heet_elastic.cli.output import console, print_json\n"
        "run(lambda: (console().print(sys.argv[1]), print_json([sys.argv[1]])) and 0)"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    shown, document = done.stdout.decode(encoding).split("\n", 1)
    assert shown == name.encode(encoding, "backslashreplace").decode(encoding)
    assert json.loads(document) == [name]


def test_an_error_of_the_system_names_its_file(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert ended(heet.main, "up", "--dir", str(tmp_path / "file" / "below")) == 1
    assert capsys.readouterr().err.endswith("file/below: Not a directory\n")


@pytest.mark.parametrize("name", sorted(project()["scripts"]))
def test_a_ctrl_c_while_a_program_is_still_being_read_is_no_traceback(name: str, tmp_path):
    """A stand-in for typer, which each of them imports, keeps it there."""
    (tmp_path / "typer.py").write_text("import time; print('reading', flush=True); time.sleep(60)")
    module, function = project()["scripts"][name].split(":")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", f"from {module} import {function} as program; program()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "")


# ---- heet-coordinator


def test_print_config_prints_what_would_be_used(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HEET_COOLDOWN_S", "7")
    assert ended(coordinator_command.main, "--ttl-s", "3", "--print-config") == 0
    file = tmp_path / "printed.toml"
    file.write_text(capsys.readouterr().out)
    monkeypatch.delenv("HEET_COOLDOWN_S")
    assert build({}, {}, str(file)) == CoordinatorSettings(ttl_s=3.0, cooldown_s=7.0)


def test_the_config_file_can_be_named_in_the_environment(capsys, tmp_path, monkeypatch):
    file = tmp_path / "heet.toml"
    file.write_text("ttl_s = 4")
    monkeypatch.setenv("HEET_CONFIG", str(file))
    assert ended(coordinator_command.main, "--print-config") == 0
    assert "ttl_s = 4.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ttl-s", "soon"], "--ttl-s"),
        (["--policy", "best"], "policy is 'best': expected one of"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--listen", "a,b"], "expected one address"),
        (["--no-such-flag", "1"], "--no-such-flag"),
    ],
)
def test_wrong_settings_of_the_coordinator_are_named(words: list[str], sentence: str, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ended(coordinator_command.main, *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listen", "named"),
    [("0.0.0.0", local_address()), ("::", local_address()), ("127.0.0.1", None), ("::1", None), ("node1", None)],
)
def test_an_etcd_at_all_addresses_is_named_by_one_that_others_can_use(listen: str, named: str | None):
    assert coordinator_command.advertised(listen) == named


def test_a_coordinator_without_its_etcd_says_so_and_ends(capsys):
    assert ended(coordinator_command.main, "--etcd", f"127.0.0.1:{closed_port()}") == 3
    assert "is etcd running there?" in capsys.readouterr().err
