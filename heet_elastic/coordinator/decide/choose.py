"""When to ask the policy again, and what it chose: a target per job, kept until something changes.

Asked at arrivals, departures, host changes, a person's word, measurements that say something new, the end of a
cool-down that stood in the way, and after the interval. In between, targets are only carried out (`rounds`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heet_elastic.coordinator.api import Memory, Spot, World
from heet_elastic.coordinator.decide import accounts
from heet_elastic.coordinator.decide.copies import provable_by_locks, unproven
from heet_elastic.coordinator.decide.demand import Demand, demand_of, startable_hosts
from heet_elastic.coordinator.decide.limits import within
from heet_elastic.coordinator.decide.look import Look, names
from heet_elastic.coordinator.decide.probes import Probing
from heet_elastic.coordinator.decide.problem import build_problem
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.scheduler.api import Policy
from heet_elastic.scheduler.placement import place


@dataclass(frozen=True, slots=True)
class Targets:
    """The choice in force. `why`: what made the coordinator choose now, empty = it did not.

    left_alone: jobs that must not be changed now: their agents are still arriving, or they were changed a moment ago.
    situation: what the choice depended on; held: the jobs of `left_alone` that stood in its way.
    """

    targets: Mapping[str, tuple[Spot, ...]]
    prices: Mapping[str, float]
    reason: str
    why: str
    left_alone: frozenset[str]
    situation: Mapping[str, Hashable]
    offered: Mapping[str, Hashable]
    held: frozenset[str]
    chosen_at: float
    settling: frozenset[str]
    demands: Mapping[str, Demand]
    thawed_at: float


def make_choice(
    now: float,
    world: World,
    look: Look,
    probing: Probing,
    policy: Policy,
    settings: CoordinatorSettings,
    rng: np.random.Generator,
) -> Targets:
    """The targets in force at `now`: the policy's new ones if something calls for them, else the last ones."""
    memory = world.memory
    settling = frozenset(s.job for s in look.live if ("settle", s.job) in look.timers and not s.fixed)
    cooling = frozenset(s.job for s in look.live if s.here and cools(s, look, memory, settings))
    situation = _situation(world, look, settling, probing)
    interval_s = min(settings.interval_s, policy.interval_s)
    thawed = (memory.held & situation.keys()) - cooling
    why = due(situation, thawed, memory, now, interval_s, settings.cooldown_s)
    left_alone = settling | cooling
    if not why:
        return Targets(
            memory.targets,
            memory.prices,
            memory.reason,
            "",
            left_alone,
            situation,
            memory.offered,
            memory.held,
            now if memory.chosen_at is None else memory.chosen_at,
            settling,
            memory.demands,
            memory.thawed_at,
        )
    demands = _demands(look, world, left_alone, probing)
    targets, prices, note = _ask(demands, world, look, probing, policy, settings, rng)
    return Targets(
        targets,
        prices,
        f"{why} ({note})" if note else why,
        why,
        left_alone,
        situation,
        {s.job: s.offers for s in look.live},
        cooling & {d.state.job for d in demands if not d.state.fixed},
        now,
        settling,
        {d.state.job: d for d in demands},
        now if thawed else memory.thawed_at,
    )


def cools(state: JobState, look: Look, memory: Memory, settings: CoordinatorSettings) -> bool:
    """Whether a running job was changed so recently that it is left alone.

    Not where it must change: it lost a member, a device or a permission, or its own agents changed.
    """
    since = accounts.since_rescale_s(look.entries[state.job], look.now)
    if since >= settings.cooldown_s or state.paused or len(state.here) < len(state.members):
        return False
    if memory.offered.get(state.job, state.offers) != state.offers:
        return False
    avoid = look.avoid.get(state.job, {})
    blocked = look.inventory.blocked
    return not any(m.host in avoid or any((m.host, d) in blocked for d in m.gpus) for m in state.here)


def _situation(world: World, look: Look, settling: frozenset[str], probing: Probing) -> dict[str, Hashable]:
    """What the choice depends on besides time. Keys with a line break are groups of devices.

    What a probe round measures counts when it is over.
    """
    situation: dict[str, Hashable] = {}
    for state in look.live:
        row, trial = world.table.rows.get(state.job), probing.running.get(state.job)
        situation[state.job] = (
            state.shape,
            state.job in settling,
            tuple(look.avoid.get(state.job, ())),
            unproven(look.ghosts.get(state.job, ()), state),
            trial.picture if trial is not None else 0 if row is None else row.picture,
            look.entries[state.job].account.probes - (trial is not None),
        )
    for group in look.inventory.groups:
        situation[f"{group.host}\n{group.host_type}"] = len(group.devices)
    return situation


def due(
    situation: Mapping[str, Hashable],
    thawed: frozenset[str],
    memory: Memory,
    now: float,
    interval_s: float,
    cooldown_s: float,
) -> str:
    """Why the policy must be asked now; empty = the targets stand. `thawed`: held back last time, and cooling no more.

    Cool-downs that end make it ask at most once a cool-down: on a busy cluster one ends every few seconds.
    """
    if memory.chosen_at is None:
        return "this coordinator has begun to lead"
    before = memory.situation if isinstance(memory.situation, Mapping) else {}
    if situation != before:
        return _difference(before, situation)
    if thawed and now - memory.thawed_at >= cooldown_s:
        return f"{names(thawed)} may be changed again"
    if now - memory.chosen_at >= interval_s:
        return f"{interval_s:g} s have passed"
    return ""


def _difference(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> str:
    """What changed between two situations, as words."""
    parts: dict[str, list[str]] = {}
    hosts: dict[str, set[str]] = {}
    for key in [*after, *(k for k in before if k not in after)]:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if "\n" in key:
            verb = "came" if old is None else "went" if new is None else "changed"
            hosts.setdefault(verb, set()).add(key.split("\n")[0])
        else:
            parts.setdefault(_what(old, new), []).append(key)
    words = [sentence.format(jobs=names(jobs)) for sentence, jobs in parts.items()]
    for verb, which in hosts.items():
        more = f" and {len(which) - 3} more" if len(which) > 3 else ""
        words.append(f"{'host' if len(which) == 1 else 'hosts'} {', '.join(sorted(which)[:3])}{more} {verb}")
    return "; ".join(words)


def _what(old: object, new: object) -> str:
    """What happened to a job, given its entries in two situations; `{jobs}` stands for its name."""
    if not isinstance(old, tuple) or not isinstance(new, tuple):
        return "{jobs} came" if old is None else "{jobs} went"
    (_, _, offers_before, control_before, *_), (_, _, offers, control, *_) = old[0], new[0]
    if control != control_before:
        return "a person changed {jobs}"
    if offers != offers_before:
        return "agents of {jobs} came or went"
    if old[1] != new[1]:
        return "the agents of {jobs} are there"
    if old[2] != new[2]:
        return "the hosts that {jobs} may use changed"
    if old[5] != new[5]:
        return "{jobs} was measured by a probe round"
    return "measurements of {jobs} say something new" if old[4] != new[4] else "{jobs} changed"


def _demands(look: Look, world: World, left_alone: frozenset[str], probing: Probing) -> list[Demand]:
    """Who takes part in the choice. What runs and must be left alone keeps what it has; paused jobs want nothing."""
    demands = []
    for state in look.live:
        avoid = look.avoid.get(state.job, {})
        frozen = bool(state.members) and (state.fixed or (bool(state.here) and state.job in left_alone))
        if not frozen:
            if state.fixed or state.paused or state.job in left_alone:
                continue
            if not state.offers and not startable_hosts(state, world.snapshot.hosts, avoid):
                continue
            if not provable_by_locks(state, unproven(look.ghosts.get(state.job, ()), state)):
                continue
        home = probing.homes.get(state.job, ())
        demands.append(demand_of(state, look.inventory, avoid, frozen, world.memory.demands.get(state.job), home=home))
    return demands


def _ask(
    demands: Sequence[Demand],
    world: World,
    look: Look,
    probing: Probing,
    policy: Policy,
    settings: CoordinatorSettings,
    rng: np.random.Generator,
) -> tuple[dict[str, tuple[Spot, ...]], dict[str, float], str]:
    """The policy's choice, placed on hosts, and its prices.

    Where several agents of a job share a host, a placement may ask for more or fewer agents than it may have: then the
    policy is asked again with one agent a host. What still breaks a job's limits is no placement.
    """
    if not demands or not look.inventory.groups:
        return {}, {}, ""
    demands, inventory = list(demands), look.inventory
    for _ in range(2):
        problem = build_problem(demands, look, world.table, world.snapshot.profiles, settings)
        choice = policy.choose(problem, rng)
        placed = place(problem, choice)
        wrong = [j for j, d in enumerate(demands) if placed[j] and not d.frozen and not within(d, placed[j], look)]
        again = [j for j in wrong if not demands[j].basis[-1]]
        if not again:
            break
        for j in again:
            state = demands[j].state
            home = probing.homes.get(state.job, ())
            demands[j] = demand_of(state, inventory, look.avoid.get(state.job, {}), False, single=True, home=home)
    groups = inventory.groups
    targets = {
        job: () if j in wrong else tuple(Spot(groups[g].host, groups[g].host_type, n) for g, n in placed[j])
        for j, job in enumerate(problem.jobs)
    }
    return targets, dict(zip(problem.jobs, choice.price_J.tolist(), strict=True)), choice.note
