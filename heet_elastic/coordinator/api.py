"""What `decide` takes and returns: a world of values in; actions for the thin loop, a reason for every job, and what to
remember out.

    decide(now, world, policy, settings, rng) -> Decision

The live coordinator and the simulator are two callers of the same `decide`. Both keep a `Table` up to date with
`decide.table.refresh`, hand over the newest snapshot, and pass `Decision.memory` into the next `World`. A new leader
starts with an empty `Memory`: everything that matters is derived from the store again, fences restart in full.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heet_elastic.model import (
    Account,
    Allocation,
    Cell,
    Configuration,
    JobFeatures,
    JobStatus,
    Profile,
    Result,
    Snapshot,
    Wanted,
)
from heet_elastic.predictor.api import Predictor

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Allocate:
    """Write the next round of a job; compares the allocation's mod_revision, the absence of `frozen`, the leader."""

    job: str
    allocation: Allocation
    expected_revision: int  # mod_revision of the allocation that was seen; 0 = none


@dataclass(frozen=True, slots=True)
class Want:
    """Ask a host's heet-agent for a torchrun of this job."""

    job: str
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Unwant:
    """Take that request back."""

    job: str
    host: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """The coordinator's last word on a job, for people."""

    job: str
    status: JobStatus


@dataclass(frozen=True, slots=True)
class SetAccount:
    """Durations of a job that outlive a coordinator."""

    job: str
    account: Account


@dataclass(frozen=True, slots=True)
class SetResult:
    """End a job (cancelled, or all unfinished members lost): create-if-absent."""

    job: str
    result: Result


@dataclass(frozen=True, slots=True)
class SetProfile:
    """Remember a job's row for the predictor."""

    name: str
    profile: Profile


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove every key of a job whose retention has ended."""

    job: str


@dataclass(frozen=True, slots=True)
class DropClaims:
    """Remove a host's claims of self-formed rounds: a coordinator leads now."""

    host: str


Action = Allocate | Want | Unwant | SetStatus | SetAccount | SetResult | SetProfile | Forget | DropClaims


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of every row: host types, worker counts 1..workers, dense or spread.

    per_host_H: GPUs of the largest host of each type; w workers are dense on ceil(w / per_host) hosts and spread on one
    host more (on w hosts at most).
    """

    host_types: tuple[str, ...] = ()
    workers: int = 0
    per_host_H: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One job's predictions and progress.

    throughput_HWS: work units/s, 0 = closed to the job. log_std_HW: standard deviation of ln(throughput), dense.
    source_HWS: a `predictor.api.Source` each. cells: what was measured. done: work units done; total: None = unknown.
    picture grows whenever a measurement says something new: a new cell, or one that moved by more than 20 % from what
    it was at the last such time (`announced`). seen: what the row was made from, to tell whether it is still good.
    """

    throughput_HWS: FloatArray
    log_std_HW: FloatArray
    source_HWS: NDArray[np.int8]
    cells: tuple[tuple[Configuration, Cell], ...] = ()
    features: JobFeatures | None = None
    done: float = 0.0
    total: float | None = None
    picture: int = 0
    announced: tuple[tuple[Configuration, float], ...] = ()
    seen: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """The completed table: a row per live job, all on the same axes. A job without a row counts as unknown.

    predictor: the fitted method that the rows come from.
    """

    axes: Axes = Axes()
    rows: Mapping[str, Row] = field(default_factory=lambda: MappingProxyType({}))
    predictor: Predictor | None = None


@dataclass(frozen=True, slots=True)
class Spot:
    """Workers of a job on one host and host type: a target before devices and agents are named."""

    host: str
    host_type: str
    workers: int


@dataclass(frozen=True, slots=True)
class Timer:
    """Something that the coordinator waits for: since when, until when, how often it happened, and why."""

    since: float
    until: float = 0.0
    strikes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """A probe round of a job, from the decision until it is over (`decide.probes`).

    spots: where it measures `configuration`; home: where the job ran, as `home_configuration`. round: its number.
    until: when it is given up. picture: the row's when it was decided.
    """

    configuration: Configuration
    spots: tuple[Spot, ...]
    home_configuration: Configuration
    home: tuple[Spot, ...]
    round: int
    until: float
    picture: int
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A job's account as it was at `at`; `saved` = when it was last written to the store, -inf = never."""

    account: Account
    at: float
    saved: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What one leader remembers from decision to decision, on its own clock. Never stored; empty for a new leader.

    targets, prices, offered: the last choice, with each job's agents at that time; held: jobs that it had to leave
    alone because they were changed a moment ago. states: one `decide.state.JobState` a job, reused while its view is
    the same; so are layout (of the hosts) and demands. holder: which job held which device. boots: the hosts' boot ids.
    """

    now: float | None = None
    chosen_at: float | None = None
    thawed_at: float = -math.inf  # when an ended cool-down last made it ask the policy
    situation: Hashable = None
    targets: Mapping[str, tuple[Spot, ...]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    offered: Mapping[str, Hashable] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    reason: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    timers: Mapping[tuple[str, ...], Timer] = field(default_factory=dict)
    states: Mapping[str, Any] = field(default_factory=dict)
    holder: Mapping[tuple[str, str], str] = field(default_factory=dict)
    boots: Mapping[str, str] = field(default_factory=dict)
    layout: Any = None
    demands: Mapping[str, Any] = field(default_factory=dict)
    ghosts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)  # reasons of running jobs whose stored status says them
    said: Mapping[str, float] = field(default_factory=dict)  # when waiting jobs were last told their place
    trials: Mapping[str, Trial] = field(default_factory=dict)  # probe rounds under way
    probe_asked: Mapping[str, Any] = field(default_factory=dict)  # what the last answer on each job depended on
    probe_asked_at: float = -math.inf  # when it was last looked whether a probe pays


@dataclass(frozen=True, slots=True)
class World:
    """All that a decision depends on besides time, policy, settings and chance. `leader`: our UUID of this term."""

    snapshot: Snapshot
    table: Table = Table()
    memory: Memory = Memory()
    leader: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions in the order in which they must be written, and the reasons that logs, CLI and web page show."""

    actions: tuple[Action, ...]
    reason: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    wake_in_s: float = math.inf  # something becomes due by then (a cool-down, an exclusion, a fence)
    memory: Memory = Memory()
