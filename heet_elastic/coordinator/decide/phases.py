"""A job's phase, derived from its state; steps only along `model.TRANSITIONS`."""

from __future__ import annotations

from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.model import TRANSITIONS, Phase

_ENDS = {"succeeded": Phase.SUCCEEDED, "failed": Phase.FAILED, "cancelled": Phase.CANCELLED}
_BEFORE_START = frozenset({Phase.WAITING, Phase.PAUSED, Phase.STARTING})


def phase_of(state: JobState, last: Phase | None) -> Phase:
    """The phase that follows from the store alone, `last` being the one that was shown before (None = none)."""
    if state.result is not None:
        return _ENDS[state.result.outcome]
    if state.frozen:
        return Phase.FINISHING
    if not state.members:
        return Phase.PAUSED if state.paused else Phase.WAITING
    if state.complete:
        return Phase.RUNNING
    return Phase.STARTING if last is None or last in _BEFORE_START else Phase.RESCALING


def step(last: Phase | None, wanted: Phase) -> Phase:
    """The next phase to show on the way from `last` to `wanted`: `wanted` itself where it may follow.

    A coordinator may see several changes at once (a job that started and ended between two looks): then the phases in
    between are shown one after another, by the shortest way. An end is never left; it stays as it is.
    """
    if last is None or last is wanted or wanted in TRANSITIONS[last]:
        return wanted
    paths = [[p] for p in sorted(TRANSITIONS[last], key=list(Phase).index)]
    seen = {last}
    while paths:
        path = paths.pop(0)
        if path[-1] is wanted:
            return path[0]
        for following in sorted(TRANSITIONS[path[-1]] - seen, key=list(Phase).index):
            seen.add(following)
            paths.append([*path, following])
    return last
