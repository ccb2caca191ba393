"""Which cells of a job to measure: a fixed design, or one cell after another where that says most.

standard   one worker of each host type, then its largest count; of the placements of that count the one over most
           hosts, because one worker says nothing of any link and inside a host says little of the network; then, with
           cells to spare, whatever is farthest from what was measured.
chosen     the cell that is expected to take most variance away, of ln T and of ln efficiency over all configurations
           (A-optimal design; the price of a job is made of both):

               gain(c) = sum_k [cov(k, c)^2 + cov(e_k, c)^2] / (var(c) + noise),    e_k = ln T_k - ln T_k(one worker)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heet_elastic.model import Configuration
from heet_elastic.predictor.api import Covarying, FloatArray, Observations, Predictor
from heet_elastic.predictor.rows import NOISE, BoolArray

ACROSS = 0.5
"""Inside a host and across hosts are this far apart, in the unit of ln w, when a design is filled up."""


def standard(configurations: Sequence[Configuration], possible_K: BoolArray, probes: int) -> list[int]:
    """The first `probes` columns of the standard design, of those that are possible for the job."""
    columns = [int(k) for k in np.flatnonzero(possible_K)]
    by_type: dict[str, list[int]] = {}
    for k in columns:
        by_type.setdefault(configurations[k].host_type, []).append(k)
    ordered = [sorted(by_type[h], key=lambda k: _size(configurations[k])) for h in sorted(by_type)]
    ends = [group[0] for group in ordered] + [group[-1] for group in ordered if len(group) > 1]
    return _filled(configurations, columns, ends, probes)


def _size(c: Configuration) -> tuple[int, int]:
    return c.workers, c.hosts


def _filled(
    configurations: Sequence[Configuration], columns: Sequence[int], chosen: Sequence[int], probes: int
) -> list[int]:
    """`chosen`, then farthest first."""
    out = list(chosen[:probes])
    rest = [k for k in columns if k not in set(out)]
    while rest and len(out) < probes:
        far = max(rest, key=lambda k: min((_apart(configurations[k], configurations[o]) for o in out), default=0.0))
        out.append(far)
        rest.remove(far)
    return out


def _apart(a: Configuration, b: Configuration) -> float:
    if a.host_type != b.host_type:
        return np.inf
    return abs(float(np.log(a.workers / b.workers))) + ACROSS * ((a.hosts > 1) != (b.hosts > 1))


def gains(
    covariance_JKK: FloatArray, configurations: Sequence[Configuration], wanted_JK: BoolArray | None = None
) -> FloatArray:
    """Expected fall in summed variance if a column were measured (J x K); `wanted_JK`: the columns that matter."""
    variance_JK = np.diagonal(covariance_JKK, axis1=1, axis2=2)
    matters_JK = np.ones(variance_JK.shape, dtype=bool) if wanted_JK is None else wanted_JK
    single = {c.host_type: k for k, c in enumerate(configurations) if c.workers == 1}
    single_K = np.array([single.get(c.host_type, -1) for c in configurations])
    many_K = np.array([c.workers > 1 for c in configurations]) & (single_K >= 0)
    efficiency_JKK = covariance_JKK - covariance_JKK[:, single_K]
    fall_JK = np.einsum("jkc,jk->jc", covariance_JKK**2, matters_JK.astype(np.float64))
    fall_JK += np.einsum("jkc,jk->jc", efficiency_JKK**2, (matters_JK & many_K).astype(np.float64))
    out: FloatArray = fall_JK / (np.maximum(variance_JK, 0.0) + NOISE**2)
    return out


def predictor_gains(
    predictor: Predictor,
    jobs: Sequence[Observations],
    configurations: Sequence[Configuration],
    wanted_JK: BoolArray | None = None,
) -> FloatArray:
    """`gains` of a predictor; one that knows no covariance gains what it is unsure of in the cell itself."""
    if isinstance(predictor, Covarying):
        return gains(predictor.covariance(jobs, configurations), configurations, wanted_JK)
    out: FloatArray = predictor.predict(jobs, configurations).log_std_JK ** 2
    return out
