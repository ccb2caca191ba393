"""Conditioning a Gaussian over the cells of a row on the cells that were measured, for many jobs at once.

    mean = m + C[:, o] (C[o, o] + S)^-1 (y - m[o])        var = diag(C) - diag(C[:, o] (C[o, o] + S)^-1 C[o, :])

with o the measured cells of a job and S their noise (Rasmussen & Williams, "Gaussian Processes for Machine Learning",
eq. 2.25-2.26). Jobs have different cells: they are padded to the most of any, a pad being an independent unit cell.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.rows import Rows

CHUNK = 512
"""Jobs conditioned in one piece: bounds the memory, whatever the number of jobs."""


def condition(mean_JK: FloatArray, covariance_KK: FloatArray, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """(mean_JK, std_JK) given the rows. `mean_JK` may have one row for all jobs. Covariance: positive semi-definite."""
    jobs = rows.column_JN.shape[0]
    columns = covariance_KK.shape[0]
    out_mean, out_std = np.empty((jobs, columns)), np.empty((jobs, columns))
    for start in range(0, jobs, CHUNK):
        piece = slice(start, min(start + CHUNK, jobs))
        prior = mean_JK if mean_JK.shape[0] == 1 else mean_JK[piece]
        out_mean[piece], out_std[piece] = _condition_piece(prior, covariance_KK, rows, piece)
    return out_mean, out_std


def _condition_piece(
    mean_JK: FloatArray, covariance_KK: FloatArray, rows: Rows, piece: slice
) -> tuple[FloatArray, FloatArray]:
    column_JN, measured_JN = rows.column_JN[piece], rows.measured_JN[piece]
    jobs, most = column_JN.shape
    if most == 0:
        std_K = np.sqrt(np.maximum(np.diag(covariance_KK), 0.0))
        return np.broadcast_to(mean_JK, (jobs, mean_JK.shape[1])), np.broadcast_to(std_K, (jobs, std_K.size))
    at_JN = np.where(measured_JN, column_JN, 0)
    pair_JNN = measured_JN[:, :, None] & measured_JN[:, None, :]
    cov_JNN = np.where(pair_JNN, covariance_KK[at_JN[:, :, None], at_JN[:, None, :]], 0.0)
    noise_JN = np.where(measured_JN, rows.std_JN[piece] ** 2, 1.0)
    cov_JNN[:, np.arange(most), np.arange(most)] += noise_JN
    cross_JNK = covariance_KK[at_JN] * measured_JN[:, :, None]
    prior_JN = np.take_along_axis(np.broadcast_to(mean_JK, (jobs, mean_JK.shape[1])), at_JN, axis=1)
    residual_JN = np.where(measured_JN, rows.log_JN[piece] - prior_JN, 0.0)
    lower_JNN = np.linalg.inv(np.linalg.cholesky(cov_JNN))
    half_JNK = lower_JNN @ cross_JNK
    gain_JK = (half_JNK * (lower_JNN @ residual_JN[:, :, None])).sum(axis=1)
    variance_JK = np.diag(covariance_KK) - (half_JNK**2).sum(axis=1)
    return mean_JK + gain_JK, np.sqrt(np.maximum(variance_JK, 1e-12))
