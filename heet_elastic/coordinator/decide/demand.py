"""What one job may be given: its limits in workers and hosts on every device group, from spec, agents and exclusions.

A job can only be placed where a live agent of it offers itself, or where a heet-agent can start one (submitted jobs). A
rigid job takes N whole agents: `per_host` workers on each of N hosts where its agents are alike and on hosts of their
own; else N agents of one host type are picked here and offered as one exact size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from heet_elastic.coordinator.api import Spot
from heet_elastic.coordinator.decide.devices import Group, Inventory
from heet_elastic.coordinator.decide.state import JobState, Offer
from heet_elastic.model import Exclusion, Host, JobSpec
from heet_elastic.scheduler.api import IntArray, Placed

HEET_AGENT = "heet-agent"
"""Process names of hosts' daemons start with this: they can start a torchrun of any submitted job."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One job's row of a Problem. `limit_G`: most workers by group; `exact`: the one size that is possible, 0 = any.

    current: what it holds, by group; frozen: it keeps exactly that. basis: what else it follows from, see `demand_of`.
    """

    state: JobState
    limit_G: IntArray
    least: int
    most: int
    exact: int
    per_host: int
    least_hosts: int
    most_hosts: int
    requested: int
    current: Placed
    frozen: bool
    basis: tuple[object, ...]


def has_heet_agent(host: Host) -> bool:
    """Whether a heet-agent lives there."""
    return any(a.startswith(HEET_AGENT) for a in host.agents)


def startable_hosts(state: JobState, hosts: Mapping[str, Host], avoid: Mapping[str, Exclusion]) -> tuple[str, ...]:
    """Hosts without an agent of this job where a heet-agent can start one."""
    if state.spec is None or not state.spec.submitted:
        return ()
    taken = {o.host for o in state.offers}
    return tuple(sorted(n for n, h in hosts.items() if n not in taken and n not in avoid and has_heet_agent(h)))


def offer_limit(offer: Offer, group: Group, host: Host | None) -> int:
    """Most workers of this agent on this group."""
    if host is not None and (seen := host.visible.get(offer.agent)) is not None:
        return min(offer.most_workers, sum(d in seen for d in group.devices))
    return min(offer.most_workers, len(group.devices))


def demand_of(
    state: JobState,
    inventory: Inventory,
    avoid: Mapping[str, Exclusion],
    frozen: bool,
    before: object = None,
    single: bool = False,
    home: tuple[Spot, ...] = (),
) -> Demand:
    """The demand of a live job; `before`, its last one, where it would be the same.

    single: at most one agent a host takes part, so that hosts and agents are the same number. home: where it counts as
    running though it is away to be measured.
    """
    single = single or _crowded(state, inventory, avoid)
    basis = (inventory.layout, inventory.groups, tuple(avoid), home, single)
    if isinstance(before, Demand) and before.state is state and before.frozen == frozen and before.basis == basis:
        return before
    spec, hosts = state.spec, inventory.layout.hosts
    assert spec is not None
    by_host = _by_host(state, hosts, avoid, single)
    offers = [o for mine in by_host.values() for o in mine]
    startable = startable_hosts(state, hosts, avoid)
    most_agents = max(map(len, by_host.values()), default=0)
    whole = offers[0].most_workers if offers else spec.most_per_host or _largest(inventory)
    alike = most_agents <= 1 and len({o.most_workers for o in offers}) <= 1
    exact = per_host = 0
    if spec.rigid and not alike:
        limit_G = _pick_whole_agents(state, spec, offers, inventory, hosts)
        least = most = exact = sum(limit_G)
        least_hosts = most_hosts = max(len({inventory.groups[g].host for g, n in enumerate(limit_G) if n}), 1)
    else:
        limit_G = _limits(by_host, startable, spec, inventory, hosts)
        least, most = max(spec.min_workers, spec.min_hosts), spec.max_workers or 1 << 30
        least_hosts, most_hosts = spec.min_hosts, spec.max_hosts
        if spec.rigid:
            per_host = whole
            least = most = per_host * spec.min_hosts
        elif most_agents > 1:
            least_hosts, most_hosts = _host_bounds(spec, [len(v) for v in by_host.values()] + [1] * len(startable))
    return Demand(
        state=state,
        limit_G=np.array(limit_G, dtype=np.int64),
        least=least,
        most=most,
        exact=exact,
        per_host=per_host,
        least_hosts=least_hosts,
        most_hosts=most_hosts,
        requested=max(least, min(spec.requested_workers or whole * spec.min_hosts, most)),
        current=_at(home, inventory) if home and not frozen else current_of(state, inventory, everything=frozen),
        frozen=frozen,
        basis=basis,
    )


def _crowded(state: JobState, inventory: Inventory, avoid: Mapping[str, Exclusion]) -> bool:
    """Whether the bounds on hosts that several agents a host call for leave no placement: then one agent a host is
    asked for, so that spares on its hosts never keep a job from starting."""
    spec, hosts = state.spec, inventory.layout.hosts
    if spec is None or spec.rigid or state.one_a_host:
        return False
    by_host = _by_host(state, hosts, avoid, single=False)
    startable = startable_hosts(state, hosts, avoid)
    limits: dict[str, list[int]] = {}
    for group, limit in zip(inventory.groups, _limits(by_host, startable, spec, inventory, hosts), strict=True):
        limits.setdefault(group.host_type, []).append(limit)
    least, most = _host_bounds(spec, [len(v) for v in by_host.values()] + [1] * len(startable))
    for mine in limits.values():
        room = sum(sorted(mine, reverse=True)[:most])
        enough = sum(n > 0 for n in mine) >= least
        if enough and any(spec.allows(w) for w in range(max(spec.min_workers, spec.min_hosts), room + 1)):
            return False
    return True


def _largest(inventory: Inventory) -> int:
    return max((len(g.devices) for g in inventory.groups), default=1)


def _by_host(
    state: JobState, hosts: Mapping[str, Host], avoid: Mapping[str, Exclusion], single: bool
) -> dict[str, list[Offer]]:
    """Usable offers by host; of several on one host, members first, then the larger, at most MAX of them."""
    assert state.spec is not None
    found: dict[str, list[Offer]] = {}
    for offer in state.offers:
        if offer.host not in avoid and offer.host in hosts:
            found.setdefault(offer.host, []).append(offer)
    if len(found) < len(state.offers):
        members = {m.agent for m in state.here}
        most = 1 if single else state.spec.max_hosts
        for mine in found.values():
            mine.sort(key=lambda o: (o.agent not in members, -o.most_workers, o.agent))
            del mine[most:]
    return found


def _host_bounds(spec: JobSpec, agents: Sequence[int]) -> tuple[int, int]:
    """(least, most) hosts such that any hosts in that number have between MIN and MAX agents, given agents by host.

    Where hosts have several agents this is on the safe side: some placements that would do are not considered.
    """
    ascending = list(accumulate(sorted(agents)))
    descending = list(accumulate(sorted(agents, reverse=True)))
    least = next((n for n, total in enumerate(ascending, 1) if total >= spec.min_hosts), len(agents) + 1)
    most = sum(total <= spec.max_hosts for total in descending)
    return least, max(most, 1)


def _limits(
    by_host: Mapping[str, Sequence[Offer]],
    startable: Sequence[str],
    spec: JobSpec,
    inventory: Inventory,
    hosts: Mapping[str, Host],
) -> list[int]:
    """Most workers of the job on each group."""
    limits = []
    for group in inventory.groups:
        size = len(group.devices)
        if (mine := by_host.get(group.host)) is not None:
            host = hosts[group.host]
            limits.append(min(sum(offer_limit(o, group, host) for o in mine), size))
        elif group.host in startable:
            limits.append(min(size, spec.most_per_host or size))
        else:
            limits.append(0)
    return limits


def _pick_whole_agents(
    state: JobState, spec: JobSpec, offers: Sequence[Offer], inventory: Inventory, hosts: Mapping[str, Host]
) -> list[int]:
    """Limits that let a rigid job with unlike agents have exactly N whole ones on one host type; zeros = impossible.

    Members come first, so that what runs stays; then agents by host, size and name (`assign` shares out in the same
    order). The type with most room is tried first.
    """
    members = {m.agent for m in state.here}
    order = sorted(offers, key=lambda o: (o.agent not in members, o.host, -o.most_workers, o.agent))
    kinds: dict[str, int] = {}
    for group in inventory.groups:
        kinds[group.host_type] = kinds.get(group.host_type, 0) + len(group.devices)
    for kind in sorted(kinds, key=lambda k: (-kinds[k], k)):
        limits = [0] * len(inventory.groups)
        picked = 0
        for offer in order:
            g = inventory.index.get((offer.host, kind))
            if g is None or picked == spec.min_hosts:
                continue
            group = inventory.groups[g]
            whole = offer_limit(offer, group, hosts[offer.host]) == offer.most_workers
            if whole and limits[g] + offer.most_workers <= len(group.devices):
                limits[g] += offer.most_workers
                picked += 1
        if picked == spec.min_hosts:
            return limits
    return [0] * len(inventory.groups)


def _at(spots: Sequence[Spot], inventory: Inventory) -> Placed:
    """Spots by group; those of hosts that are gone are left out."""
    index = inventory.index
    return tuple(sorted((index[key], s.workers) for s in spots if (key := (s.host, s.host_type)) in index))


def current_of(state: JobState, inventory: Inventory, everything: bool) -> Placed:
    """What the job's live members hold, by group, without blocked devices; `everything` = what its round holds."""
    counts: dict[int, int] = {}
    for member in state.members if everything else state.here:
        for gpu in member.gpus:
            device = (member.host, gpu)
            kind = inventory.type_of.get(device)
            if kind is not None and (everything or device not in inventory.blocked):
                g = inventory.index[member.host, kind]
                counts[g] = counts.get(g, 0) + 1
    return tuple(sorted(counts.items()))
