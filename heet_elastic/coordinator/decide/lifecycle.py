"""How jobs end and are forgotten: cancelled by a person, over because nobody is left, kept for a while, remembered.

A job whose first worker ended well is finishing; when all others are lost without a failure of their own it has
succeeded, and that is said. A job without any agent may be continued until its retention ends.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from heet_elastic.coordinator.api import Forget, SetProfile, SetResult, Timer, World
from heet_elastic.coordinator.decide.state import JobState
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.model import Profile, Result
from heet_elastic.words import counted

Timers = MutableMapping[tuple[str, ...], Timer]


def endings(states: Sequence[JobState], timers: Timers, now: float, settings: CoordinatorSettings) -> list[SetResult]:
    """Results that are due: cancelled jobs, and finishing ones of which nobody is left."""
    found = []
    for state in states:
        if not state.live or state.spec is None:
            continue
        round_ = 0 if state.allocation is None else state.allocation.round
        if state.control.action == "cancel":
            result = Result("cancelled", "a person cancelled it", state.spec.incarnation, round_, exit_code=7)
            found.append(SetResult(state.job, result))
        elif (why := _all_over(state, timers, now, settings)) is not None:
            found.append(SetResult(state.job, Result("succeeded", why, state.spec.incarnation, round_)))
    return found


def _all_over(state: JobState, timers: Timers, now: float, settings: CoordinatorSettings) -> str | None:
    """Why a finishing job has succeeded though nobody says so; None = it has not, or its agents will say it."""
    key = ("over", state.job)
    round_ = 0 if state.allocation is None else state.allocation.round
    failed = any(n == round_ for n, _ in state.view.failures)
    if not state.frozen or not state.view.done or state.here or failed or state.agents > len(state.offers):
        timers.pop(key, None)
        return None
    # Members write the result themselves within moments; a lost one may still come back within its lease.
    timer = timers.setdefault(key, Timer(now, until=now + settings.ttl_s))
    if now < timer.until:
        return None
    lost = ", ".join(m.agent for m in state.gone)
    done = len(state.view.done)
    if not lost:
        return "all agents ended well"
    return f"{counted(done, 'agent')} ended well; {lost} lost without a failure of their own"


def profiles_due(ended: Sequence[JobState], world: World, settings: CoordinatorSettings) -> list[SetProfile]:
    """Rows worth remembering: of jobs that have just ended with something measured.

    Beyond `retained_profiles` names no further name is added; known ones are brought up to date.
    """
    found = []
    known = world.snapshot.profiles
    for state in ended:
        row, was = world.table.rows.get(state.job), world.memory.states.get(state.job)
        if row is None or not row.cells or was is None or was.result is not None or state.spec is None:
            continue
        assert state.result is not None
        name = state.spec.name or state.job
        old = known.get(name)
        if old is None and len(known) >= settings.retained_profiles:
            continue
        work = None if old is None else old.work
        if state.result.outcome == "succeeded" and row.done > 0:
            work = row.done
        profile = Profile(name, row.cells, row.features, work, state.spec.work_unit, family=state.spec.script)
        if profile != old:
            found.append(SetProfile(name, profile))
    return found


def forgettable(states: Sequence[JobState], timers: Timers, now: float, settings: CoordinatorSettings) -> list[Forget]:
    """Jobs whose keys are to be removed: ended or abandoned for `retention_s`, or the oldest of too many ended ones."""
    found = []
    ended = []
    for state in states:
        key = ("idle", state.job)
        if state.agents or (state.result is None and state.spec is not None and state.spec.submitted):
            timers.pop(key, None)
            continue
        timer = timers.get(key)
        if timer is None:
            timer = timers[key] = Timer(now)
        if state.view.ended:
            continue  # latecomers still belong to that run
        if now - timer.since >= settings.retention_s:
            found.append(Forget(state.job))
        elif state.result is not None:
            ended.append(state)
    surplus = len(ended) - settings.retained_jobs
    if surplus > 0:
        ended.sort(key=lambda s: (0 if s.view.result is None else s.view.result.mod_revision, s.job))
        found.extend(Forget(s.job) for s in ended[:surplus])
    return found
