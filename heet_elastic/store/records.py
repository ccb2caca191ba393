"""Records as bytes: versioned JSON, validated when read. Values of a store are untrusted: size, schema, no code.

`{"v": 1, "r": {...}}`. Unknown fields are ignored (a newer version's agent may write them); an unknown version, a wrong
type or a broken invariant is a RecordError that names key and field.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from heet_elastic import model
from heet_elastic.errors import RecordError
from heet_elastic.store.api import MAX_VALUE_BYTES

VERSION = 1

_MOST_WORDS = 300
"""Longest reason in characters: it may quote the value, which is untrusted."""

RECORD_TYPES: dict[str, type[Any]] = {
    "epoch": model.Epoch,
    "leader": model.LeaderRecord,
    "host": model.HostRecord,
    "claims": model.Claims,
    "profile": model.Profile,
    "spec": model.JobSpec,
    "allocation": model.Allocation,
    "frozen": model.Frozen,
    "result": model.Result,
    "ended": model.Result,
    "account": model.Account,
    "status": model.JobStatus,
    "control": model.Control,
    "agent": model.AgentRecord,
    "wanted": model.Wanted,
    "done": model.Done,
    "samples": model.SampleRecord,
    "round_store": model.RoundStore,
    "failure": model.Failure,
}
"""The record type that a key of each kind holds (`store_id` is plain text)."""

R = TypeVar("R")


class _Header(msgspec.Struct):
    v: int


class _Body(msgspec.Struct):
    r: msgspec.Raw


_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(_Header)
_body = msgspec.json.Decoder(_Body)
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def encode(record: object) -> bytes:
    """The bytes of a record. Equal records give equal bytes."""
    return _encoder.encode({"v": VERSION, "r": record})


def decode(key: str, value: bytes, kind: type[R]) -> R:
    """The record of type `kind` in `value`; RecordError names `key` and what is wrong with it."""
    if len(value) > MAX_VALUE_BYTES:
        raise RecordError(f"{key}: {len(value)} bytes, at most {MAX_VALUE_BYTES} are read")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        version = _header.decode(value).v
        if version != VERSION:
            raise RecordError(f"{key}: written by another heet (record version {version}, this one reads {VERSION})")
        record: R = decoder.decode(_body.decode(value).r)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise RecordError(f"{key}: not a {kind.__name__}: {str(e)[:_MOST_WORDS]}") from e
    return record
