"""`heet doctor`: what is wrong on this host, and what to do about it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from heet_elastic.agents.hosts import HostSettings
from heet_elastic.cli.access import Access, with_access
from heet_elastic.cli.checks import Finding, examine

_MARKS = {"ok": "[green]ok[/]     ", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}


@with_access
def doctor(
    access: Access,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
) -> None:
    """Check etcd, versions, ports, addresses, clocks, devices and locks. Ends with 1 if there is a problem."""
    console = Console(stderr=True)
    if console.is_terminal and not as_json:
        with console.status("looking at this host and at etcd ..."):
            findings = examine(access, HostSettings.from_environment(os.environ))
    else:
        findings = examine(access, HostSettings.from_environment(os.environ))
    if as_json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        show(findings, Console())
    if any(f.state == "problem" for f in findings):
        raise typer.Exit(1)


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print findings for people, the fix below what it mends."""
    width = max((len(f.what) for f in findings), default=0)
    for finding in findings:
        console.print(f"{_MARKS[finding.state]}  {finding.what:<{width}}  ", end="")
        console.print(finding.text, markup=False, highlight=False, soft_wrap=True)
        if finding.fix and finding.state != "ok":
            console.print(f"{'':9}{'':{width}}  -> {finding.fix}", markup=False, highlight=False, soft_wrap=True)
    problems = sum(f.state == "problem" for f in findings)
    warnings = sum(f.state == "warning" for f in findings)
    console.print(f"{problems} problems, {warnings} warnings", highlight=False)
