"""What a host's heet-agent does next: (now, what the store says, which torchruns run here) -> instructions. Pure.

Invariants: at most one torchrun a job; one is started only where the coordinator wants it; nothing is started or ended
on a picture that may be old; a torchrun that the daemon did not start itself (found again after a restart) is treated
like any other.

    own torchrun | the store says                  | instruction
    none         | wanted, not over                | Start, after the back-off of earlier deaths
    alive        | wanted, or a member on this host| -
    alive        | neither, for idle_s             | Terminate (it holds no GPU and takes memory)
    alive        | job over, for end_s             | Terminate (torchrun ends by itself before that)
    alive        | another run under this id       | Terminate
    alive        | asked to end kill_s ago         | Kill
    any          | the daemon is to end (draining) | Terminate, then Kill; no Start
    dead         | not asked to, job not over      | a death: Report, back off, or GiveUp where it never lived anywhere
    dead         | over, asked to, or unwanted     | Close
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Durations in seconds. kill_s must exceed the workers' grace and what torch may take after it (docs/pool.md)."""

    idle_s: float = 120.0
    end_s: float = 60.0
    kill_s: float = 90.0
    backoff_s: float = 1.0
    backoff_most_s: float = 60.0
    stable_s: float = 60.0
    hopeless: int = 3
    """Deaths in a row, none of which was preceded by a registration, after which a job may be given up."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One job as the store shows it to this host. `over`: it has a result; another run is another `incarnation`.

    registered: a torchrun of it is registered from this host; living: one is anywhere. hopeless_elsewhere: another host
    has reported that it cannot start it. alone: no other host could.
    """

    job: str
    incarnation: str
    wanted: bool = False
    member: bool = False
    registered: bool = False
    living: bool = False
    over: bool = False
    hopeless_elsewhere: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A torchrun of ours. exit_code: of a dead one, None = unknown (it is not our child)."""

    job: str
    incarnation: str
    alive: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of a job here. since: when the present torchrun was started or found; None = there is none."""

    incarnation: str
    since: float | None = None
    registered: bool = False
    idle_since: float | None = None
    over_since: float | None = None
    asked_at: float | None = None  # to end
    killed_at: float | None = None
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start a torchrun of this job."""

    job: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the torchrun to end (SIGTERM): it leaves its round, and the workers may save."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the torchrun at once (SIGKILL); its reaper ends the workers."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """Tell that torchruns of this job die here."""

    job: str
    failures: int
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job: its torchrun starts nowhere."""

    job: str


@dataclass(frozen=True, slots=True)
class Close:
    """The dead torchrun is done with: remove its secrets; its logs stay."""

    job: str


Instruction = Start | Terminate | Kill | Report | GiveUp | Close
Memory = Mapping[str, Track]


@dataclass(frozen=True, slots=True)
class Step:
    """What to remember and what to do. wake_in_s: something becomes due by time alone."""

    memory: Memory
    instructions: tuple[Instruction, ...] = ()
    wake_in_s: float = field(default=float("inf"))


def reconcile(
    now: float,
    current: bool,
    jobs: Mapping[str, Seen],
    runs: Mapping[str, Run],
    memory: Memory,
    times: NodeTimes,
    draining: bool = False,
) -> Step:
    """One step. `current`: the picture in `jobs` is up to date; otherwise nothing is done (but for draining).

    `now`: seconds on the daemon's monotonic clock. Level-triggered: an instruction that failed comes again.
    """
    if not current and not draining:
        return Step(memory)
    kept: dict[str, Track] = {}
    found: list[Instruction] = []
    for job in sorted({*jobs, *runs, *memory}):
        seen, run = jobs.get(job), runs.get(job)
        track = _track(now, seen, run, memory.get(job))
        if track is None:
            continue
        if run is not None and run.alive:
            track, instructions = _look_after(now, seen, run, track, times, draining)
        else:
            track, instructions = _without(now, seen, run, track, times)
            if draining:
                instructions = [i for i in instructions if isinstance(i, Close)]
        found += instructions
        if run is not None or (seen is not None and not seen.over and (seen.wanted or track.failures)):
            kept[job] = track
    return Step(kept, tuple(found), _wake(now, kept, times))


def _track(now: float, seen: Seen | None, run: Run | None, track: Track | None) -> Track | None:
    """The memory of this job, begun anew for another run of it or for a torchrun that was just found."""
    incarnation = run.incarnation if run is not None else seen.incarnation if seen is not None else None
    if incarnation is None:
        return None
    if track is None or track.incarnation != incarnation:
        track = Track(incarnation)
    if run is not None and run.alive and track.since is None:
        track = replace(track, since=now, asked_at=None, killed_at=None, idle_since=None, registered=False)
    return track


def _look_after(
    now: float, seen: Seen | None, run: Run, track: Track, times: NodeTimes, draining: bool
) -> tuple[Track, list[Instruction]]:
    """A living torchrun: leave it alone, or make it end, first by asking."""
    ours = seen is not None and seen.incarnation == run.incarnation
    over = ours and seen is not None and seen.over
    needed = ours and seen is not None and not over and (seen.wanted or seen.member)
    track = replace(
        track,
        registered=track.registered or (ours and seen is not None and seen.registered),
        idle_since=None if needed or over else track.idle_since if track.idle_since is not None else now,
        over_since=(track.over_since if track.over_since is not None else now) if over else None,
    )
    assert track.since is not None
    if track.failures and track.registered and now - track.since >= times.stable_s:
        track = replace(track, failures=0)
    if track.asked_at is not None:
        late = now - (track.killed_at if track.killed_at is not None else track.asked_at) >= times.kill_s
        if not late:
            return track, []
        return replace(track, killed_at=now), [Kill(run.job, f"it has not ended {times.kill_s:g} s after SIGTERM")]
    why = ""
    if draining:
        why = "this heet-agent ends"
    elif seen is not None and not ours:
        why = "another run of this job has begun"
    elif track.over_since is not None and now - track.over_since >= times.end_s:
        why = f"the job ended {times.end_s:g} s ago"
    elif track.idle_since is not None and now - track.idle_since >= times.idle_s:
        why = f"the job has had nothing here for {times.idle_s:g} s"
    return (replace(track, asked_at=now), [Terminate(run.job, why)]) if why else (track, [])


def _without(
    now: float, seen: Seen | None, run: Run | None, track: Track, times: NodeTimes
) -> tuple[Track, list[Instruction]]:
    """No living torchrun: note a death, then start one where it is wanted."""
    instructions: list[Instruction] = []
    wanted = seen is not None and seen.wanted and not seen.over
    if run is not None:
        same = seen is not None and seen.incarnation == run.incarnation and not seen.over
        if same and track.asked_at is None and track.since is not None:
            track = _after_death(now, track, times)
        elif seen is not None and seen.incarnation != run.incarnation:
            track = Track(seen.incarnation)
        track = replace(track, since=None, asked_at=None, killed_at=None, idle_since=None, over_since=None)
        if track.failures and same:
            instructions.append(Report(run.job, track.failures, run.exit_code))
        instructions.append(Close(run.job))
    if wanted and seen is not None and _hopeless(seen, track, times):
        return track, [*instructions, GiveUp(seen.job)]
    if wanted and seen is not None and now >= track.retry_at:
        instructions.append(Start(seen.job))
        track = replace(track, since=now)  # it may be dead before it is ever seen alive, and that is a death too
    return track, instructions


def _after_death(now: float, track: Track, times: NodeTimes) -> Track:
    """Count it; a torchrun that was registered and lived for a while starts a new count."""
    lived = track.registered and track.since is not None and now - track.since >= times.stable_s
    failures = 1 if lived else track.failures + 1
    pause_s = min(times.backoff_s * 2.0 ** min(failures - 1, 30), times.backoff_most_s)
    return replace(track, failures=failures, retry_at=now + pause_s)


def _hopeless(seen: Seen, track: Track, times: NodeTimes) -> bool:
    """Whether the job's own command must be at fault: it starts neither here nor on another host, and runs nowhere.

    One host alone proves nothing where there are others: it may be the host that is broken.
    """
    tried = track.failures >= times.hopeless and not track.registered and not seen.living
    return tried and (seen.hopeless_elsewhere or seen.alone)


def _wake(now: float, memory: Memory, times: NodeTimes) -> float:
    moments = []
    for track in memory.values():
        if track.since is None:
            moments.append(track.retry_at)
        for since, span in ((track.idle_since, times.idle_s), (track.over_since, times.end_s)):
            if since is not None and track.asked_at is None:
                moments.append(since + span)
        last = track.killed_at if track.killed_at is not None else track.asked_at
        if last is not None:
            moments.append(last + times.kill_s)
    return max(min((m for m in moments if m > now), default=float("inf")) - now, 0.0)
