"""What a dying worker leaves in torch's error file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from heet_elastic.agents.last_words import write
from heet_elastic.rendezvous.workers import read_error

PROGRAM = """
from heet_elastic.agents import last_words
last_words.install()
def broken():
    raise RuntimeError("Connection closed by peer")
broken()
"""


def run(program: str, error_file: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), "TORCHELASTIC_ERROR_FILE": str(error_file)}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_uncaught_exception_is_printed_as_ever_and_written_where_torch_looks(tmp_path: Path):
    ended = run(PROGRAM, tmp_path / "error.json")
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("RuntimeError: Connection closed by peer")
    report = read_error(str(tmp_path / "error.json"), 1)
    assert report.message == "RuntimeError: Connection closed by peer"
    assert report.place == "RuntimeError at <string>:5"
    assert report.secondary


def test_a_file_that_record_has_written_is_left_alone(tmp_path: Path):
    path = tmp_path / "error.json"
    path.write_text('{"message": "mine"}')
    run(PROGRAM, path)
    assert json.loads(path.read_text()) == {"message": "mine"}
    assert read_error(str(path), 1).message == "mine"


def test_an_end_without_exception_or_without_a_place_to_write_leaves_nothing(tmp_path: Path):
    assert run("from heet_elastic.agents import last_words; last_words.install()", tmp_path / "e").returncode == 0
    write("", ValueError, ValueError("x"), None)
    write(str(tmp_path / "no" / "such" / "folder"), ValueError, ValueError("x"), None)
    assert [p.name for p in tmp_path.iterdir()] == ["e.torch"], "only the mark that torch was imported"


@pytest.mark.parametrize(
    ("program", "exit_code", "lived_s", "place"),
    [
        ("import a_module_that_does_not_exist", 1, 2.0, "before import torch"),
        ("import a_module_that_does_not_exist", 1, 3600.0, ""),
        ("raise SystemExit(1)", 1, 2.0, "before import torch"),
        ("raise SystemExit(3)", 3, 2.0, ""),
        ("from heet_elastic.agents import last_words; last_words.install(); raise SystemExit(1)", 1, 2.0, ""),
    ],
)
def test_an_end_with_1_before_torch_was_imported_has_a_place(tmp_path, program, exit_code, lived_s, place):
    assert run(program, tmp_path / "error.json").returncode == exit_code
    assert read_error(str(tmp_path / "error.json"), exit_code, lived_s).place == place


def test_without_a_report_the_exit_code_or_the_signal_is_the_error(tmp_path: Path):
    assert read_error(None, 3).message == "exit code 3"
    assert read_error(str(tmp_path / "none"), -9).message == "killed by SIGKILL"
    (tmp_path / "garbage").write_bytes(b"\xff{")
    assert read_error(str(tmp_path / "garbage"), -99).message == "killed by signal 99"
