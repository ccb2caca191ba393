"""The values that every room speaks: devices, hosts, jobs, agents, rounds, samples; and the phases of a job.

Every record is frozen and holds only JSON types, tuples and other records, so that it is stored as it is
(`heet_elastic.store.records`). Durations are seconds, memory is MiB, speeds are in the job's own work unit per second.
No wall clock of one host is ever compared with another's: what must outlive a process is stored as a duration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, Literal, TypeVar

MAX_ID_LENGTH = 128
"""Longest job, host or agent name, in characters."""

WorkUnit = Literal["steps", "samples", "epochs"]
LinkClass = Literal["nvswitch", "nvlink", "pcie", "none", "unknown"]
T = TypeVar("T")


class Cause(StrEnum):
    """Why a round was formed. Only `FAILURE` costs a restart."""

    PLAN = "plan"
    MEMBERSHIP = "membership"
    FAILURE = "failure"


class AgentState(StrEnum):
    """What one torchrun process is doing, always together with a round (docs/protocol.md)."""

    WAITING = "waiting"  # offers itself; its workers are gone and its devices free
    STARTING = "starting"  # member of `round`: old workers are gone, now locks and the round's store
    RUNNING = "running"  # the round is complete, workers are started
    FAILED = "failed"  # own workers of `round` failed
    STOPPING = "stopping"  # not in the newest round any more (or it changed): old workers are ending
    SUCCEEDED = "succeeded"  # own workers of `round` all ended with 0
    LEAVING = "leaving"  # got SIGTERM or SIGINT


class Phase(StrEnum):
    """Where a job stands; derived from the store, never stored itself except as the coordinator's last word."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    RESCALING = "rescaling"
    PAUSED = "paused"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[Phase, frozenset[Phase]] = MappingProxyType(
    {
        Phase.WAITING: frozenset({Phase.STARTING, Phase.PAUSED, Phase.FAILED, Phase.CANCELLED}),
        Phase.STARTING: frozenset(
            {Phase.RUNNING, Phase.RESCALING, Phase.WAITING, Phase.PAUSED, Phase.FINISHING, Phase.FAILED}
            | {Phase.CANCELLED, Phase.SUCCEEDED}
        ),
        Phase.RUNNING: frozenset(
            {Phase.RESCALING, Phase.WAITING, Phase.PAUSED, Phase.FINISHING, Phase.SUCCEEDED, Phase.FAILED}
            | {Phase.CANCELLED}
        ),
        Phase.RESCALING: frozenset(
            {Phase.RUNNING, Phase.STARTING, Phase.WAITING, Phase.PAUSED, Phase.FINISHING, Phase.SUCCEEDED}
            | {Phase.FAILED, Phase.CANCELLED}
        ),
        Phase.PAUSED: frozenset({Phase.WAITING, Phase.STARTING, Phase.FAILED, Phase.CANCELLED, Phase.SUCCEEDED}),
        Phase.FINISHING: frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.RESCALING, Phase.CANCELLED, Phase.WAITING}),
        Phase.SUCCEEDED: frozenset(),
        Phase.FAILED: frozenset(),
        Phase.CANCELLED: frozenset(),
    }
)
"""Phases that may follow each other. A phase may always repeat; the diagram in docs/architecture.md comes from this."""


@lru_cache(maxsize=65536)
def check_id(kind: str, text: str) -> str:
    """Return `text` if it can name a job, host or agent; ValueError with a sentence otherwise.

    Any characters are allowed (they are percent-encoded in keys) but control characters, which no log shows.
    """
    if not text:
        raise ValueError(f"the {kind} is empty: give it a name")
    if len(text) > MAX_ID_LENGTH:
        raise ValueError(
            f"the {kind} has {len(text)} characters, at most {MAX_ID_LENGTH} are allowed: {text[:40]!r}..."
        )
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise ValueError(f"the {kind} {text!r} contains a control character: use printable characters")
    return text


def _finite(name: str, value: float, low: float = 0.0) -> None:
    if not math.isfinite(value) or value < low:
        raise ValueError(f"{name} is {value}: expected a finite number >= {low:g}")


# --------------------------------------------------------------------------- hardware


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device that a worker can own: a GPU, a MIG instance or a CPU slot.

    `host_type` = model + memory + link class: what predictions are about. The number of GPUs of a host is its
    capacity and no part of the type. None = unknown, never 0.
    """

    uuid: str
    host_type: str
    model: str
    memory_mib: int | None = None
    capability: str | None = None
    link: LinkClass = "unknown"
    numa_node: int | None = None
    unusable: str | None = None  # the reason, when it must not be granted

    def __post_init__(self) -> None:
        check_id("device id", self.uuid)
        check_id("host type", self.host_type)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What one process knows about its host; stored at hosts/<host>/<agent> under that process's lease."""

    host: str
    agent: str
    address: str
    boot_id: str
    gpus: tuple[Gpu, ...]
    locked: tuple[str, ...] = ()  # devices whose lock somebody on this host holds, as last tried by an idle agent
    network: str = "unknown"  # class of the network between hosts, e.g. "10GbE", "rdma"
    version: str = ""

    def __post_init__(self) -> None:
        check_id("host name", self.host)
        if len({g.uuid for g in self.gpus}) != len(self.gpus):
            raise ValueError(f"host {self.host!r} lists one device twice")


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """The cell of the throughput table: (host type, workers, hosts spanned). Samples, table and policies share it."""

    host_type: str
    workers: int
    hosts: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1 or not 1 <= self.hosts <= self.workers:
            raise ValueError(f"{self.workers} workers over {self.hosts} hosts is no configuration")

    def __str__(self) -> str:
        over = "" if self.hosts == 1 else f" over {self.hosts} hosts"
        return f"{self.workers} x {self.host_type}{over}"


# --------------------------------------------------------------------------- jobs


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the first agent of a job asks for; stored once per incarnation at jobs/<job>/spec.

    A worker count w is allowed iff min_workers <= w <= max_workers (None: as many as the offering agents allow),
    w is in `allowed_workers` when that is given, and w is a multiple of `multiple_of`. A rigid job takes `min_hosts`
    whole agents (all of their `--nproc-per-node`) or nothing.
    """

    job: str
    name: str
    incarnation: str
    min_hosts: int = 1
    max_hosts: int = 1
    min_workers: int = 1
    max_workers: int | None = None
    allowed_workers: tuple[int, ...] = ()
    multiple_of: int = 1
    priority: float = 1.0
    total_work: float | None = None
    work_unit: WorkUnit = "steps"
    script: str = ""  # basename
    user: str = ""
    origin: str = ""  # what started it, e.g. the Slurm job: another origin is another run
    submitted: bool = False  # heet-agents can start torchruns of it; no part of what is compared under a live id
    requested_workers: int | None = None  # what a launcher without elasticity would ask for; None = its fewest agents
    most_per_host: int | None = None  # submitted: --nproc-per-node of every torchrun of it; None = what each host has

    def __post_init__(self) -> None:
        check_id("job id", self.job)
        if not 1 <= self.min_hosts <= self.max_hosts:
            raise ValueError(f"hosts {self.min_hosts}:{self.max_hosts}: expected 1 <= MIN <= MAX")
        if self.min_workers < 1 or (self.max_workers is not None and self.max_workers < self.min_workers):
            raise ValueError(f"workers {self.min_workers}:{self.max_workers}: expected 1 <= min_workers <= max_workers")
        if self.most_per_host is not None and self.most_per_host < 1:
            raise ValueError(f"{self.most_per_host} workers per host: expected at least 1")
        if self.multiple_of < 1:
            raise ValueError(f"multiple_of is {self.multiple_of}: expected a whole number >= 1")
        if any(w < 1 for w in self.allowed_workers):
            raise ValueError(f"workers={self.allowed_workers}: expected whole numbers >= 1")
        _finite("priority", self.priority, 1e-6)
        if self.total_work is not None:
            _finite("total work", self.total_work)

    @property
    def rigid(self) -> bool:
        """Whether the job takes whole agents or nothing (`--nnodes=N`)."""
        return self.min_hosts == self.max_hosts

    def allows(self, workers: int) -> bool:
        """Whether this world size is allowed by the spec alone."""
        if workers < self.min_workers or (self.max_workers is not None and workers > self.max_workers):
            return False
        return workers % self.multiple_of == 0 and (not self.allowed_workers or workers in self.allowed_workers)


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One torchrun process of a job; stored at jobs/<job>/agents/<agent> under its lease.

    `round` is the newest round that the state is about; `clean` says that no worker of any round below it lives and
    none of their devices is locked by this agent: a device that this agent was granted in a round < clean is free.
    """

    agent: str
    host: str
    address: str
    state: AgentState
    round: int = 0
    clean: int = 0
    most_workers: int = 1
    max_restarts: int = 0
    incarnation: str = ""
    pid: int = 0
    busy: tuple[str, ...] = ()  # granted devices whose lock somebody else holds
    busy_holder: str = ""
    died_of_sigterm: bool = False  # failed(n): a worker died of a SIGTERM that its agent did not send

    def __post_init__(self) -> None:
        check_id("agent id", self.agent)
        check_id("host name", self.host)
        if self.most_workers < 1:
            raise ValueError(f"agent {self.agent} offers {self.most_workers} workers: expected at least 1")


@dataclass(frozen=True, slots=True)
class Member:
    """An agent in a round, with the devices that it runs one worker on each. Its position gives its ranks."""

    agent: str
    host: str
    gpus: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.gpus or len(set(self.gpus)) != len(self.gpus):
            raise ValueError(f"member {self.agent} must hold at least one device and none twice: {self.gpus}")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Round `round` of a job: who takes part, in rank order, and why; stored at jobs/<job>/allocation.

    An allocation without members tells everybody to wait. `configuration` is None without members and for mixed types.
    """

    round: int
    cause: Cause
    members: tuple[Member, ...]
    reason: str
    restarts_used: int = 0
    incarnation: str = ""
    configuration: Configuration | None = None
    leader: str = ""  # UUID of the coordinator that planned it; empty for rounds that members wrote
    grace: bool = True  # old workers get the full grace on SIGTERM; False after a lost peer or a failure
    releasing: tuple[Member, ...] = ()  # devices of earlier rounds that were not yet free (coordinator.decide.devices)
    probe: bool = False  # only measures, or is on the way there or back (coordinator.decide.probes)
    survivors: tuple[Member, ...] = ()  # members whose workers of an earlier round may still run (rendezvous.copies)
    takers: tuple[str, ...] = ()  # members whose devices' locks prove that vanished members' workers are gone

    def __post_init__(self) -> None:
        if self.round < 1:
            raise ValueError(f"round {self.round}: rounds start at 1")
        agents = [m.agent for m in self.members]
        if len(set(agents)) != len(agents):
            raise ValueError(f"round {self.round} names one agent twice")
        devices = [(m.host, g) for m in self.members for g in m.gpus]
        if len(set(devices)) != len(devices):
            raise ValueError(f"round {self.round} grants one device twice")

    @property
    def world_size(self) -> int:
        """Number of workers of the round."""
        return sum(len(m.gpus) for m in self.members)

    def member(self, agent: str) -> Member | None:
        """The member of that name, or None."""
        return next((m for m in self.members if m.agent == agent), None)

    def base_rank(self, agent: str) -> int:
        """Global rank of the agent's first worker; KeyError when it is no member."""
        rank = 0
        for member in self.members:
            if member.agent == agent:
                return rank
            rank += len(member.gpus)
        raise KeyError(agent)


@dataclass(frozen=True, slots=True)
class RoundStore:
    """Address of a round's TCPStore, published by its rank-0 agent at jobs/<job>/rounds/<n>/store."""

    round: int
    agent: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's own failure; stored at jobs/<job>/failures/<round>/<agent>.

    `secondary`: a collective or connection error, that is, the echo of somebody else's failure.
    """

    round: int
    agent: str
    host: str
    rank: int
    exit_code: int
    error: str
    place: str = ""  # exception type, file and line: the same in all workers and no step yet = the script itself
    steps: int = 0
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """An agent's workers all ended with 0; stored at jobs/<job>/done/<agent>."""

    agent: str
    round: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """The first worker that ended with 0 froze the job at this round: no plan from then on."""

    agent: str
    round: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended; stored at jobs/<job>/result until retention ends."""

    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str
    incarnation: str
    round: int = 0
    exit_code: int = 0
    work_done: float | None = None
    ran_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The coordinator asks a host's heet-agent for one torchrun of this job; jobs/<job>/wanted/<host>."""

    host: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class PastRound:
    """A round of a job and who took part."""

    round: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A host that this job must not use for another `remaining_s` seconds."""

    host: str
    remaining_s: float
    strikes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Account:
    """Durations of a job that must outlive a coordinator; jobs/<job>/account, written by the leader only."""

    incarnation: str = ""
    age_s: float = 0.0  # since the job was first seen
    waited_s: float = 0.0  # without any worker, since it last had one
    ran_s: float = 0.0
    since_rescale_s: float | None = None  # None = never rescaled
    rescales: int = 0
    rescale_up_s: float | None = None  # learned costs; None = not yet seen
    rescale_down_s: float | None = None
    received_s: tuple[tuple[str, float], ...] = ()  # GPU seconds by host type
    exclusions: tuple[Exclusion, ...] = ()
    rounds_seen: int = 0
    paused: bool = False
    may_run: tuple[PastRound, ...] = ()  # rounds whose workers may still run (coordinator.decide.copies)
    probes: int = 0  # probe rounds begun, and what they are charged with
    probe_s: float = 0.0
    first_seen: float | None = None  # wall clock of the coordinator that saw it first; nothing is decided by it


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The coordinator's last word on a job, for people: what `heet explain` shows; jobs/<job>/status."""

    phase: Phase
    reason: str
    queue_position: int | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Control:
    """What a person asked of a job (`heet pause`, `heet cancel`, `heet priority`); jobs/<job>/control."""

    action: Literal["run", "pause", "cancel"] = "run"
    priority: float | None = None
    released: tuple[str, ...] = ()  # vanished hosts that a person declared dead (`heet release`)


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads; stored at leader under the coordinator's lease. `uuid` is new at every election."""

    uuid: str
    host: str
    pid: int
    policy: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Created once by the first leader ever and never deleted: a coordinator has led here."""

    uuid: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices of a host that a self-formed round took; claims/<host>, void when the agent's record is gone."""

    job: str
    agent: str
    round: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims on one host."""

    host: str
    claims: tuple[Claim, ...] = ()


# --------------------------------------------------------------------------- samples


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """Physical facts of a job that a worker can see; None = unknown."""

    parameters: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    dtype: str | None = None
    batch_per_worker: float | None = None
    tokens_per_sample: float | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class CellCounters:
    """What one agent has seen of one configuration, cumulative. Steps count once a job, samples and tokens add up.

    `steps` were made in `seconds` (the first step of a round only starts the clock). `step_s` is the robust (median
    over windows) time of one optimizer step, `step_spread_s` its median absolute deviation; `local_*` are of this
    agent's workers alone. An agent has one of these per configuration and number of its own workers in it.
    `paused_s`: checkpoints and evaluation, in neither `seconds` nor `step_s`; `stalled_s`: the part of `seconds` lost
    in windows far slower than the median (data, other users of the machine); `compute_s`: time from the first forward
    pass of a step to its end, 0 = unknown: `step_s - compute_s` is spent waiting for data.
    """

    configuration: Configuration
    seconds: float
    steps: int
    local_samples: float
    local_tokens: float
    step_s: float
    step_spread_s: float
    windows: int
    local_workers: int
    paused_s: float = 0.0
    stalled_s: float = 0.0
    compute_s: float = 0.0

    def __post_init__(self) -> None:
        times = ("seconds", "step_s", "step_spread_s", "paused_s", "stalled_s", "compute_s")
        for name in (*times, "local_samples", "local_tokens"):
            _finite(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """What one agent's workers did in one round, counted from the round's start.

    `marks`: checkpoints noticed, the last at `marked_*`. `loads`: optimizer states loaded, `weight_loads`: model
    weights alone; `loaded_steps`: step count found in a loaded optimizer state, None = none. `start_*`: position at
    which the round began, where the record no longer lists the rounds before it.
    """

    round: int
    steps: float = 0.0
    samples: float = 0.0
    marks: int = 0
    marked_steps: float = 0.0
    marked_samples: float = 0.0
    loads: int = 0
    weight_loads: int = 0
    loaded_steps: float | None = None
    done: float | None = None
    total: float | None = None
    start_steps: float | None = None
    start_samples: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is: the last checkpoint mark plus new steps.

    `certain` is False once a restart's position was not seen (no checkpoint noticed, no step count loaded) and had to
    be assumed, and while nothing was counted.
    """

    steps: float = 0.0
    samples: float = 0.0
    marked_steps: float = 0.0
    marked_samples: float = 0.0
    highest_steps: float = 0.0
    lost_steps: float = 0.0
    done: float | None = None  # told by the script: heet_elastic.progress(done, total)
    total: float | None = None
    certain: bool = False


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """Cumulative counters of one agent; stored at jobs/<job>/samples/<agent>.

    `progress` is this agent's own view; a job's is folded from the `rounds` of all its agents
    (`heet_elastic.predictor.samples`). `problems`: what its samplers could not see or do.
    """

    agent: str
    round: int
    cells: tuple[CellCounters, ...] = ()
    progress: Progress = field(default_factory=Progress)
    features: JobFeatures | None = None
    datagrams: int = 0
    rounds: tuple[RoundProgress, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured cell of a job, merged over agents: work units per second with its weight."""

    throughput: float
    seconds: float
    count: int
    spread: float = 0.0  # relative
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Row of a past job for the predictor; profiles/<name>."""

    name: str
    cells: tuple[tuple[Configuration, Cell], ...]
    features: JobFeatures | None = None
    work: float | None = None
    work_unit: WorkUnit = "steps"
    family: str = ""


# --------------------------------------------------------------------------- snapshot


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A record with the revisions of its key."""

    record: T
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything the store says about one job, decoded. Unreadable records are absent (and reported elsewhere)."""

    job: str
    spec: Versioned[JobSpec] | None = None
    allocation: Versioned[Allocation] | None = None
    agents: Mapping[str, Versioned[AgentRecord]] = field(default_factory=dict)
    failures: Mapping[tuple[int, str], Versioned[Failure]] = field(default_factory=dict)
    stores: Mapping[int, RoundStore] = field(default_factory=dict)
    done: Mapping[str, Done] = field(default_factory=dict)
    frozen: Versioned[Frozen] | None = None
    result: Versioned[Result] | None = None
    samples: Mapping[str, SampleRecord] = field(default_factory=dict)
    account: Versioned[Account] | None = None
    status: Versioned[JobStatus] | None = None
    control: Versioned[Control] | None = None
    wanted: Mapping[str, Versioned[Wanted]] = field(default_factory=dict)
    ended: Result | None = (
        None  # the result is young (a key under a lease of late_join_s): latecomers belong to that run
    )


@dataclass(frozen=True, slots=True)
class Host:
    """A host as merged from the records of its live processes: devices by UUID, in UUID order."""

    name: str
    gpus: tuple[Gpu, ...]
    address: str = ""
    boot_id: str = ""
    agents: tuple[str, ...] = ()
    locked: frozenset[str] = frozenset()
    visible: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by process: what it sees; absent = all


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `decide` sees: the store at one revision, decoded."""

    revision: int
    hosts: Mapping[str, Host] = field(default_factory=dict)
    jobs: Mapping[str, JobView] = field(default_factory=dict)
    leader: Versioned[LeaderRecord] | None = None
    epoch: Epoch | None = None
    claims: Mapping[str, Versioned[Claims]] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)


def order_members(previous: Allocation | None, members: Iterable[Member]) -> tuple[Member, ...]:
    """Members in rank order: survivors keep their order, so rank 0 is one; new ones follow, grouped by host.

    Independent of the order in which `members` come.
    """
    before = {} if previous is None else {m.agent: i for i, m in enumerate(previous.members)}
    return tuple(sorted(members, key=lambda m: (before.get(m.agent, len(before)), m.host, m.agent)))


def configuration_of(members: Iterable[Member], types: Mapping[tuple[str, str], str]) -> Configuration | None:
    """The configuration that these members run; None without members, for mixed or unknown host types.

    `types` maps (host, device) to host type.
    """
    members = tuple(members)
    kinds = {types.get((m.host, g)) for m in members for g in m.gpus}
    if len(kinds) != 1 or None in kinds:
        return None
    workers = sum(len(m.gpus) for m in members)
    return Configuration(str(kinds.pop()), workers, len({m.host for m in members}))


def merge_hosts(records: Iterable[HostRecord]) -> dict[str, Host]:
    """One Host per name from the records of its processes; independent of the order of records.

    A device that any process calls unusable is unusable; a host is gone when its last record is.
    """
    by_host: dict[str, list[HostRecord]] = {}
    for record in records:
        by_host.setdefault(record.host, []).append(record)
    hosts = {}
    for name, group in sorted(by_host.items()):
        group.sort(key=lambda r: r.agent)
        gpus: dict[str, Gpu] = {}
        for gpu in (g for record in group for g in record.gpus):
            known = gpus.get(gpu.uuid)
            if known is None or (known.unusable is None and gpu.unusable is not None):
                gpus[gpu.uuid] = gpu
        hosts[name] = Host(
            name=name,
            gpus=tuple(gpus[u] for u in sorted(gpus)),
            address=group[0].address,
            boot_id=group[0].boot_id,
            agents=tuple(r.agent for r in group),
            locked=frozenset(u for r in group for u in r.locked),
            visible={r.agent: frozenset(g.uuid for g in r.gpus) for r in group if len(r.gpus) < len(gpus)},
        )
    return hosts


def check_invariants(snapshot: Snapshot) -> list[str]:
    """Sentences about what must never be true of the store; empty when all is well.

    No device in the allocations of two live jobs; every member once (held by Allocation itself).
    """
    wrong = []
    holder: dict[tuple[str, str], str] = {}
    for job, view in sorted(snapshot.jobs.items()):
        if view.allocation is None or view.result is not None:
            continue
        for member in view.allocation.record.members:
            for gpu in member.gpus:
                other = holder.setdefault((member.host, gpu), job)
                if other != job:
                    wrong.append(f"device {gpu} of {member.host} is granted to {other} and to {job}")
    return wrong
