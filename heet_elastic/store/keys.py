"""Names of the keys: the protocol between coordinator, agents and people (docs/protocol.md).

Ids are percent-encoded, so two ids never collide and none escapes the prefix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

DEFAULT_PREFIX = "/heet/v1"

_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*[A-Za-z0-9_~-][A-Za-z0-9_.~-]*")
"""Segments that stand for themselves: not percent-encoded, and not dots alone."""

_ROUND = re.compile(r"[0-9]{12}")


def encode_id(text: str) -> str:
    """`text` as one path segment of a key. Injective: `decode_id` gives it back."""
    encoded = quote(text, safe="")
    # quote leaves dots alone; a segment of dots alone would read as a path in tools that show keys as files.
    return encoded.replace(".", "%2E") if set(encoded) <= {"."} else encoded


def decode_id(segment: str) -> str:
    """The id that `encode_id` made into this segment."""
    return unquote(segment)


def _canonical(segment: str) -> bool:
    if _PLAIN.fullmatch(segment):
        return True
    return segment != "" and segment.isascii() and encode_id(decode_id(segment)) == segment


@dataclass(frozen=True, slots=True)
class Name:
    """What a key is about: its kind and the ids in it. `round` is 0 where the kind has none."""

    kind: str
    job: str = ""
    who: str = ""  # agent or host
    host: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under one prefix."""

    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        if not self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise ValueError(f"prefix {self.prefix!r}: expected something like {DEFAULT_PREFIX}, without a final slash")

    @property
    def root(self) -> str:
        """Prefix of every key of this heet."""
        return f"{self.prefix}/"

    @property
    def store_id(self) -> str:
        """Random id of the store, compared in every transaction."""
        return f"{self.prefix}/store_id"

    @property
    def epoch(self) -> str:
        """A coordinator has led here."""
        return f"{self.prefix}/epoch"

    @property
    def leader(self) -> str:
        """Coordinator election."""
        return f"{self.prefix}/leader"

    @property
    def hosts(self) -> str:
        """Prefix of all host records."""
        return f"{self.prefix}/hosts/"

    @property
    def jobs(self) -> str:
        """Prefix of all jobs."""
        return f"{self.prefix}/jobs/"

    @property
    def profiles(self) -> str:
        """Prefix of all profiles."""
        return f"{self.prefix}/profiles/"

    @property
    def claims_root(self) -> str:
        """Prefix of all claims."""
        return f"{self.prefix}/claims/"

    @property
    def nodes(self) -> str:
        """Prefix of what heet-agents say of themselves."""
        return f"{self.prefix}/nodes/"

    def node(self, host: str) -> str:
        """`agents.node_records.NodeRecord`: where a host's heet-agent listens, and the token that it wants to see."""
        return f"{self.nodes}{encode_id(host)}"

    def host(self, host: str, agent: str) -> str:
        """One process's record of its host."""
        return f"{self.hosts}{encode_id(host)}/{encode_id(agent)}"

    def claims(self, host: str) -> str:
        """Devices of a host that self-formed rounds took."""
        return f"{self.claims_root}{encode_id(host)}"

    def profile(self, name: str) -> str:
        """Row of a past job."""
        return f"{self.profiles}{encode_id(name)}"

    def job(self, job: str) -> str:
        """Prefix of everything about one job."""
        return f"{self.jobs}{encode_id(job)}/"

    def spec(self, job: str) -> str:
        """JobSpec."""
        return f"{self.job(job)}spec"

    def allocation(self, job: str) -> str:
        """Allocation."""
        return f"{self.job(job)}allocation"

    def frozen(self, job: str) -> str:
        """Frozen."""
        return f"{self.job(job)}frozen"

    def result(self, job: str) -> str:
        """Result."""
        return f"{self.job(job)}result"

    def ended(self, job: str) -> str:
        """Copy of a young result under a lease of `late_join_s`: who comes while it is there is late, not new."""
        return f"{self.job(job)}ended"

    def account(self, job: str) -> str:
        """Account."""
        return f"{self.job(job)}account"

    def status(self, job: str) -> str:
        """JobStatus."""
        return f"{self.job(job)}status"

    def control(self, job: str) -> str:
        """Control."""
        return f"{self.job(job)}control"

    def agents(self, job: str) -> str:
        """Prefix of the job's agent records."""
        return f"{self.job(job)}agents/"

    def agent(self, job: str, agent: str) -> str:
        """AgentRecord."""
        return f"{self.agents(job)}{encode_id(agent)}"

    def wanted(self, job: str, host: str) -> str:
        """Wanted."""
        return f"{self.job(job)}wanted/{encode_id(host)}"

    def command(self, job: str) -> str:
        """`agents.node_records.JobCommand` of a submitted job; may hold secrets, so no snapshot shows it."""
        return f"{self.job(job)}command"

    def start(self, job: str, host: str) -> str:
        """`agents.node_records.StartReport`: a heet-agent could not keep a torchrun of this job alive."""
        return f"{self.job(job)}starts/{encode_id(host)}"

    def done(self, job: str, agent: str) -> str:
        """Done."""
        return f"{self.job(job)}done/{encode_id(agent)}"

    def samples(self, job: str, agent: str) -> str:
        """SampleRecord."""
        return f"{self.job(job)}samples/{encode_id(agent)}"

    def round_store(self, job: str, round_: int) -> str:
        """RoundStore."""
        return f"{self.job(job)}rounds/{round_:012d}/store"

    def failures(self, job: str) -> str:
        """Prefix of the job's failures."""
        return f"{self.job(job)}failures/"

    def failures_of(self, job: str, round_: int) -> str:
        """Prefix of the failures of one round."""
        return f"{self.failures(job)}{round_:012d}/"

    def run(self, job: str) -> tuple[str, ...]:
        """Every key of a job's run but its spec; those that end in a slash are prefixes."""
        single = ("allocation", "frozen", "result", "ended", "account", "status", "control", "command")
        several = ("agents/", "wanted/", "starts/", "done/", "samples/", "rounds/", "failures/")
        return tuple(f"{self.job(job)}{name}" for name in single + several)

    def failure(self, job: str, round_: int, agent: str) -> str:
        """Failure."""
        return f"{self.failures_of(job, round_)}{encode_id(agent)}"

    def parse(self, key: str) -> Name | None:
        """What `key` is about; None when heet does not know it (a newer version's, or somebody's own).

        Only the one spelling that this class gives an id is known, so that no two keys are about the same thing.
        """
        if not key.startswith(self.root):
            return None
        segments = key[len(self.root) :].split("/")
        if not all(map(_canonical, segments)):
            return None
        match segments:
            case ["store_id" | "epoch" | "leader" as kind]:
                return Name(kind)
            case ["hosts", host, agent]:
                return Name("host", who=decode_id(agent), host=decode_id(host))
            case ["claims", host]:
                return Name("claims", host=decode_id(host))
            case ["nodes", host]:
                return Name("node", host=decode_id(host))
            case ["profiles", name]:
                return Name("profile", who=decode_id(name))
            case [
                "jobs",
                job,
                (
                    "spec" | "allocation" | "frozen" | "result" | "ended" | "account" | "status" | "control" | "command"
                ) as kind,
            ]:
                return Name(kind, job=decode_id(job))
            case ["jobs", job, "agents", agent]:
                return Name("agent", job=decode_id(job), who=decode_id(agent))
            case ["jobs", job, "wanted", host]:
                return Name("wanted", job=decode_id(job), host=decode_id(host))
            case ["jobs", job, "starts", host]:
                return Name("start", job=decode_id(job), host=decode_id(host))
            case ["jobs", job, "done" | "samples" as kind, agent]:
                return Name(kind, job=decode_id(job), who=decode_id(agent))
            case ["jobs", job, "rounds", number, "store"] if _ROUND.fullmatch(number):
                return Name("round_store", job=decode_id(job), round=int(number))
            case ["jobs", job, "failures", number, agent] if _ROUND.fullmatch(number):
                return Name("failure", job=decode_id(job), who=decode_id(agent), round=int(number))
            case _:
                return None
