"""Where the checkout is, and how its entry points are found when it runs without being installed."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def announce_entry_points(folder: Path) -> list[str]:
    """Additions to PYTHONPATH that announce our entry points: none where the project is installed."""
    if importlib.metadata.entry_points(group="torchrun.handlers", name="heet"):
        return []
    info = folder / "heet_elastic-0.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        groups = {"console_scripts": project()["scripts"], **project()["entry-points"]}
        lines = [
            f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in entries.items()) for group, entries in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project()['name']}\nVersion: 0\n")
    return [str(folder)]
