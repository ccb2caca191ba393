"""The rendezvous protocol: (now, what the store says, what I know of myself) -> what to write and what to do. Pure.

Level-triggered: every step derives the whole answer from the present state, so an event that is lost, doubled or late,
or a write whose fate is unknown, is mended by the next step. The table (agent state x what is seen -> order, writes):

    own workers | newest round      | asking torch? | order    writes
    none        | none / not in it  | yes           | IDLE     record waiting(clean)
    none        | member of n       | yes           | FORM n   record starting(n)
    running r   | r                 | no            | KEEP     record running(r); an answer when somebody failed
    running r   | n > r             | no            | RESCALE  -
    failed r    | r                 | no            | KEEP     failure + record failed(r); then the verdict
    failed r    | n > r             | no            | RESCALE  -
    succeeded r | any               | no            | KEEP     frozen, done, record succeeded(r)
    any         | any               | leaving       | KEEP     record leaving; the last one: a round without members
    any         | any, result       | any           | FINISH   -

and besides, by any live member: the verdict's round (`verdict.judge`), the job's end (`verdict.ending`), or where no
coordinator ever led, the next round (`selfformed.propose`).
"""

from __future__ import annotations

from dataclasses import fields, replace

from heet_elastic.model import (
    AgentRecord,
    AgentState,
    Allocation,
    Cause,
    Done,
    Frozen,
    JobSpec,
    Result,
    Versioned,
)
from heet_elastic.rendezvous.copies import hindrance, older_are_over
from heet_elastic.rendezvous.selfformed import propose
from heet_elastic.rendezvous.values import (
    Action,
    CreateSpec,
    Local,
    Memory,
    Order,
    ProtocolSettings,
    PutRecord,
    ReplaceJob,
    Restore,
    Step,
    Target,
    Timers,
    WorkerState,
    World,
    WriteDone,
    WriteFailure,
    WriteFrozen,
    WriteResult,
    WriteRound,
)
from heet_elastic.rendezvous.verdict import Standing, Verdict, ending, judge, must_answer, next_round, standings

IDENTITY = (
    "name",
    "min_hosts",
    "max_hosts",
    "min_workers",
    "max_workers",
    "allowed_workers",
    "multiple_of",
    "total_work",
    "work_unit",
    "script",
)
"""Fields of the spec in which all agents of a job must agree."""


def differences(asked: JobSpec, stored: JobSpec) -> str:
    """How `asked` differs from the job that lives under its id, as words; empty when it does not."""
    names = [f.name for f in fields(JobSpec) if f.name in IDENTITY]
    odd = [n for n in names if getattr(asked, n) != getattr(stored, n)]
    return "; ".join(f"{n} is {getattr(asked, n)!r} here and {getattr(stored, n)!r} in the live job" for n in odd)


def advance(now: float, world: World, me: Local, memory: Memory, settings: ProtocolSettings) -> Step:
    """One step of the protocol; never raises, changes nothing."""
    timers = Timers(now, memory.since)
    memory, entry, actions = _enter(world, me, memory)
    if entry is not None:
        return Step(replace(memory, since=timers.since), entry, actions)
    memory = _remember(now, world, memory, me, settings)
    if not world.connected:
        # Cut off: nothing can be judged, the round stands, timers of absence start anew at the reconnect.
        return Step(replace(memory, since={}), _cut_off(world, me, memory, settings))
    actions, reason = _act(world, me, memory, settings, timers)
    return Step(replace(memory, since=timers.since), _target(world, me, memory, reason), actions)


def _cut_off(world: World, me: Local, memory: Memory, settings: ProtocolSettings) -> Target:
    """The round stands, unless the fence time is over: then nobody must count on our workers being alive."""
    if 0 < settings.fence_s < world.silent_s and me.workers in (WorkerState.RUNNING, WorkerState.FAILED):
        return Target(Order.RESCALE, f"cut off from etcd for {world.silent_s:.0f} s: fenced", memory.allocation)
    return _target(world, me, memory, "")


def _enter(world: World, me: Local, memory: Memory) -> tuple[Memory, Target | None, tuple[Action, ...]]:
    """Become part of the job: create, adopt or replace its spec, or be refused. None = we are in it."""
    spec, result = world.job.spec, world.job.result
    if memory.spec is not None:
        return _stay_in(world, me, memory)
    if not world.connected:
        return memory, Target(Order.IDLE, "etcd does not answer"), ()
    if me.asked.submitted:
        return _enter_submitted(world, me, memory)
    if spec is None:
        return memory, Target(Order.IDLE, "the job is being registered"), (CreateSpec(me.asked),)
    differs = differences(me.asked, spec.record)
    # A submitted job lives while it has no agent: it waits for its turn.
    alive = any(a != me.agent for a in world.job.agents) or (spec.record.submitted and result is None)
    if result is not None and result.record.incarnation == spec.record.incarnation:
        if world.job.ended and not differs and me.asked.origin == spec.record.origin:
            return memory, Target(Order.FINISH, result.record.reason, result=result.record), ()
        if not alive:
            replacement = ReplaceJob(me.asked, spec.mod_revision, result.mod_revision)
            return memory, Target(Order.IDLE, "a new run of this id begins"), (replacement,)
        return memory, Target(Order.IDLE, "the run before under this id is still ending"), ()
    if differs or me.asked.origin != spec.record.origin:
        if alive and differs:
            return memory, Target(Order.REFUSE, f"job id {me.asked.job!r} is taken: {differs}"), ()
        if not alive:
            return (
                memory,
                Target(Order.IDLE, "a new run of this id begins"),
                (ReplaceJob(me.asked, spec.mod_revision, 0),),
            )
    return replace(memory, spec=spec.record, generation=world.generation), None, ()


def _enter_submitted(world: World, me: Local, memory: Memory) -> tuple[Memory, Target | None, tuple[Action, ...]]:
    """A heet-agent's torchrun takes part in the run that it was started for and in no other; it begins none."""
    spec, result = world.job.spec, world.job.result
    if spec is None:
        return memory, Target(Order.IDLE, "etcd does not know the job (any more)"), ()
    if spec.record.incarnation != me.asked.incarnation:
        return memory, Target(Order.REFUSE, f"another run of job {me.asked.job!r} has begun under this id"), ()
    if result is not None and result.record.incarnation == spec.record.incarnation:
        return memory, Target(Order.FINISH, result.record.reason, result=result.record), ()
    return replace(memory, spec=spec.record, generation=world.generation), None, ()


def _stay_in(world: World, me: Local, memory: Memory) -> tuple[Memory, Target | None, tuple[Action, ...]]:
    """What another incarnation under our id means: a new run, or (in an emptied store) a newcomer that was faster."""
    spec = world.job.spec
    if not world.connected or spec is None or memory.spec is None:
        return memory, None, ()
    if spec.record.incarnation == memory.spec.incarnation:
        return replace(memory, generation=world.generation), None, ()
    if not memory.member_once:
        return Memory(), Target(Order.IDLE, "the job was registered anew"), ()
    stored, mine = world.job.allocation, memory.allocation
    theirs = (stored.record.round, spec.record.incarnation) if stored else (0, "")
    if memory.generation != world.generation and (mine.round if mine else 0, memory.spec.incarnation) > theirs:
        return memory, None, ()  # put ours back; of two runs that both remember one, the one of more rounds stays
    return memory, Target(Order.REFUSE, f"another run of job {me.asked.job!r} has begun under this id"), ()


def _current(world: World, memory: Memory) -> Versioned[Allocation] | None:
    """The allocation of our incarnation, as the store has it."""
    found = world.job.allocation
    return found if found and memory.spec and found.record.incarnation == memory.spec.incarnation else None


def _remember(now: float, world: World, memory: Memory, me: Local, settings: ProtocolSettings) -> Memory:
    """Keep what an emptied store would lose, and count hosts that are lost soon after they joined."""
    current = _current(world, memory)
    epoch = world.epoch or memory.epoch
    if current is not None and current.record.round > memory.over and older_are_over(world.job, current.record, me):
        memory = replace(memory, over=current.record.round)
    if current is None or (memory.allocation and current.record.round <= memory.allocation.round):
        return replace(memory, epoch=epoch)
    new, old = current.record, memory.allocation
    stay = {m.agent for m in new.members}
    joined = {a: memory.joined.get(a, now) for a in stay}
    flaps = dict(memory.flaps)
    for member in old.members if old and new.cause is Cause.MEMBERSHIP else ():
        # Lost, that is: not merely left out, done, or saying goodbye.
        lost = not {member.agent} & (stay | world.job.done.keys() | world.job.agents.keys())
        if lost and now - memory.joined.get(member.agent, now) < settings.flap_window_s:
            flaps[member.host] = (flaps.get(member.host, (0, 0.0))[0] + 1, now)
    member_once = memory.member_once or me.agent in stay
    return replace(memory, epoch=epoch, allocation=new, joined=joined, flaps=flaps, member_once=member_once)


def record_of(me: Local, memory: Memory) -> AgentRecord:
    """This agent's record as it should be in the store."""
    newest = memory.allocation.round if memory.allocation else 0
    member = memory.allocation is not None and memory.allocation.member(me.agent) is not None
    if me.leaving:
        state, round_ = AgentState.LEAVING, me.workers_round
    elif me.workers is WorkerState.SUCCEEDED:
        state, round_ = AgentState.SUCCEEDED, me.workers_round
    elif me.workers is WorkerState.FAILED:
        state, round_ = AgentState.FAILED, me.workers_round
    elif me.workers is WorkerState.RUNNING:
        state, round_ = AgentState.RUNNING, me.workers_round
    elif member and me.asking and newest > me.formed:
        state, round_ = AgentState.STARTING, newest
    else:
        state, round_ = AgentState.WAITING, newest
    busy = me.busy if me.busy_round == newest else ()
    return AgentRecord(
        agent=me.agent,
        host=me.host,
        address=me.address,
        state=state,
        round=round_,
        clean=me.clean,
        most_workers=me.most_workers,
        max_restarts=me.max_restarts,
        incarnation=memory.spec.incarnation if memory.spec else "",
        pid=me.pid,
        busy=busy,
        busy_holder=me.busy_holder if busy else "",
        died_of_sigterm=me.died_of_sigterm and state is AgentState.FAILED,
    )


def _act(
    world: World, me: Local, memory: Memory, settings: ProtocolSettings, timers: Timers
) -> tuple[tuple[Action, ...], str]:
    """What to write, and why we wait if we do."""
    restore = _restore(world, memory)
    if restore:
        return (restore,), "the store lost this job: putting it back"
    if world.job.result is not None:
        return (), world.job.result.record.reason
    own = _own_writes(world, me, memory)
    current = _current(world, memory)
    spec = memory.spec
    if spec is None or (current is None and world.epoch is not None):
        return own, _waiting_reason(world, "")
    if current is not None and current.record.member(me.agent) is not None:
        decided, hindered = _members_part(world, current, me, memory, settings, timers)
        if decided or hindered:
            return own + decided, hindered
    if world.epoch is None and settings.self_formed and not me.leaving and world.job.frozen is None:
        proposal = propose(world, spec, me, memory, settings, timers)
        return ((*own, proposal.write) if proposal.write else own), proposal.reason
    return own, _waiting_reason(world, "")


def _own_writes(world: World, me: Local, memory: Memory) -> tuple[Action, ...]:
    """This agent's record, failure, success: whatever the store does not have yet."""
    record = record_of(me, memory)
    current = _current(world, memory)
    stored = world.job.agents.get(me.agent)
    incarnation = memory.spec.incarnation if memory.spec else ""
    actions: list[Action] = []
    if me.first_exit and world.job.frozen is None:
        actions.append(WriteFrozen(Frozen(me.agent, me.workers_round, incarnation)))
    if me.workers is WorkerState.SUCCEEDED and me.agent not in world.job.done:
        actions.append(WriteDone(Done(me.agent, me.workers_round, incarnation), record))
        return tuple(actions)
    fresh = current is not None and current.record.round == me.workers_round
    if me.failure is not None and fresh and (me.workers_round, me.agent) not in world.job.failures:
        actions.append(WriteFailure(me.failure, record))
        return tuple(actions)
    answer = current is not None and must_answer(world.job, current.record, me.agent)
    if stored is None or stored.record != record or answer:
        actions.append(PutRecord(record))
    return tuple(actions)


def _members_part(
    world: World,
    current: Versioned[Allocation],
    me: Local,
    memory: Memory,
    settings: ProtocolSettings,
    timers: Timers,
) -> tuple[tuple[Action, ...], str]:
    """What a live member of the current round writes for all: the job's end, the verdict's round, a farewell; or why it
    must not write any yet."""
    allocation = current.record
    end = ending(world, allocation, me, settings, timers)
    if end is not None:
        return (WriteResult(end, current.mod_revision),), ""
    over = memory.over >= allocation.round
    if me.leaving:
        return _farewell(world, current, me, over, settings, timers), ""
    if me.agent in world.job.done:
        return (), ""
    verdict = judge(world, allocation, me, settings, timers)
    if verdict is None:
        return (), ""
    hindered = "" if over else hindrance(world, allocation, verdict.stay)
    if hindered:
        return (), hindered
    staying = [m.agent for m in verdict.stay]
    place = staying.index(me.agent) if me.agent in staying else len(staying)
    if timers.age(f"verdict:{allocation.round}") < place * settings.stagger_s:
        return (), ""
    return _write_verdict(world, current, me, verdict, over), ""


def _write_verdict(
    world: World, current: Versioned[Allocation], me: Local, verdict: Verdict, over: bool
) -> tuple[Action, ...]:
    spec = world.job.spec.record if world.job.spec else me.asked
    outcome = next_round(world, spec, current.record, verdict, over)
    if isinstance(outcome, Result):
        return (WriteResult(outcome, current.mod_revision),)
    return (WriteRound(outcome, current.mod_revision),)


def _farewell(
    world: World, current: Versioned[Allocation], me: Local, over: bool, settings: ProtocolSettings, timers: Timers
) -> tuple[Action, ...]:
    """The last one to leave says that nobody is left, once its own workers are gone, so that the job may start again
    anywhere without proof. And the last survivor of a round that never began makes room for those who must wait for its
    old workers to end: its word is the proof."""
    allocation = current.record
    if me.clean <= allocation.round:
        return ()
    found = standings(world, allocation, me, settings, timers)
    fellows = [a for a, (s, _) in found.items() if a != me.agent and s not in (Standing.GONE, Standing.DONE)]
    if fellows:
        mine = me.agent in {m.agent for m in allocation.survivors} and not allocation.takers
        verdict = judge(world, allocation, me, settings, timers) if mine and not over else None
        if verdict is None or not hindrance(world, allocation, verdict.stay):
            return ()
        return _write_verdict(world, current, me, verdict, over=True)
    if any(s is Standing.GONE for s, _ in found.values()):
        return ()
    new = Allocation(
        allocation.round + 1,
        Cause.MEMBERSHIP,
        (),
        "all agents of the last round left",
        allocation.restarts_used,
        allocation.incarnation,
    )
    return (WriteRound(new, current.mod_revision),)


def _restore(world: World, memory: Memory) -> Restore | None:
    """Put back what an emptied or older store lost. Level-triggered: rounds only grow, so a lower one is a loss."""
    if memory.spec is None or world.job.result is not None:
        return None
    current, stored = world.job.allocation, world.job.spec
    epoch = memory.epoch if world.epoch is None else None
    foreign = stored is None or stored.record.incarnation != memory.spec.incarnation
    mine = memory.allocation
    older = mine is not None and (foreign or current is None or current.record.round < mine.round)
    if epoch is None and not foreign and not older:
        return None
    return Restore(
        epoch,
        memory.spec if foreign else None,
        mine if older else None,
        stored.mod_revision if stored else 0,
        current.mod_revision if current else 0,
    )


def _waiting_reason(world: World, otherwise: str) -> str:
    if world.job.status is not None:
        said, round_ = world.job.status.record.reason, world.job.allocation
        runs = round_ is not None and bool(round_.record.members)
        return f"this agent is a spare now; the job: {said}" if runs else said
    if world.epoch is not None and not world.led:
        return "no coordinator leads now: start heet-coordinator"
    return otherwise or "the coordinator has not decided yet"


def _target(world: World, me: Local, memory: Memory, reason: str) -> Target:
    """The order for the thread that torch runs."""
    result = world.job.result
    if result is not None and memory.spec and result.record.incarnation == memory.spec.incarnation:
        return Target(Order.FINISH, result.record.reason, result=result.record)
    allocation = memory.allocation
    member = allocation is not None and allocation.member(me.agent) is not None
    if me.leaving or me.workers is WorkerState.SUCCEEDED:
        return Target(Order.KEEP, reason, allocation)
    if me.asking:
        if allocation is not None and member and allocation.round > me.formed and not me.leaving:
            return Target(Order.FORM, reason or allocation.reason, allocation)
        return Target(Order.IDLE, reason, allocation)
    if allocation is not None and allocation.round > me.workers_round and me.workers is not WorkerState.NONE:
        return Target(Order.RESCALE, allocation.reason, allocation)
    return Target(Order.KEEP, reason, allocation)
