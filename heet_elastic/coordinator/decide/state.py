"""One job as the deciding code sees it: its JobView condensed, once per view, reused while that is the same.

Invariant: everything here follows from the JobView alone, so equal views give equal states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from heet_elastic.coordinator.api import Spot
from heet_elastic.model import (
    Account,
    AgentRecord,
    AgentState,
    Allocation,
    Control,
    JobSpec,
    JobView,
    Member,
    Result,
)

RUN = Control()
_OUT = frozenset({AgentState.LEAVING, AgentState.SUCCEEDED})
_STARTED = frozenset({AgentState.RUNNING, AgentState.SUCCEEDED, AgentState.FAILED})
_BEGUN = _STARTED | {AgentState.LEAVING}
_IDLE = frozenset({AgentState.WAITING, AgentState.SUCCEEDED})


@dataclass(frozen=True, slots=True)
class Offer:
    """A live agent that may get workers: it waits or is a member, and is neither leaving nor done."""

    agent: str
    host: str
    most_workers: int


@dataclass(frozen=True, slots=True)
class JobState:
    """What the store says of one job.

    allocation: the newest round of this incarnation; revision: mod_revision of its key (0 = none), to compare with.
    released: hosts that a person declared dead since the newest round was written (what was said earlier is void).
    here, gone: members of the allocation with and without a live record (leaving and done ones are in neither).
    dirty: agents that may still hold devices of rounds below the allocation's; unsure: those of which the store does
    not say which ones. verdict: members are agreeing on a failure. restoring: an agent is in a round that the store
    does not know (it was emptied), which its agents will write again. shape: what a policy's choice depends on.
    """

    view: JobView
    job: str
    spec: JobSpec | None
    control: Control
    released: frozenset[str]
    account: Account | None
    allocation: Allocation | None
    revision: int
    next_round: int
    result: Result | None
    frozen: bool
    verdict: bool
    restoring: bool
    offers: tuple[Offer, ...]
    here: tuple[Member, ...]
    gone: tuple[Member, ...]
    dirty: tuple[Member, ...]
    unsure: tuple[AgentRecord, ...]
    one_a_host: bool  # no two offers are on one host
    agents: int  # live records, whatever their state
    shape: tuple[object, ...]
    complete: bool  # every member runs the newest round
    begun: bool  # a member has started workers in it, so it was complete
    spots: tuple[Spot, ...] | None  # the newest round as a target would say it; None = it spans host types

    @property
    def live(self) -> bool:
        """Whether the job can still be given something."""
        return self.spec is not None and self.result is None

    @property
    def paused(self) -> bool:
        """Whether a person paused it."""
        return self.control.action == "pause"

    @property
    def fixed(self) -> bool:
        """Whether no plan may touch it: it finishes, or its members must say first which round it is in."""
        return self.frozen or self.verdict or self.restoring

    @property
    def members(self) -> tuple[Member, ...]:
        """Members of the newest round."""
        return () if self.allocation is None else self.allocation.members

    @property
    def priority(self) -> float:
        """The person's last word on it, else what the job asked for."""
        if self.control.priority is not None and self.control.priority > 0:
            return self.control.priority
        return 1.0 if self.spec is None else self.spec.priority


_MADE_OF = ("spec", "allocation", "agents", "failures", "done", "frozen", "result", "control")
"""Fields of a JobView that a state is condensed from, besides the account."""


def same_but(view: JobView, other: JobView, fields: Iterable[str] = _MADE_OF) -> bool:
    """Whether these fields of two views are the same objects: a store keeps the objects of what did not change."""
    return all(getattr(view, f) is getattr(other, f) for f in fields)


def quiet_since(before: JobState, state: JobState) -> bool:
    """Whether nothing happened to the job itself between two looks: at most its own status or account was written."""
    if before is state:
        return True
    return same_but(before.view, state.view) and same_but(before.view, state.view, ("samples", "ended"))


def state_of(view: JobView, before: JobState | None = None) -> JobState:
    """The state of a view; `before`, the last one, spares the work where only account, status or samples are new."""
    if before is not None and same_but(view, before.view):
        return replace(before, view=view, account=_account_of(view, before.spec))
    spec = None if view.spec is None else view.spec.record
    run = "" if spec is None else spec.incarnation

    def ours(incarnation: str) -> bool:
        return spec is None or not incarnation or incarnation == run

    stored = view.allocation
    allocation = stored.record if stored is not None and ours(stored.record.incarnation) else None
    records = {a: v.record for a, v in view.agents.items() if ours(v.record.incarnation)}
    done = {a for a, d in view.done.items() if ours(d.incarnation)}
    frozen = (view.frozen is not None and ours(view.frozen.record.incarnation)) or bool(done)
    result = None if view.result is None or not ours(view.result.record.incarnation) else view.result.record
    control = RUN if view.control is None else view.control.record
    offers = tuple(
        Offer(r.agent, r.host, r.most_workers)
        for r in sorted(records.values(), key=lambda r: (r.host, r.agent))
        if r.state not in _OUT and r.agent not in done
    )
    offering = {o.agent for o in offers}
    members = () if allocation is None else allocation.members
    restoring = any(r.round > (0 if stored is None else stored.record.round) for r in records.values())
    dirty, unsure = _unfinished(allocation, records, result is not None)
    shape = (
        run,
        view.spec.mod_revision if view.spec is not None else 0,
        offers,
        control,
        frozen,
        restoring,
    )
    return JobState(
        view=view,
        job=view.job,
        spec=spec,
        control=control,
        released=_released(view),
        account=_account_of(view, spec),
        allocation=allocation,
        revision=0 if stored is None else stored.mod_revision,
        next_round=1 if stored is None else stored.record.round + 1,
        result=result,
        frozen=frozen,
        verdict=_verdict_pending(allocation, records),
        restoring=restoring,
        offers=offers,
        here=tuple(m for m in members if m.agent in offering),
        gone=tuple(m for m in members if m.agent not in records and m.agent not in done),
        dirty=dirty,
        unsure=unsure,
        one_a_host=len({o.host for o in offers}) == len(offers),
        agents=len(records),
        shape=shape,
        complete=_complete(allocation, records),
        begun=_begun(allocation, records),
        spots=_spots(allocation),
    )


def _account_of(view: JobView, spec: JobSpec | None) -> Account | None:
    if view.account is None:
        return None
    account = view.account.record
    ours = spec is None or not account.incarnation or account.incarnation == spec.incarnation
    return account if ours else None


def _released(view: JobView) -> frozenset[str]:
    if view.control is None:
        return frozenset()
    written = 0 if view.allocation is None else view.allocation.mod_revision
    return frozenset(view.control.record.released) if view.control.mod_revision > written else frozenset()


def _spots(allocation: Allocation | None) -> tuple[Spot, ...] | None:
    if allocation is None or not allocation.members:
        return ()
    if allocation.configuration is None:
        return None
    counts: dict[str, int] = {}
    for member in allocation.members:
        counts[member.host] = counts.get(member.host, 0) + len(member.gpus)
    kind = allocation.configuration.host_type
    return tuple(Spot(host, kind, n) for host, n in sorted(counts.items()))


def _complete(allocation: Allocation | None, records: Mapping[str, AgentRecord]) -> bool:
    if allocation is None or not allocation.members:
        return False
    for member in allocation.members:
        record = records.get(member.agent)
        if record is None or record.round != allocation.round or record.state not in _STARTED:
            return False
    return True


def _begun(allocation: Allocation | None, records: Mapping[str, AgentRecord]) -> bool:
    if allocation is None:
        return False
    own = (records.get(m.agent) for m in allocation.members)
    return any(r is not None and r.round == allocation.round and r.state in _BEGUN for r in own)


def _verdict_pending(allocation: Allocation | None, records: Mapping[str, AgentRecord]) -> bool:
    if allocation is None:
        return False
    for member in allocation.members:
        record = records.get(member.agent)
        if record is not None and record.state is AgentState.FAILED and record.round == allocation.round:
            return True
    return False


def _unfinished(
    allocation: Allocation | None, records: Mapping[str, AgentRecord], ended: bool
) -> tuple[tuple[Member, ...], tuple[AgentRecord, ...]]:
    """Devices that live agents may still hold besides what the newest round grants them.

    An agent that waits or has succeeded holds none; one that reports `clean` >= the newest round holds none of earlier
    rounds. Of any other, a plan names the devices in `releasing`; rounds that members wrote may name none, then it is
    not known which (`unsure`). With a result, the newest round's devices too are held until the agent is through.
    """
    if allocation is None:
        return (), ()
    round_ = allocation.round
    listed = {m.agent for m in allocation.releasing}
    complete = bool(allocation.leader) or bool(allocation.releasing) or round_ == 1
    dirty = [
        m
        for m in allocation.releasing
        if (r := records.get(m.agent)) is not None and r.state not in _IDLE and r.clean < round_
    ]
    if ended:
        dirty += [
            m
            for m in allocation.members
            if (r := records.get(m.agent)) is not None and r.state not in _IDLE and r.clean <= round_
        ]
    unsure = []
    if not complete:
        unsure = [r for r in records.values() if r.state not in _IDLE and r.clean < round_ and r.agent not in listed]
    return tuple(dirty), tuple(sorted(unsure, key=lambda r: r.agent))
