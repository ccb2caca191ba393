"""From keys and bytes to `model.Snapshot`: only entries that changed are decoded again.

A value that cannot be read, or that speaks of another job, host or agent than its key, is left out and reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from heet_elastic.errors import RecordError
from heet_elastic.model import (
    Claims,
    Epoch,
    Host,
    HostRecord,
    JobView,
    LeaderRecord,
    Profile,
    Snapshot,
    Versioned,
    merge_hosts,
)
from heet_elastic.store.api import Entry, View
from heet_elastic.store.keys import Keys, Name
from heet_elastic.store.records import RECORD_TYPES, decode

_VERSIONED = frozenset(
    {
        "spec",
        "allocation",
        "frozen",
        "result",
        "account",
        "status",
        "control",
        "agent",
        "failure",
        "wanted",
        "leader",
        "claims",
    }
)
"""Kinds that a snapshot holds together with their revisions."""

_FIELD_OF_KIND = {"agent": "agents", "failure": "failures", "round_store": "stores"}
"""Field of JobView where it is not named like the kind."""

_SAYS: Mapping[str, Mapping[str, str]] = {
    "host": {"host": "host", "agent": "who"},
    "claims": {"host": "host"},
    "profile": {"name": "who"},
    "spec": {"job": "job"},
    "agent": {"agent": "who"},
    "wanted": {"host": "host"},
    "done": {"agent": "who"},
    "samples": {"agent": "who"},
    "round_store": {"round": "round"},
    "failure": {"agent": "who", "round": "round"},
}
"""Record fields that must agree with what the key says: field of the record -> field of `Name`."""

_MAPPINGS = frozenset({"agents", "failures", "stores", "done", "samples", "wanted"})

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A snapshot and one sentence for every value that is missing from it because it could not be read."""

    snapshot: Snapshot
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class _State:
    """What the decoder knows after its last view. Mappings that a snapshot has seen are never changed in place."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    host_records: dict[str, dict[str, HostRecord]] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    claims: dict[str, Versioned[Claims]] = field(default_factory=dict)
    profiles: dict[str, Profile] = field(default_factory=dict)
    leader: Versioned[LeaderRecord] | None = None
    epoch: Epoch | None = None
    problems: dict[str, str] = field(default_factory=dict)


class SnapshotDecoder:
    """Decodes one view after another; every result is the same as decoding that view alone."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._state = _State()

    def decode(self, view: View, changed: Collection[str] | None = None) -> Decoded:
        """The snapshot of `view`.

        changed: the keys that differ from the view decoded before (`Mirror.drain`); None = look for them, which takes
        time in proportion to the number of keys.
        """
        state = self._state
        if changed is None:
            changed = _differences(state.entries, view.entries)
        state.entries = view.entries
        by_job: dict[str, list[tuple[Name, Any]]] = {}
        others: dict[str, list[tuple[Name, Any]]] = {}
        for key in changed:
            name = self._keys.parse(key)
            if name is not None and name.kind in RECORD_TYPES:
                record = self._record(key, name, view.entries.get(key))
                group = by_job.setdefault(name.job, []) if name.job else others.setdefault(name.kind, [])
                group.append((name, record))
        self._apply_jobs(by_job)
        self._apply_others(others)
        return Decoded(self._snapshot(view.revision), tuple(state.problems[k] for k in sorted(state.problems)))

    def _snapshot(self, revision: int) -> Snapshot:
        s = self._state
        return Snapshot(revision, s.hosts, s.jobs, s.leader, s.epoch, s.claims, s.profiles)

    def _record(self, key: str, name: Name, entry: Entry | None) -> Any:
        """The record as the snapshot holds it; None when it is absent or unreadable (then reported)."""
        self._state.problems.pop(key, None)
        if entry is None:
            return None
        try:
            record = decode(key, entry.value, RECORD_TYPES[name.kind])
            _check_says(key, name, record)
        except RecordError as e:
            self._state.problems[key] = str(e)
            return None
        if name.kind in _VERSIONED:
            return Versioned(record, entry.create_revision, entry.mod_revision)
        return record

    def _apply_jobs(self, by_job: Mapping[str, list[tuple[Name, Any]]]) -> None:
        if not by_job:
            return
        changes: dict[str, JobView | None] = {}
        for job, group in by_job.items():
            view = _changed_job(self._state.jobs.get(job) or JobView(job), group)
            changes[job] = None if view == JobView(job) else view
        self._state.jobs = _with(self._state.jobs, changes)

    def _apply_others(self, others: Mapping[str, list[tuple[Name, Any]]]) -> None:
        state = self._state
        for kind, group in others.items():
            if kind == "host":
                self._apply_hosts(group)
            elif kind == "claims":
                state.claims = _with(state.claims, {name.host: record for name, record in group})
            elif kind == "profile":
                state.profiles = _with(state.profiles, {name.who: record for name, record in group})
            elif kind == "leader":
                state.leader = group[-1][1]
            elif kind == "epoch":
                state.epoch = group[-1][1]

    def _apply_hosts(self, group: Iterable[tuple[Name, Any]]) -> None:
        state = self._state
        touched = set()
        for name, record in group:
            records = state.host_records.setdefault(name.host, {})
            if record is None:
                records.pop(name.who, None)
            else:
                records[name.who] = record
            touched.add(name.host)
        changes: dict[str, Host | None] = {}
        for host in touched:
            changes[host] = merge_hosts(state.host_records[host].values()).get(host)
            if not state.host_records[host]:
                del state.host_records[host]
        state.hosts = _with(state.hosts, changes)


def _differences(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> list[str]:
    """Keys whose entries differ. An entry that a mirror keeps is the same object, so most take one look."""
    found = []
    for key, entry in new.items():
        known = old.get(key)
        if known is not entry and known != entry:
            found.append(key)
    if len(old) + sum(key not in old for key in found) != len(new):
        found += [key for key in old if key not in new]
    return found


def _check_says(key: str, name: Name, record: Any) -> None:
    for own, of_key in _SAYS.get(name.kind, {}).items():
        says, expected = getattr(record, own), getattr(name, of_key)
        if says != expected:
            raise RecordError(f"{key}: its {own} is {says!r}, which belongs under another key")


def _changed_job(view: JobView, group: Iterable[tuple[Name, Any]]) -> JobView:
    """The view with the records of `group` put in, or taken out where they are None."""
    values = {f.name: getattr(view, f.name) for f in fields(JobView)}
    fresh: dict[str, dict[Any, Any]] = {}
    for name, record in group:
        where = _FIELD_OF_KIND.get(name.kind, name.kind)
        if where in _MAPPINGS:
            fresh.setdefault(where, {})[_index(name)] = record
        else:
            values[where] = record
    for where, changes in fresh.items():
        values[where] = _with(values[where], changes)
    return JobView(**values)


def _index(name: Name) -> Any:
    match name.kind:
        case "failure":
            return name.round, name.who
        case "round_store":
            return name.round
        case "wanted":
            return name.host
        case _:
            return name.who


def _with(old: Mapping[Any, V], changes: Mapping[Any, V | None]) -> dict[Any, V]:
    """A new mapping with the changes, None meaning absent; in the order of its keys, whatever came first."""
    merged: dict[Any, V] = dict(old)
    grown = False
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            grown = grown or key not in merged
            merged[key] = value
    return dict(sorted(merged.items())) if grown else merged
