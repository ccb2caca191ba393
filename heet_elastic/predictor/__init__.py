"""Predict a job's throughput in every configuration from the few that were measured. numpy and scipy only."""

from __future__ import annotations

from heet_elastic.predictor.api import Fit
from heet_elastic.predictor.bpca import fit_bpca
from heet_elastic.predictor.combined import fit_combined, fit_physics
from heet_elastic.predictor.factors import fit_svd_fold_in, fit_svd_log, fit_svd_raw
from heet_elastic.predictor.loglines import fit_loglines
from heet_elastic.predictor.reuse import fit_nearest

METHODS: dict[str, Fit] = {
    "combined": fit_combined,
    "physics": fit_physics,
    "line": fit_loglines,
    "nearest": fit_nearest,
    "svd-raw": fit_svd_raw,
    "svd-log": fit_svd_log,
    "svd-fold-in": fit_svd_fold_in,
    "bpca": fit_bpca,
}
"""Every method by its name; all take a history (possibly empty) and return a Predictor.

combined: similar past jobs, physics and line, weighted by evidence. physics: the compute + communication model with
its residual process. line: a log-log line per host type. nearest: the nearest past job's row, scaled. svd-*: Funk SVD
on raw or log values, joining the table or folded in. bpca: Bayesian principal components.
"""

DEFAULT = "combined"
"""The method that is used unless another is asked for."""

__all__ = ["DEFAULT", "METHODS"]
