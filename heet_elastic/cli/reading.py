"""Logs of a job as its hosts have them: which stream is which rank, and reading on from where one stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heet_elastic.agents import node_api
from heet_elastic.agents.node_logs import Piece
from heet_elastic.agents.node_records import NodeRecord
from heet_elastic.errors import HeetError, RecordError, UsageError
from heet_elastic.model import Allocation
from heet_elastic.store.api import Store
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode


@dataclass(frozen=True, slots=True)
class Source:
    """One stream of one host."""

    host: str
    stream: str


def read_nodes(store: Store, keys: Keys) -> dict[str, NodeRecord]:
    """Where the heet-agents answer, by host. Unreadable records are left out."""
    found = {}
    for key, entry in store.read(keys.nodes).entries.items():
        try:
            record = decode(key, entry.value, NodeRecord)
        except RecordError:
            continue
        found[record.host] = record
    return found


def source_of_rank(allocation: Allocation, rank: int) -> Source | None:
    """Where a global rank of this round writes; None where the round has no such rank."""
    first = 0
    for member in allocation.members:
        if rank < first + len(member.gpus):
            return Source(member.host, str(rank - first))
        first += len(member.gpus)
    return None


def sources_on(nodes: Mapping[str, NodeRecord], job: str, hosts: Sequence[str]) -> tuple[list[Source], list[str]]:
    """Every stream that these hosts have of a job, and sentences about hosts that cannot be asked."""
    found, problems = [], []
    for host in hosts:
        if host not in nodes:
            problems.append(f"host {host} has no heet-agent at present: its logs are on its disk")
            continue
        try:
            found += [Source(host, s) for s in node_api.list_streams(nodes[host], job)]
        except HeetError as e:
            problems.append(str(e))
    return found, problems


class Reader:
    """Reads streams on from where it stopped. One per command."""

    def __init__(self, store: Store, keys: Keys, job: str) -> None:
        self._store, self._keys, self._job = store, keys, job
        self._nodes: dict[str, NodeRecord] = {}
        self._positions: dict[Source, int] = {}

    def nodes(self) -> dict[str, NodeRecord]:
        """The heet-agents as of now."""
        self._nodes = read_nodes(self._store, self._keys)
        return self._nodes

    def start_at(self, source: Source, position: int) -> None:
        """Begin there; negative = so many bytes before the end."""
        self._positions[source] = position

    def more(self, source: Source) -> Piece:
        """What the stream holds after the last piece; empty = nothing new. HeetError where it cannot be had."""
        node = self._nodes.get(source.host) or self.nodes().get(source.host)
        if node is None:
            raise UsageError(f"host {source.host} has no heet-agent at present: its logs are on its disk")
        try:
            piece = node_api.fetch(node, self._job, source.stream, self._positions.get(source, 0))
        except HeetError:
            self._nodes.pop(source.host, None)  # it may have been started anew, with another port and token
            raise
        self._positions[source] = piece.end
        return piece
