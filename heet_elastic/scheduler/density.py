"""How dense a job can be: the fewest hosts for a worker count, and those for which the DENSE column stands.

DENSE is the throughput on ceil(w / GPUs of the type's largest host) hosts. A job that may use fewer GPUs of a host,
must be on several hosts, or finds smaller hosts only, needs more of them: its throughput is that of SPREAD.
"""

from __future__ import annotations

import numpy as np

from heet_elastic.scheduler.api import DENSE, SPREAD, FloatArray, IntArray, Problem


def table_hosts_HW(problem: Problem) -> IntArray:
    """Hosts for which the DENSE column stands, by host type and worker count."""
    largest = np.ones(len(problem.host_types), dtype=np.int64)
    np.maximum.at(largest, problem.group_type_G, problem.group_gpus_G)
    counts = np.arange(1, problem.throughput_JHWS.shape[2] + 1)
    hosts: IntArray = -(-counts // largest[:, None])
    return hosts


def fewest_hosts_JHW(problem: Problem, rows_J: IntArray) -> IntArray:
    """The least hosts of each type that hold 1..W workers of the jobs `rows_J`; more than there are = too few.

    Other jobs' GPUs count as free: this is what a job could have at best.
    """
    types, most = len(problem.host_types), problem.throughput_JHWS.shape[2]
    counts, jobs = np.arange(1, most + 1), len(rows_J)
    fewest = np.empty((jobs, types, most), dtype=np.int64)
    for h in range(types):
        groups = np.flatnonzero(problem.group_type_G == h)
        room = np.broadcast_to(problem.group_gpus_G[groups], (jobs, len(groups)))
        if problem.limit_JG is not None:
            room = np.minimum(room, problem.limit_JG[np.ix_(rows_J, groups)])
        together = np.cumsum(-np.sort(-np.maximum(room, 0), axis=1), axis=1)
        # One search for all jobs: each job's sums are lifted above those of the jobs before it.
        lift = (max(int(together.max(initial=0)), most) + 1) * np.arange(jobs)[:, None]
        at = np.searchsorted((together + lift).ravel(), (counts + lift).ravel(), side="left").reshape(jobs, most)
        fewest[:, h] = at - len(groups) * np.arange(jobs)[:, None] + 1
    each = problem.per_host_J[rows_J]
    whole = -(-counts // np.maximum(each, 1)[:, None])
    fewest = np.where((each > 0)[:, None, None], whole[:, None, :], fewest)
    return np.maximum(fewest, problem.min_hosts_J[rows_J][:, None, None])


def densest_speed_JHW(problem: Problem) -> FloatArray:
    """Throughput of every configuration on the fewest hosts that the job can have there."""
    dense: FloatArray = problem.throughput_JHWS[..., DENSE]
    jobs = len(problem.jobs)
    usual = (problem.per_host_J == 0) & (problem.min_hosts_J <= 1)
    stands = table_hosts_HW(problem)
    if problem.limit_JG is None:
        # Jobs without wishes of their own are all alike: one of them tells where hosts are too small.
        alike = np.flatnonzero(usual)
        if len(alike):
            small = fewest_hosts_JHW(problem, alike[:1])[0] > stands
            if small.any():
                rows = np.ix_(alike, *(np.arange(n) for n in dense.shape[1:]))
                dense = dense.copy()
                dense[rows] = np.where(small, problem.throughput_JHWS[..., SPREAD][rows], dense[rows])
        rows_J = np.flatnonzero(~usual)
    else:
        rows_J = np.arange(jobs)
    if len(rows_J):
        more = fewest_hosts_JHW(problem, rows_J) > stands
        if more.any():
            dense = dense.copy()
            dense[rows_J] = np.where(more, problem.throughput_JHWS[rows_J, :, :, SPREAD], dense[rows_J])
    return dense
