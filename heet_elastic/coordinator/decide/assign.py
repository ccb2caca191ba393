"""Names agents and devices for a target: workers per host become members with devices, moving as little as can be.

On every host the present members keep their workers first, then members take more, then waiting agents come in; as few
agents as possible, but never fewer than the job's minimum of hosts. Every agent keeps the devices that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.coordinator.api import Spot
from heet_elastic.coordinator.decide.devices import Device, Group, Inventory
from heet_elastic.coordinator.decide.state import JobState, Offer
from heet_elastic.model import Exclusion, Host, Member


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a target comes to now.

    members: the round, complete iff nothing of the rest is set. wanted: hosts where a heet-agent must first start an
    agent. lacking: (group, devices) that are not free yet; reserved: free devices set aside for it meanwhile.
    """

    members: tuple[Member, ...]
    wanted: tuple[str, ...] = ()
    lacking: tuple[tuple[Group, int], ...] = ()
    reserved: frozenset[Device] = frozenset()

    @property
    def complete(self) -> bool:
        """Whether the round can be written."""
        return not self.wanted and not self.lacking


def assign(
    state: JobState,
    target: Sequence[Spot],
    inventory: Inventory,
    hosts: Mapping[str, Host],
    avoid: Mapping[str, Exclusion],
    taken: Mapping[Device, str],
) -> Assignment:
    """Members for `target`; `taken`: free devices that other jobs of this decision get or wait for, with the job."""
    members: dict[str, Member] = {}
    wanted: list[str] = []
    lacking: list[tuple[Group, int]] = []
    reserved: set[Device] = set()
    counts = _workers_per_agent(state, target, hosts, avoid, inventory)
    # On a host that lives, locks tell whether a vanished agent's workers are gone: the job may take up its devices.
    own = {(m.host, d) for m in state.gone for d in m.gpus}
    for spot in target:
        group = inventory.groups[inventory.index[spot.host, spot.host_type]]
        mine = counts.get((spot.host, spot.host_type), {})
        if not mine:
            wanted.append(spot.host)
        free = [d for d in inventory.free(group, own) if (spot.host, d) not in taken and (spot.host, d) not in reserved]
        if not mine:
            reserved.update((spot.host, d) for d in free[: spot.workers])
            if len(free) < spot.workers:
                lacking.append((group, spot.workers - len(free)))
            continue
        for agent, workers in mine.items():
            seen = hosts[spot.host].visible.get(agent)
            kept = [d for d in _held(state, agent, spot.host) if d in group.devices][:workers]
            fresh = [d for d in free if seen is None or d in seen][: workers - len(kept)]
            free = [d for d in free if d not in fresh]
            reserved.update((spot.host, d) for d in fresh)
            if len(kept) + len(fresh) < workers:
                lacking.append((group, workers - len(kept) - len(fresh)))
            gpus = (*kept, *fresh)
            if gpus:
                old = members.get(agent)
                members[agent] = Member(agent, spot.host, gpus if old is None else (*old.gpus, *gpus))
    return Assignment(tuple(members.values()), tuple(wanted), tuple(lacking), frozenset(reserved))


def agents_for(state: JobState, target: Sequence[Spot], inventory: Inventory, avoid: Mapping[str, Exclusion]) -> int:
    """How many agents would take part in `target`; a host where one is still to be started counts as one."""
    counts = _workers_per_agent(state, target, inventory.layout.hosts, avoid, inventory)
    agents = {agent for share in counts.values() for agent in share}
    return len(agents) + len({s.host for s in target if (s.host, s.host_type) not in counts})


def _held(state: JobState, agent: str, host: str) -> tuple[str, ...]:
    for member in state.here:
        if member.agent == agent and member.host == host:
            return member.gpus
    return ()


def _workers_per_agent(
    state: JobState,
    target: Sequence[Spot],
    hosts: Mapping[str, Host],
    avoid: Mapping[str, Exclusion],
    inventory: Inventory,
) -> dict[tuple[str, str], dict[str, int]]:
    """Workers of every agent by (host, host type); a host without an agent of the job is absent."""
    least = 1 if state.spec is None else state.spec.min_hosts
    offers: dict[str, list[Offer]] = {}
    for offer in state.offers:
        if offer.host not in avoid:
            offers.setdefault(offer.host, []).append(offer)
    counts: dict[tuple[str, str], dict[str, int]] = {}
    used: dict[str, int] = {}
    for spot in target:
        mine = offers.get(spot.host)
        if mine is None or spot.host not in hosts:
            continue
        group = inventory.groups[inventory.index[spot.host, spot.host_type]]
        seen = {o.agent: hosts[spot.host].visible.get(o.agent) for o in mine}
        room = {
            o.agent: min(
                o.most_workers - used.get(o.agent, 0),
                len(group.devices) if (v := seen[o.agent]) is None else sum(d in v for d in group.devices),
            )
            for o in mine
        }
        now = {o.agent: sum(d in group.devices for d in _held(state, o.agent, spot.host)) for o in mine}
        whole = state.spec is not None and state.spec.rigid
        share = _share_whole(spot.workers, room, now, mine) if whole else _share(spot.workers, room, now)
        counts[spot.host, spot.host_type] = share
        for agent, workers in share.items():
            used[agent] = used.get(agent, 0) + workers
    _spread(counts, offers, least)
    return counts


def _share(workers: int, room: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """`workers` over the agents of one host: what each has now, cut from the last or filled up from the first."""
    order = sorted(room, key=lambda a: (now[a] == 0, -room[a], a))
    share: dict[str, int] = {}
    left = workers
    for agent in order:
        share[agent] = min(now[agent], room[agent], left)
        left -= share[agent]
    for agent in order:
        more = min(room[agent] - share[agent], left)
        share[agent] += more
        left -= more
    return {a: n for a, n in share.items() if n > 0}


def _share_whole(
    workers: int, room: Mapping[str, int], now: Mapping[str, int], offers: Sequence[Offer]
) -> dict[str, int]:
    """`workers` over whole agents, in the order in which `demand` has picked them: members, then the larger first."""
    share: dict[str, int] = {}
    left = workers
    for offer in sorted(offers, key=lambda o: (now[o.agent] == 0, -o.most_workers, o.agent)):
        if offer.most_workers <= left and room[offer.agent] == offer.most_workers:
            share[offer.agent] = offer.most_workers
            left -= offer.most_workers
    return share


def _spread(
    counts: Mapping[tuple[str, str], dict[str, int]], offers: Mapping[str, Sequence[Offer]], least: int
) -> None:
    """Bring in idle agents of the same hosts until `least` agents take part, taking workers from the largest."""
    agents = sum(len(c) for c in counts.values())
    for (host, _), share in counts.items():
        for offer in offers.get(host, ()):
            if agents >= least:
                return
            giver = max(share, key=lambda a: (share[a], a), default=None)
            if offer.agent in share or giver is None or share[giver] < 2:
                continue
            share[giver] -= 1
            share[offer.agent] = 1
            agents += 1
