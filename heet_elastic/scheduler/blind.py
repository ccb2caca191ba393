"""What policies that do not know host types need: one curve per job over worker counts, and types for their counts."""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import Choice, FloatArray, IntArray
from heet_elastic.scheduler.options import Options


def mean_curve_JW(options: Options) -> FloatArray:
    """Throughput of each job by worker count, averaged over the host types where it is possible (0 = on none)."""
    possible = options.speed_JHW > 0
    mean: FloatArray = options.speed_JHW.sum(axis=1) / np.maximum(possible.sum(axis=1), 1)
    return mean


def assign_types(options: Options, workers_J: IntArray, order: IntArray, price_J: FloatArray, note: str) -> Choice:
    """Put each job's count on a host type: where it runs already if that fits, else the emptiest type that holds it.

    Jobs come in `order`. A count that fits on no type is cut to the largest possible one that does (or to nothing).
    """
    jobs = len(workers_J)
    type_J, given_J = np.full(jobs, -1), np.zeros(jobs, dtype=np.int64)
    free = options.gpus_H.copy()
    stays = options.running_J & (workers_J > 0)
    for j in (*(i for i in order if stays[i]), *(i for i in order if not stays[i])):
        wanted = int(workers_J[j])
        if wanted == 0:
            continue
        counts = np.arange(1, wanted + 1)
        fits = (options.speed_JHW[j, :, :wanted] > 0) & (counts <= free[:, None])
        most = np.where(fits.any(axis=1), wanted - fits[:, ::-1].argmax(axis=1), 0)
        if not most.any():
            continue
        now = int(options.current_type_J[j])
        best = int(most.max())
        h = now if now >= 0 and most[now] == best else int(np.where(most == best, free, -1).argmax())
        type_J[j], given_J[j] = h, best
        free[h] -= best
    return options.choice(type_J, given_J, price_J, note)
