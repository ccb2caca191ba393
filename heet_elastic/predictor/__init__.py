"""Predict a job's throughput in every configuration from the few that were measured. numpy and scipy only."""

from __future__ import annotations

from heet_elastic.predictor.api import Fit
from heet_elastic.predictor.loglines import fit_loglines

METHODS: dict[str, Fit] = {"log-log line": fit_loglines}
"""Every method by its name; all take a history (possibly empty) and return a Predictor."""

DEFAULT = "log-log line"
"""The method that is used unless another is asked for."""

__all__ = ["DEFAULT", "METHODS"]
