"""Equal chunks of GPUs (docs/scheduling.md), the counts with which jobs enter them, and jobs that need more than one.

chunk = 2^floor(log2(max(1, G / N)))  for G GPUs and N jobs, at most the GPUs of a host of the type

It shrinks at once, or somebody would find no chunk; it grows beyond what jobs have only when G / N is half-way (by
ratio) to the next size, so that a number of jobs or GPUs that goes up and down does not resize everybody each time.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray, Problem
from heet_elastic.scheduler.options import Options, some


def chunk_sizes_H(problem: Problem, options: Options, chunk: int | None) -> IntArray:
    """GPUs of a chunk of each type; `chunk` instead of the adaptive size where it is given."""
    if chunk is None:
        jobs = max(int(np.count_nonzero(options.speed_JHW.any(axis=(1, 2)))), 1)
        chunk = adaptive_chunk(float(options.gpus_H.sum()) / jobs, options.current_J[options.running_J])
    largest = np.ones(len(problem.host_types), dtype=np.int64)
    np.maximum.at(largest, problem.group_type_G, problem.group_gpus_G)
    return np.minimum(chunk, largest)


def adaptive_chunk(share: float, held: IntArray) -> int:
    """The chunk for `share` GPUs a job, where running jobs hold `held`."""
    octave = int(np.floor(np.log2(max(1.0, share))))
    if len(held) and octave > 0 and np.median(held) < 2**octave and share < 2 ** (octave + 0.5):
        octave -= 1
    return int(2**octave)


def entry_counts_JH(options: Options, chunk_H: IntArray) -> IntArray:
    """Workers with which a job enters a type: the fastest possible count within a chunk, else the least; 0 = none."""
    speed = options.speed_JHW
    within = speed[:, :, : int(chunk_H.max(initial=1))]
    if (chunk_H < within.shape[2]).any():
        within = within * (np.arange(1, within.shape[2] + 1) <= chunk_H[:, None])
    if not within.size:
        return np.zeros(speed.shape[:2], dtype=np.int64)
    fastest = np.where(within.max(axis=2) > 0, within.argmax(axis=2) + 1, 0)
    if (fastest > 0).all():
        return fastest
    possible = speed > 0
    least = np.where(possible.any(axis=2), possible.argmax(axis=2) + 1, 0)
    return np.where(fastest > 0, fastest, least)


def seat_big_jobs(
    price_JH: FloatArray, entry_JH: IntArray, chunk_H: IntArray, free_H: IntArray, type_J: IntArray, workers_J: IntArray
) -> None:
    """Give jobs that need more than one chunk their least count; free_H, type_J and workers_J change in place.

    They take turns with the others in order of price: each job reserves what it enters with until all GPUs are
    reserved, so a big job is seated iff it is its turn and one type still has that many free.
    """
    possible = np.isfinite(price_JH)
    big = some(possible, 1) & ~some(possible & (entry_JH <= chunk_H), 1)
    if not big.any():
        return
    best = price_JH.min(axis=1, initial=np.inf)
    order = np.argsort(best, kind="stable")
    order = order[np.isfinite(best[order])]
    least = np.where(possible, entry_JH, np.iinfo(np.int64).max).min(axis=1)[order]
    turn = np.cumsum(least) <= int(free_H.sum())
    for j in order[turn & big[order]]:
        for h in np.argsort(price_JH[j], kind="stable"):
            if possible[j, h] and entry_JH[j, h] <= free_H[h]:
                type_J[j], workers_J[j] = h, entry_JH[j, h]
                free_H[h] -= workers_J[j]
                break
