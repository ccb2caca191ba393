"""What `decide` returns: actions for the thin loop to apply, each fenced, and a reason for every job.

    decide(now, snapshot, policy, settings, rng) -> Decision
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heet_elastic.model import Account, Allocation, JobStatus, Profile, Result, Wanted


@dataclass(frozen=True, slots=True)
class Allocate:
    """Write the next round of a job; compares the allocation's mod_revision, the absence of `frozen`, and the leader."""

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


Action = Allocate | Want | Unwant | SetStatus | SetAccount | SetResult | SetProfile | Forget


@dataclass(frozen=True, slots=True)
class Decision:
    """Actions in the order in which they must be written, and the reasons that logs, `heet explain` and the page show."""

    actions: tuple[Action, ...]
    reason: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    wake_in_s: float | None = None  # something becomes due by then (a cool-down, an exclusion, a fence)
