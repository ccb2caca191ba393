"""`heet doctor`: what is wrong on this host, and what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from heet_elastic.agents.hosts import HostSettings
from heet_elastic.cli.access import Access, with_access
from heet_elastic.cli.checks import Finding, examine
from heet_elastic.cli.output import console

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@with_access
def doctor(
    access: Access,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
) -> None:
    """Check etcd, versions, ports, addresses, clocks, devices and locks. Ends with 1 if there is a problem."""
    errors = Console(stderr=True)
    if errors.is_terminal and not as_json:
        with errors.status("looking at this host and at etcd ..."):
            findings = examine(access, HostSettings.from_environment(os.environ))
    else:
        findings = examine(access, HostSettings.from_environment(os.environ))
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        show(findings, console())
    if any(f.state == "problem" for f in findings):
        raise typer.Exit(1)


def show(findings: Sequence[Finding], out: Console) -> None:
    """Print findings for people, the fix below what it mends."""
    width = max((len(f.what) for f in findings), default=0)
    for finding in findings:
        out.print(Text(f"{finding.state:<7}", style=_COLOURS[finding.state]), f" {finding.what:<{width}}  ", end="")
        out.print(finding.text, soft_wrap=True)
        if finding.fix and finding.state != "ok":
            out.print(f"{'':9}{'':{width}}  -> {finding.fix}", soft_wrap=True)
    problems = sum(f.state == "problem" for f in findings)
    warnings = sum(f.state == "warning" for f in findings)
    out.print(f"{problems} problems, {warnings} warnings")
