"""Whether a placement keeps to a job's limits in workers and agents."""

from __future__ import annotations

from heet_elastic.coordinator.api import Spot
from heet_elastic.coordinator.decide.assign import agents_for
from heet_elastic.coordinator.decide.demand import Demand
from heet_elastic.coordinator.decide.look import Look
from heet_elastic.scheduler.api import Placed


def within(demand: Demand, placed: Placed, look: Look) -> bool:
    """Whether a placement keeps to the job's limits in workers and agents."""
    state, groups = demand.state, look.inventory.groups
    spec = state.spec
    assert spec is not None
    workers = sum(n for _, n in placed)
    if demand.exact or demand.per_host:
        return workers == demand.least
    if not spec.allows(workers):
        return False
    hosts = {groups[g].host for g, _ in placed}
    if state.one_a_host:
        return spec.min_hosts <= len(hosts) <= spec.max_hosts
    spots = tuple(Spot(groups[g].host, groups[g].host_type, n) for g, n in placed)
    agents = agents_for(state, spots, look.inventory, look.avoid.get(state.job, {}))
    return spec.min_hosts <= agents <= spec.max_hosts
