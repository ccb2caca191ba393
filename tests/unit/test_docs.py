"""The documents say what the code says, as far as a program can tell."""

from __future__ import annotations

import re

import pytest

from heet_elastic.errors import HeetError
from scripts.phases import PAGE, with_diagram
from tests.checkout import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def test_the_diagram_of_phases_is_the_transition_table():
    page = PAGE.read_text()
    assert page == with_diagram(page), "run: python scripts/phases.py --write"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_the_readme_lists_every_exit_code():
    codes = {HeetError.exit_code, *(c.exit_code for c in HeetError.__subclasses__())}
    text = (ROOT / "README.md").read_text()
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == {0, *codes}
