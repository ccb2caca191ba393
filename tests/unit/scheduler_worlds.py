"""Hand-built scheduling problems: a table of speeds, some hosts, and everything else ordinary unless given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heet_elastic.scheduler.api import Choice, Placed, Policy, Problem
from heet_elastic.scheduler.placement import place
from heet_elastic.scheduler.policies import POLICIES

NOTHING: tuple[Placed, ...] = ((),)
"""What one job has that has nothing."""


def problem(table: Any, hosts: Sequence[tuple[int, int]], spread: Any = None, **given: Any) -> Problem:
    """table[j][h][w-1] = dense speed; hosts = (host type, GPUs) of each; `spread`: a factor or a table of its own.

    Arrays over jobs may be given as one value for all. Names are `a`, `b`, ... for jobs and `A`, `B`, ... for types.
    """
    dense = np.asarray(table, dtype=float)
    jobs, types, most = dense.shape
    with np.errstate(over="ignore", invalid="ignore"):
        sparse = dense if spread is None else dense * spread if np.isscalar(spread) else np.asarray(spread, dtype=float)
    current = tuple(given.pop("current", ((),) * jobs))
    values: dict[str, Any] = {
        "log_std_JHW": None,
        "remaining_J": 1000.0,
        "min_J": 1,
        "max_J": most,
        "allowed_JW": np.ones((jobs, most), dtype=bool),
        "limit_JG": None,
        "per_host_J": 0,
        "min_hosts_J": 1,
        "max_hosts_J": len(hosts),
        "requested_J": 1,
        "priority_J": 1.0,
        "age_s_J": 0.0,
        "waited_s_J": 0.0,
        "received_s_JH": np.zeros((jobs, types)),
        "since_rescale_s_J": np.inf,
        "rescale_up_s_J": 0.0,
        "rescale_down_s_J": 0.0,
        "rescales_J": 0,
        "frozen_J": False,
    }
    unknown = set(given) - set(values) - {"jobs", "host_types", "groups"}
    assert not unknown, unknown
    values |= given
    whole = {"min_J", "max_J", "per_host_J", "min_hosts_J", "max_hosts_J", "requested_J", "rescales_J"}
    for name, value in values.items():
        if name.endswith("_J"):
            kind: Any = bool if name == "frozen_J" else int if name in whole else float
            values[name] = np.broadcast_to(np.asarray(value, dtype=kind), (jobs,)).copy()
        elif isinstance(value, list):
            values[name] = np.asarray(value)
    return Problem(
        **{
            "jobs": tuple(chr(ord("a") + j) for j in range(jobs)),
            "host_types": tuple(chr(ord("A") + h) for h in range(types)),
            "groups": tuple(f"host-{g}" for g in range(len(hosts))),
            "group_type_G": np.array([h for h, _ in hosts], dtype=np.int64),
            "group_gpus_G": np.array([n for _, n in hosts], dtype=np.int64),
            "throughput_JHWS": np.stack([dense, sparse], axis=-1),
            "current": current,
            **values,
        }
    )


def chosen(policy: str | Policy, asked: Problem) -> list[tuple[str, int]]:
    """What a policy chose, as (host type, workers) per job; ("", 0) = nothing."""
    made = POLICIES[policy]() if isinstance(policy, str) else policy
    choice = made.choose(asked, np.random.default_rng(0))
    return shown(asked, choice)


def shown(asked: Problem, choice: Choice) -> list[tuple[str, int]]:
    """A Choice as (host type, workers) per job."""
    pairs = zip(choice.type_J.tolist(), choice.workers_J.tolist(), strict=True)
    return [(asked.host_types[h], w) if w else ("", 0) for h, w in pairs]


def decided(policy: str | Policy, asked: Problem) -> tuple[Placed, ...]:
    """Where jobs run under a policy."""
    made = POLICIES[policy]() if isinstance(policy, str) else policy
    return place(asked, made.choose(asked, np.random.default_rng(0)))


def then(asked: Problem, placed: tuple[Placed, ...], **changed: Any) -> Problem:
    """The problem with `placed` in force."""
    return replace(asked, current=placed, **changed)
