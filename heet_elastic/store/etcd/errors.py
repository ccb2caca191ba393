"""What a gRPC error of etcd means: one place where codes and texts become heet's errors."""

from __future__ import annotations

from enum import Enum

import grpc

from heet_elastic.errors import HeetError, StoreRefusedError, StoreUnavailableError, UsageError


class Kind(Enum):
    """The reactions that a failed call can ask for."""

    UNAVAILABLE = "unavailable"  # unknown whether it was applied
    TOKEN = "token"  # the token is no longer good; nothing was applied  # noqa: S105
    NO_AUTH = "no auth"  # a user was given, but etcd runs without users
    NOT_FOUND = "not found"  # a lease that is gone; nothing was applied
    REFUSED = "refused"
    USAGE = "usage"


def code_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of an error; UNKNOWN where it carries none."""
    code = getattr(error, "code", None)
    return code() if callable(code) else grpc.StatusCode.UNKNOWN


def text_of(error: grpc.RpcError) -> str:
    """The server's or library's words, without line breaks."""
    details = getattr(error, "details", None)
    text = details() if callable(details) else str(error)
    return " ".join((text or code_of(error).name).split())


def is_full(error: BaseException | None) -> bool:
    """Whether etcd says that its database has reached its quota."""
    return isinstance(error, grpc.RpcError) and "database space exceeded" in text_of(error)


def classify(error: grpc.RpcError) -> Kind:
    """What kind of error this is. Whatever is not surely a refusal is unavailable, that is, unknown."""
    return classify_text(code_of(error), text_of(error))


def classify_text(code: grpc.StatusCode, text: str) -> Kind:
    """As `classify`, for a status and its text (a cancelled watch carries only the text)."""
    if "invalid auth token" in text or "revision of auth store is old" in text:
        return Kind.TOKEN
    if "authentication is not enabled" in text:
        return Kind.NO_AUTH
    if code is grpc.StatusCode.NOT_FOUND:
        return Kind.NOT_FOUND
    if "request is too large" in text or "too many operations" in text or "duplicate key" in text:
        return Kind.USAGE
    refused = ("user name is empty", "permission denied", "authentication failed", "database space exceeded")
    if any(words in text for words in refused) or code in (
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    ):
        return Kind.REFUSED
    return Kind.UNAVAILABLE


def to_heet(error: grpc.RpcError, where: str, user: str | None, asked: str = "") -> HeetError:
    """The error that heet's callers see: a sentence with the address, the reason and what to do; never a secret."""
    text = text_of(error)
    return to_heet_text(classify(error), code_of(error), text, where, user, asked)


def to_heet_text(
    kind: Kind, code: grpc.StatusCode, text: str, where: str, user: str | None, asked: str = ""
) -> HeetError:
    """As `to_heet`, from the parts of an error."""
    if kind is Kind.USAGE:
        return UsageError(f"etcd at {where} refuses the request: {text}")
    if kind in (Kind.REFUSED, Kind.TOKEN, Kind.NO_AUTH):
        return StoreRefusedError(f"etcd at {where} {_refusal(code, text, user, asked)}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return StoreUnavailableError(f"etcd at {where} did not answer in time")
    return StoreUnavailableError(f"etcd at {where} is not available: {text}")


def _refusal(code: grpc.StatusCode, text: str, user: str | None, asked: str) -> str:
    if "user name is empty" in text:
        return "asks for a user: set user and password_file (HEET_USER, HEET_PASSWORD_FILE)"
    if "authentication failed" in text:
        return f"does not accept the user {user!r} with this password: check user and password_file"
    if "permission denied" in text or code is grpc.StatusCode.PERMISSION_DENIED:
        who = f"the user {user!r}" if user else "us"
        what = f" {asked}" if asked else ""
        return f"does not allow {who} to use{what}: grant a role read and write on heet's prefix"
    if "database space exceeded" in text:
        return "takes no more writes, its database is full: compact, defragment and disarm it (etcdctl alarm disarm)"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "speaks gRPC, but not etcd's v3 API: check the address, or upgrade etcd to 3.4 or later"
    return f"refuses us: {text}"
