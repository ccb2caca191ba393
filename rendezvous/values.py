"""The values of the rendezvous protocol: what the store says, what this process knows, what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from heet_elastic.model import (
    AgentRecord,
    Allocation,
    Claims,
    Done,
    Epoch,
    Failure,
    Frozen,
    Host,
    JobSpec,
    JobView,
    Result,
    Versioned,
)


@dataclass(frozen=True, slots=True)
class ProtocolSettings:
    """Times of the protocol, in seconds; docs/assumptions.md says which must exceed which."""

    ttl_s: float = 10.0
    acknowledge_s: float = 10.0  # a member that stopped its old workers and does not acknowledge is left out after it
    stop_limit_s: float = 65.0  # a member that has not stopped its old workers by then is left out
    sigterm_pause_s: float = 1.0  # how long the death of a worker by a foreign SIGTERM waits for its agent's `leaving`
    stagger_s: float = 0.3  # the member of rank k writes a verdict after k times this; the first write wins
    self_formed: bool = True
    join_window_s: float = 1.0  # self-formed rounds wait this long after the last arrival ...
    join_window_most_s: float = 2.0  # ... and at most this long in all; never for nobody
    fence_s: float = 0.0  # a cut-off agent stops its own workers after this; 0 = never
    flap_window_s: float = 60.0  # a host lost within this time of joining is left alone for as long (doubling)


class WorkerState(Enum):
    """What this agent's workers are doing."""

    NONE = "none"
    RUNNING = "running"
    FAILED = "failed"
    SUCCEEDED = "succeeded"


@dataclass(frozen=True, slots=True)
class World:
    """What the store says about this job, as last seen. `connected_since` is local monotonic time."""

    job: JobView
    epoch: Epoch | None = None
    led: bool = False  # somebody leads now
    hosts: Mapping[str, Host] = field(default_factory=dict)  # only needed (and filled) where no coordinator ever led
    claims: Mapping[str, Versioned[Claims]] = field(default_factory=dict)
    connected: bool = True
    connected_since: float = 0.0
    silent_s: float = 0.0  # since contact was lost
    generation: int = 0  # grows when the store behind the address became another one


@dataclass(frozen=True, slots=True)
class Local:
    """What this process knows of itself. `asked` is the job as this agent's command line describes it.

    formed: the newest round that this agent's handler returned to torch. clean: see AgentRecord. asking: the agent is
    inside next_rendezvous. first_exit: a worker of the current round ended with 0. unacknowledged: at rank 0, agents
    that have not acknowledged the round that is forming.
    """

    agent: str
    host: str
    address: str
    pid: int
    asked: JobSpec
    most_workers: int
    max_restarts: int
    workers: WorkerState = WorkerState.NONE
    workers_round: int = 0
    formed: int = 0
    clean: int = 0
    asking: bool = False
    leaving: bool = False
    first_exit: bool = False
    failure: Failure | None = None
    died_of_sigterm: bool = False
    busy: tuple[str, ...] = ()
    busy_holder: str = ""
    busy_round: int = 0
    unacknowledged: tuple[str, ...] = ()
    unacknowledged_round: int = 0


@dataclass(frozen=True, slots=True)
class PutRecord:
    """Put this agent's own record under its lease."""

    record: AgentRecord


@dataclass(frozen=True, slots=True)
class CreateSpec:
    """Create the job's spec if absent."""

    spec: JobSpec


@dataclass(frozen=True, slots=True)
class ReplaceJob:
    """Begin a new run under this id: remove what the ended (or dead) run left, iff spec and result are as seen."""

    spec: JobSpec
    expected_spec_revision: int
    expected_result_revision: int


@dataclass(frozen=True, slots=True)
class WriteRound:
    """Write the next round by compare-and-set on the allocation.

    `unless_led`: also compares the absence of `epoch` (self-formed rounds); `claims` are written with it, each compared
    with the revision that was seen.
    """

    allocation: Allocation
    expected_revision: int
    unless_led: bool = False
    claims: tuple[tuple[Claims, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WriteFailure:
    """Report this agent's own failure, together with its record."""

    failure: Failure
    record: AgentRecord


@dataclass(frozen=True, slots=True)
class WriteFrozen:
    """Freeze the job: no plan from now on."""

    frozen: Frozen


@dataclass(frozen=True, slots=True)
class WriteDone:
    """This agent's workers all ended with 0; together with its record."""

    done: Done
    record: AgentRecord


@dataclass(frozen=True, slots=True)
class WriteResult:
    """End the job iff it has no result and its allocation is as seen."""

    result: Result
    expected_revision: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Put back what an emptied or older store lost: None = that part is there. Iff spec and allocation are as seen."""

    epoch: Epoch | None
    spec: JobSpec | None
    allocation: Allocation | None
    expected_spec_revision: int
    expected_revision: int


Action = (
    PutRecord | CreateSpec | ReplaceJob | WriteRound | WriteFailure | WriteFrozen | WriteDone | WriteResult | Restore
)


class Order(Enum):
    """What the thread that torch runs is to do."""

    KEEP = "keep"  # workers run on (or torch is busy): nothing
    IDLE = "idle"  # wait inside next_rendezvous
    FORM = "form"  # form round `allocation`
    RESCALE = "rescale"  # stop the workers and come to next_rendezvous
    FINISH = "finish"  # the job has a result
    REFUSE = "refuse"  # this agent may not take part


@dataclass(frozen=True, slots=True)
class Target:
    """The order with what it is about. `reason` is a sentence for people."""

    order: Order
    reason: str = ""
    allocation: Allocation | None = None
    result: Result | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What the protocol remembers between steps. `since` holds when a condition was first seen (local time)."""

    since: Mapping[str, float] = field(default_factory=dict)
    spec: JobSpec | None = None  # adopted: this agent belongs to that incarnation
    epoch: Epoch | None = None
    allocation: Allocation | None = None  # newest seen of that incarnation
    member_once: bool = False
    generation: int = 0  # of the store in which this incarnation was last seen
    flaps: Mapping[str, tuple[int, float]] = field(default_factory=dict)  # host -> (losses soon after joining, last)
    joined: Mapping[str, float] = field(default_factory=dict)  # agent -> when it was first seen in a round
    over: int = 0  # no round before this one can run in full any more (copies)


@dataclass(frozen=True, slots=True)
class Step:
    """Outcome of one step of the protocol."""

    memory: Memory
    target: Target
    actions: tuple[Action, ...] = ()


class Timers:
    """First-seen times of the conditions of one step; a condition that is not asked about again is forgotten."""

    def __init__(self, now: float, since: Mapping[str, float]) -> None:
        self.now = now
        self._before = since
        self.since: dict[str, float] = {}

    def age(self, condition: str) -> float:
        """Seconds since `condition` was first asked about without a step in between that did not ask."""
        start = self.since.setdefault(condition, self._before.get(condition, self.now))
        return self.now - start
