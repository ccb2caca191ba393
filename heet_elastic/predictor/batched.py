"""Small symmetric positive definite systems, very many at once.

LAPACK is called once per matrix, which for thousands of 6 x 6 systems is mostly overhead: there the textbook Cholesky
algorithm is run over all matrices side by side instead (Golub & Van Loan, "Matrix Computations", 4.2). Few or large
systems go to LAPACK.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.predictor.api import FloatArray

MANY = 64
SMALL = 16


def solve(matrix_JNN: FloatArray, right_JN: FloatArray) -> FloatArray:
    """x with matrix x = right, for each of J systems."""
    if not _side_by_side(matrix_JNN):
        return np.asarray(np.linalg.solve(matrix_JNN, right_JN[:, :, None])[:, :, 0], dtype=np.float64)
    lower_NNJ = _cholesky(matrix_JNN)
    y_NJ = _forward(lower_NNJ, np.array(right_JN.T, order="C"))
    for n in range(len(y_NJ) - 1, -1, -1):
        y_NJ[n] -= (lower_NNJ[n + 1 :, n] * y_NJ[n + 1 :]).sum(axis=0)
        y_NJ[n] /= lower_NNJ[n, n]
    return np.ascontiguousarray(y_NJ.T)


def whitener(matrix_JNN: FloatArray) -> FloatArray:
    """L^-1 with L L' = matrix, lower triangular, for each of J systems."""
    if not _side_by_side(matrix_JNN):
        return np.asarray(np.linalg.inv(np.linalg.cholesky(matrix_JNN)), dtype=np.float64)
    lower_NNJ = _cholesky(matrix_JNN)
    size, systems = lower_NNJ.shape[0], lower_NNJ.shape[2]
    inverse_NNJ = np.zeros((size, size, systems))
    for n in range(size):
        inverse_NNJ[n, n] = 1.0
        if n:
            inverse_NNJ[n, :n] = -(lower_NNJ[n, :n, None] * inverse_NNJ[:n, :n]).sum(axis=0)
        inverse_NNJ[n, : n + 1] /= lower_NNJ[n, n]
    return np.ascontiguousarray(inverse_NNJ.transpose(2, 0, 1))


def _side_by_side(matrix_JNN: FloatArray) -> bool:
    systems, size, _ = matrix_JNN.shape
    return bool(systems >= MANY and size <= SMALL)


def _cholesky(matrix_JNN: FloatArray) -> FloatArray:
    """Lower factors, systems last. A pivot below zero by rounding counts as a tiny one."""
    lower_NNJ = np.array(matrix_JNN.transpose(1, 2, 0), order="C")  # a copy, always: it is worked on in place
    for n in range(lower_NNJ.shape[0]):
        column_MJ = lower_NNJ[n:, n]
        if n:
            column_MJ = column_MJ - (lower_NNJ[n:, :n] * lower_NNJ[n, :n]).sum(axis=1)
        lower_NNJ[n:, n] = column_MJ / np.sqrt(np.maximum(column_MJ[0], 1e-12))
    return lower_NNJ


def _forward(lower_NNJ: FloatArray, y_NJ: FloatArray) -> FloatArray:
    for n in range(len(y_NJ)):
        if n:
            y_NJ[n] -= (lower_NNJ[n, :n] * y_NJ[:n]).sum(axis=0)
        y_NJ[n] /= lower_NNJ[n, n]
    return y_NJ
