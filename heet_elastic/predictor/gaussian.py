"""Conditioning a Gaussian over the cells of a row on the cells that were measured, for many jobs at once.

    mean = m + C[:, o] (C[o, o] + S)^-1 (y - m[o])        covariance = C - C[:, o] (C[o, o] + S)^-1 C[o, :]

with o the measured cells of a job and S their noise (Rasmussen & Williams, "Gaussian Processes for Machine Learning",
eq. 2.25-2.26). Jobs have different cells: they are padded to the most of any, a pad being an independent unit cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heet_elastic.predictor.api import FloatArray
from heet_elastic.predictor.batched import whitener
from heet_elastic.predictor.rows import Rows

CHUNK = 1024
"""Jobs conditioned in one piece: bounds the memory, whatever the number of jobs."""


@dataclass(frozen=True)
class Conditioned:
    """Mean and standard deviation of ln T; ln of the density of the measured cells, up to a constant for each cell."""

    mean_JK: FloatArray
    std_JK: FloatArray
    log_evidence_J: FloatArray


def condition(mean_K: FloatArray, covariance_KK: FloatArray, rows: Rows) -> Conditioned:
    """The Gaussian (mean, positive semi-definite covariance) given the rows."""
    jobs, columns = rows.column_JN.shape[0], covariance_KK.shape[0]
    mean_JK, std_JK, evidence_J = np.empty((jobs, columns)), np.empty((jobs, columns)), np.empty(jobs)
    for start in range(0, jobs, CHUNK):
        piece = slice(start, start + CHUNK)
        part = rows.take(np.arange(jobs)[piece])
        whiten_JNN, half_JNK = _halves(covariance_KK, part)
        at_JN = part.at_JN
        white_JN = (whiten_JNN @ np.where(part.measured_JN, part.log_JN - mean_K[at_JN], 0.0)[:, :, None])[:, :, 0]
        mean_JK[piece] = mean_K + (white_JN[:, None, :] @ half_JNK)[:, 0, :]
        variance_JK = np.diag(covariance_KK) - np.einsum("jnk,jnk->jk", half_JNK, half_JNK)
        std_JK[piece] = np.sqrt(np.maximum(variance_JK, 1e-12))
        diagonal_JN = np.diagonal(whiten_JNN, axis1=1, axis2=2)
        evidence_J[piece] = np.log(diagonal_JN).sum(axis=1) - 0.5 * (white_JN**2).sum(axis=1)
    return Conditioned(mean_JK, std_JK, evidence_J)


def conditioned_covariance(covariance_KK: FloatArray, rows: Rows) -> FloatArray:
    """Covariance given the rows (J x K x K)."""
    _, half_JNK = _halves(covariance_KK, rows)
    out: FloatArray = covariance_KK - half_JNK.transpose(0, 2, 1) @ half_JNK
    return out


def _halves(covariance_KK: FloatArray, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """(L^-1, L^-1 C[o, :]) with L L' = C[o, o] + S."""
    measured_JN, at_JN = rows.measured_JN, rows.at_JN
    cov_JNN = covariance_KK[at_JN[:, :, None], at_JN[:, None, :]] * rows.pair_JNN
    diagonal = np.arange(at_JN.shape[1])
    cov_JNN[:, diagonal, diagonal] += np.where(measured_JN, rows.std_JN**2, 1.0)
    whiten_JNN = whitener(cov_JNN)
    return whiten_JNN, whiten_JNN @ (covariance_KK[at_JN] * measured_JN[:, :, None])
