"""The phases of a job as a Mermaid diagram, from the transition table that the code itself uses.

python scripts/phases.py            prints it
python scripts/phases.py --write    puts it into docs/architecture.md
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from heet_elastic.model import TRANSITIONS, Phase

PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
FENCE = "```"


def diagram() -> str:
    """Mermaid text: one arrow a transition, in the order of the phases."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.WAITING}"]
    for phase in Phase:
        after = TRANSITIONS[phase]
        lines += [f"    {phase} --> {other}" for other in Phase if other in after]
        lines += [] if after else [f"    {phase} --> [*]"]
    return "\n".join(lines) + "\n"


def with_diagram(page: str) -> str:
    """`page` with its Mermaid block replaced."""
    before, _, rest = page.partition(f"{FENCE}mermaid\n")
    _, _, after = rest.partition(FENCE)
    return f"{before}{FENCE}mermaid\n{diagram()}{FENCE}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(with_diagram(PAGE.read_text()))
    else:
        print(diagram(), end="")
