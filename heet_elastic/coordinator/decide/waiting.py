"""One sentence for every job: what it has and why, or what it waits for, with its place in the queue."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heet_elastic.coordinator.api import Spot
from heet_elastic.coordinator.decide.accounts import waited_s
from heet_elastic.coordinator.decide.copies import unproven, waits_for_quiet
from heet_elastic.coordinator.decide.demand import has_heet_agent, startable_hosts
from heet_elastic.coordinator.decide.devices import Inventory
from heet_elastic.coordinator.decide.look import Look
from heet_elastic.coordinator.decide.rounds import Plan
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.model import Exclusion, Host
from heet_elastic.words import counted


@dataclass(frozen=True, slots=True)
class Facts:
    """What reasons are made of. queue: waiting jobs, the next one first. measuring: jobs away on a probe round. memo:
    what several jobs' reasons share.
    """

    look: Look
    hosts: Mapping[str, Host]
    plans: Mapping[str, Plan]
    settling: frozenset[str]
    queue: tuple[str, ...]
    measuring: frozenset[str] = frozenset()
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def place(self, job: str) -> int | None:
        """Position of a job in the queue, from 1; None = it is not in it."""
        places = self.memo.get("places")
        if places is None:
            places = self.memo["places"] = {j: n for n, j in enumerate(self.queue, start=1)}
        found: int | None = places.get(job)
        return found

    def devices(self, host: str) -> int:
        """Devices of a host that may be granted at all."""
        counts = self.memo.get("devices")
        if counts is None:
            counts = self.memo["devices"] = {}
            for group in self.look.inventory.groups:
                counts[group.host] = counts.get(group.host, 0) + len(group.devices)
        found: int = counts.get(host, 0)
        return found


def queue_of(look: Look, targets: Mapping[str, tuple[Spot, ...]], prices: Mapping[str, float]) -> tuple[str, ...]:
    """Jobs that have nothing and are to get nothing yet, by price, then by how long they have waited, then by name."""
    waiting = [s for s in look.live if not s.members and not targets.get(s.job) and not s.paused and not s.fixed]

    def rank(state: JobState) -> tuple[float, float, str]:
        price = prices.get(state.job, math.inf)
        return (price if price == price else math.inf, -waited_s(look.entries[state.job], state, look.now), state.job)

    return tuple(s.job for s in sorted(waiting, key=rank))


def reason_of(state: JobState, facts: Facts) -> str:
    """The sentence."""
    if state.result is not None:
        return f"{state.result.outcome}: {state.result.reason}" if state.result.reason else state.result.outcome
    plan = facts.plans.get(state.job)
    loud = unproven(facts.look.ghosts.get(state.job, ()), state)
    if loud and (plan is None or not plan.target):
        return waits_for_quiet(state.job, loud)
    if state.members:
        return _running(state, plan, measuring=state.job in facts.measuring)
    if plan is not None and plan.allocation is not None:
        return plan.allocation.reason
    if state.paused:
        return f"paused by a person (heet resume {state.job}: goes on)"
    if state.spec is None:
        return "its description is missing or cannot be read: start it again"
    if state.restoring:
        return "its agents are in a round that the store does not know: they write it again"
    if plan is not None and plan.target:
        return f"gets {_spots(plan.target)}, {plan.waits}" if plan.waits else f"gets {_spots(plan.target)}"
    return _queued(state, facts)


def _running(state: JobState, plan: Plan | None, *, measuring: bool) -> str:
    assert state.allocation is not None
    if state.frozen:
        done = len(state.view.done)
        everybody = counted(len(state.members) or done, "agent")
        return f"finishes: {done} of {everybody} have ended well, no plan touches it any more"
    if plan is not None and plan.allocation is not None:
        return plan.allocation.reason
    if state.restoring:
        return f"its agents are ahead of round {state.allocation.round}, the newest in the store: they write it again"
    if state.verdict:
        return f"a worker failed in round {state.allocation.round}: its agents agree on what follows"
    text = state.allocation.reason or f"runs in round {state.allocation.round}"
    if state.allocation.probe and not measuring:
        text = f"stays on {state.allocation.configuration}, where a probe round has measured it"
    if plan is not None and plan.waits:
        text += f"; is to get {_spots(plan.target)}, {plan.waits}"
    return text


def _spots(target: Sequence[Spot]) -> str:
    return " + ".join(f"{s.workers} x {s.host_type} on {s.host}" for s in target[:3]) + (
        f" and {len(target) - 3} more hosts" if len(target) > 3 else ""
    )


def _queued(state: JobState, facts: Facts) -> str:
    """Why a job that wants something gets nothing, the nearest obstacle first."""
    spec = state.spec
    assert spec is not None
    avoid = facts.look.avoid.get(state.job, {})
    here = [o for o in state.offers if o.host not in avoid]
    startable = startable_hosts(state, facts.hosts, avoid)
    places = len(here) + len(startable)
    if places < spec.min_hosts:
        shut = "; ".join(f"{x.host} is excluded for {_span(_coarse(x))}: {x.reason}" for x in avoid.values())
        if avoid:
            return f"waits for {spec.min_hosts - places} more of {counted(spec.min_hosts, 'host')}; {shut}"
        if spec.submitted and not any(has_heet_agent(h) for h in facts.hosts.values()):
            return "no host runs a heet-agent: start heet-agent on the hosts that this job may use"
        hosts = counted(spec.min_hosts, "host")
        if not state.agents:
            return f"no agent of it is here: start torchrun with --rdzv-id={state.job} on {hosts}"
        return f"{places} of at least {hosts} are here: start torchrun on {spec.min_hosts - places} more"
    if state.job in facts.settling:
        return "an agent of it has just come: waits a moment for others"
    least = max(spec.min_workers, spec.min_hosts)
    if spec.rigid and here:
        least = max(least, spec.min_hosts * min(o.most_workers for o in here))
    most = sum(min(o.most_workers, facts.devices(o.host)) for o in here) + sum(facts.devices(h) for h in startable)
    if most < least:
        workers = counted(least, "worker")
        return f"needs at least {workers}, the hosts where it can run have room for {most}: start it on more hosts"
    return (
        f"waits in queue position {facts.place(state.job) or len(facts.queue)} of {len(facts.queue)}: "
        f"needs at least {counted(least, 'GPU')}, "
        f"{_capacity(state, facts)}"
    )


def _coarse(exclusion: Exclusion) -> float:
    """The exclusion's remaining time, coarse, so that the sentence does not change with every look."""
    return max(10.0, math.ceil(exclusion.remaining_s / 10.0) * 10.0)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _capacity(state: JobState, facts: Facts) -> str:
    """What is free where the job could run, and who has the rest."""
    hosts = frozenset(o.host for o in state.offers).union(startable_hosts(state, facts.hosts, {}))
    known = facts.memo.get(hosts)
    if known is None:
        known = facts.memo[hosts] = _capacity_on(hosts, facts.look.inventory)
    text: str = known
    return text


def _capacity_on(hosts: frozenset[str], inventory: Inventory) -> str:
    free: dict[str, int] = {}
    holders: dict[str, int] = {}
    for group in inventory.groups:
        if group.host not in hosts:
            continue
        for device in group.devices:
            owner = inventory.holder.get((group.host, device)) or inventory.releasing.get((group.host, device))
            if owner is None:
                free[group.host_type] = free.get(group.host_type, 0) + 1
            else:
                holders[owner] = holders.get(owner, 0) + 1
    text = " and ".join(f"{n} x {kind}" for kind, n in sorted(free.items())) or "none"
    most = sorted(holders.items(), key=lambda item: (-item[1], item[0]))
    held = ", ".join(f"{n} by {job}" for job, n in most[:3]) + (f" and {len(most) - 3} more jobs" if most[3:] else "")
    return f"{text} free where it can run" + (f", the others are held: {held}" if held else "")


def details_of(state: JobState, facts: Facts) -> tuple[str, ...]:
    """Further sentences for `heet explain`, none of which changes merely because time passes."""
    account = facts.look.entries[state.job].account
    shut = facts.look.avoid.get(state.job, {}).values()
    lines = [f"host {x.host} is excluded (strike {x.strikes}): {x.reason}" for x in shut]
    if state.allocation is not None and state.allocation.restarts_used:
        lines.append(f"{state.allocation.restarts_used} restarts used of the job's budget")
    if account.rescale_up_s is not None:
        lines.append(f"growing it has cost {account.rescale_up_s:.0f} s")
    if account.rescale_down_s is not None:
        lines.append(f"shrinking it has cost {account.rescale_down_s:.0f} s")
    if account.probes:
        rounds = "round" if account.probes == 1 else "rounds"
        lines.append(f"{account.probes} probe {rounds} to measure it elsewhere: charged with {account.probe_s:.0f} s")
    return tuple(lines)
