"""What a job could have without taking anything from another: idle devices, and the configurations that fit on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heet_elastic.coordinator.api import Axes, Spot
from heet_elastic.coordinator.decide.demand import Demand
from heet_elastic.coordinator.decide.devices import Inventory
from heet_elastic.coordinator.decide.limits import within
from heet_elastic.coordinator.decide.look import Look
from heet_elastic.model import Configuration


class Room:
    """Devices by group that no other job has, is giving back, or is to have under these targets."""

    def __init__(self, inventory: Inventory, targets: Mapping[str, tuple[Spot, ...]]) -> None:
        self.inventory = inventory
        index, type_of = inventory.index, inventory.type_of
        self._taken: list[dict[str, int]] = [{} for _ in inventory.groups]
        for owners in (inventory.holder, inventory.releasing):
            for device, job in owners.items():
                kind = type_of.get(device)
                if kind is not None and device not in inventory.blocked:
                    taken = self._taken[index[device[0], kind]]
                    taken[job] = taken.get(job, 0) + 1
        for job, spots in targets.items():
            for spot in spots:
                g = index.get((spot.host, spot.host_type))
                if g is not None:
                    self._taken[g][job] = max(self._taken[g].get(job, 0), spot.workers)
        self._free = [len(g.devices) - sum(t.values()) for g, t in zip(inventory.groups, self._taken, strict=True)]

    @property
    def idle(self) -> bool:
        """Whether any device is nobody's."""
        return any(n > 0 for n in self._free)

    def of(self, job: str, g: int) -> int:
        """Devices of group g that the job has, is to have, or could have."""
        return max(self._free[g] + self._taken[g].get(job, 0), 0)

    def fits(self, job: str, spots: Iterable[Spot]) -> bool:
        """Whether these spots take nothing from anybody else."""
        index = self.inventory.index
        return all((k := (s.host, s.host_type)) in index and s.workers <= self.of(job, index[k]) for s in spots)


def within_reach(demand: Demand, room: Room, axes: Axes, look: Look) -> dict[Configuration, tuple[Spot, ...]]:
    """Configurations that the job could run in now, and where, on the table's axes.

    Worker counts are powers of two, the job's least and most, and the most that there is room for. Where there is a
    choice of hosts, those that have workers of the job are taken first, then the emptiest.
    """
    groups = room.inventory.groups
    own = dict(demand.current)
    found: dict[Configuration, tuple[Spot, ...]] = {}
    for h, kind in enumerate(axes.host_types):
        space = {
            g: n
            for g, group in enumerate(groups)
            if group.host_type == kind and (n := min(room.of(demand.state.job, g), int(demand.limit_G[g]))) > 0
        }
        if not space:
            continue
        largest = sorted(space, key=lambda g: (-space[g], groups[g].host))
        nearest = sorted(space, key=lambda g: (-min(own.get(g, 0), space[g]), -space[g], groups[g].host))
        for workers in _counts(demand, min(sum(space.values()), axes.workers)):
            dense = -(-workers // axes.per_host_H[h])
            for hosts in {dense, min(dense + 1, workers)}:
                where = _filled(workers, nearest[:hosts], space, own) or _filled(workers, largest[:hosts], space, own)
                if where and len(where) == hosts:
                    placed = tuple(sorted(where.items()))
                    if within(demand, placed, look):
                        spots = tuple(Spot(groups[g].host, kind, n) for g, n in placed)
                        found[Configuration(kind, workers, hosts)] = spots
    return found


def _counts(demand: Demand, most: int) -> list[int]:
    spec = demand.state.spec
    assert spec is not None
    powers = (1 << n for n in range(most.bit_length()))
    wanted = {*powers, demand.least, min(demand.most, most), most, *spec.allowed_workers}
    return sorted(w for w in wanted if 1 <= w <= most and spec.allows(w))


def _filled(workers: int, hosts: Sequence[int], space: Mapping[int, int], own: Mapping[int, int]) -> dict[int, int]:
    """`workers` over exactly these groups, at least one on each, present ones kept; empty = they do not fit."""
    if sum(space[g] for g in hosts) < workers or len(hosts) > workers:
        return {}
    where = dict.fromkeys(hosts, 1)
    left = workers - len(hosts)
    for upto in ({g: min(own.get(g, 0), space[g]) for g in hosts}, space):
        for g in hosts:
            more = min(max(upto[g] - where[g], 0), left)
            where[g] += more
            left -= more
    return where
