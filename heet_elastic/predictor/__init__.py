"""Predict a job's throughput in every configuration from the few that were measured. numpy and scipy only."""

from __future__ import annotations

from heet_elastic.predictor.api import Fit
from heet_elastic.predictor.combined import fit_combined, fit_physics
from heet_elastic.predictor.loglines import fit_loglines
from heet_elastic.predictor.reuse import fit_nearest

METHODS: dict[str, Fit] = {
    "combined": fit_combined,
    "compute + communication": fit_physics,
    "log-log line": fit_loglines,
    "nearest past job": fit_nearest,
}
"""Every method by its name; all take a history (possibly empty) and return a Predictor."""

DEFAULT = "combined"
"""The method that is used unless another is asked for."""

__all__ = ["DEFAULT", "METHODS"]
