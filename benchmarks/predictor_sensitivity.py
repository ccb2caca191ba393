"""What the predictor's constants are worth: each halved and doubled, judged on tables and across them.

    python benchmarks/predictor_sensitivity.py TABLE TABLE ... [--json]

Median error (per cent) of six measured cells, family held out, over both designs, for every change of one constant. At
the end, for every table: the change that is best on the *other* tables, and what it would have brought here against the
constants as they are. If constants were tuned to tables, choosing them elsewhere would cost; if they were worth tuning,
it would gain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np

from heet_elastic.predictor import combined, explain, learning
from heet_elastic.predictor.evaluation import Design, Plan, evaluate
from heet_elastic.predictor.kernels import PhysicsPrior
from heet_elastic.predictor.scores import score
from heet_elastic.predictor.tables import ThroughputTable, covered, load_table

DESIGNS: tuple[Design, ...] = ("chosen", "standard")

PRIORS = {
    "type_std": ("type_std",),
    "ratio_std": ("ratio_std",),
    "delta": ("type_dev", "class_dev", "across_dev", "smooth_dev", "cell_dev"),
    "rest": ("rest_smooth", "rest_cell"),
    "level": ("level_type", "level_class", "level_smooth", "level_all"),
    "length": ("length",),
}
MODULE_CONSTANTS: Mapping[str, tuple[Any, str]] = {
    "line weight": (combined, "LINE_WEIGHT"),
    "weight of past jobs": (explain, "PAST_WEIGHT"),
    "learning weight of types": (learning, "RATIO_WEIGHT"),
}


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """One constant, or group of constants, times `factor` for a while."""
    if name in MODULE_CONSTANTS:
        module, constant = MODULE_CONSTANTS[name]
        before = getattr(module, constant)
        setattr(module, constant, before * factor)
        try:
            yield
        finally:
            setattr(module, constant, before)
        return
    prior = PhysicsPrior()
    other = replace(prior, **{f: getattr(prior, f) * factor for f in PRIORS.get(name, ())})
    original: Callable[[], PhysicsPrior] = combined.PhysicsPrior
    combined.PhysicsPrior = lambda: other  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        combined.PhysicsPrior = original  # type: ignore[misc, assignment]


def judged(table: ThroughputTable) -> float:
    """Median error over both designs, in per cent."""
    fit = combined.fit_combined
    found = [evaluate(table, {"combined": fit}, fit, Plan(6, design)) for design in DESIGNS]
    return 100 * float(np.mean([score(f.predictions["combined", 6]).median_error for f in found]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    tables = {path.stem: covered(load_table(path), 0.5)[0] for path in asked.tables}
    changes = [("as it is", 1.0)] + [(n, f) for n in (*PRIORS, *MODULE_CONSTANTS) for f in (0.5, 2.0)]
    errors: dict[str, dict[str, float]] = {}
    for name, factor in changes:
        label = name if factor == 1.0 else f"{name} x {factor:g}"
        with changed(name, factor):
            errors[label] = {t: judged(table) for t, table in tables.items()}
        print(f"{label:32s} " + "  ".join(f"{t} {e:5.2f}" for t, e in errors[label].items()), file=sys.stderr)
    base = errors["as it is"]
    transfer = {}
    for t in tables:
        others = [o for o in tables if o != t]
        if others:
            best = min(errors, key=lambda label: np.mean([errors[label][o] / base[o] for o in others]))
            transfer[t] = {"chosen elsewhere": best, "error": errors[best][t], "as it is": base[t]}
    if asked.json:
        print(json.dumps({"median_error_percent": errors, "transfer": transfer}, indent=1))
        return
    for label, found in errors.items():
        print(f"{label:32s} " + "  ".join(f"{t} {e:5.2f}" for t, e in found.items()))
    for t, row in transfer.items():
        print(
            f"{t}: best elsewhere is {row['chosen elsewhere']}: {row['error']:.2f} here, {row['as it is']:.2f} as it is"
        )


if __name__ == "__main__":
    main()
