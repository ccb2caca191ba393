"""What a user may write behind `--rdzv-conf` and in HEET_* variables, checked once at the edge.

Keys of other rendezvous backends are ignored with one line (users leave them in their scripts); unknown keys are
errors that name the accepted ones. Environment HEET_<KEY> gives defaults, `--rdzv-conf` wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heet_elastic.errors import UsageError
from heet_elastic.model import JobSpec, WorkUnit, check_id
from heet_elastic.store.keys import DEFAULT_PREFIX, Keys

FOREIGN_KEYS = frozenset(
    {
        "timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
    }
    | {
        "join_window",
        "is_host",
        "store_type",
        "read_timeout",
        "rank",
        "world_size",
        "protocol",
        "ssl_cert",
        "ssl_cert_key",
    }
    | {
        "ca_cert",
        "etcd_prefix",
        "lease_ttl",
        "max_retries",
        "retry_delay",
        "last_call",
        "local_addr",
        "use_libuv",
        "cert_key",
    }
)
"""Keys of torch's own backends (and torch's `timeout=900`): known, and of no meaning here."""


LONGEST_ID_BYTES = 200
"""Of a job id: torch adds to it, and a folder's name has at most 255 bytes."""


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """Settings of one torchrun's rendezvous. Times in seconds; None = no limit or not given."""

    endpoint: str
    job: str
    min_hosts: int
    max_hosts: int
    local_addr: str | None = None
    prefix: str = DEFAULT_PREFIX
    name: str = ""
    min_workers: int | None = None
    max_workers: int | None = None
    workers: tuple[int, ...] = ()
    multiple_of: int = 1
    priority: float = 1.0
    total_steps: float | None = None
    total_samples: float | None = None
    total_epochs: float | None = None
    ttl_s: float = 10.0
    join_timeout: float = 600.0
    join_timeout_given: bool = False
    allocation_timeout: float | None = None
    acknowledge_timeout: float = 10.0
    stop_grace_s: float = 30.0
    lost_peer_grace_s: float = 3.0
    fence_time_s: float = 0.0
    late_join_s: float = 10.0
    sample_interval_s: float = 5.0
    self_formed: bool = True
    use_agent_store: bool = True
    cacert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password_file: str | None = None

    def work(self) -> tuple[float | None, WorkUnit]:
        """Total work and its unit; (None, "steps") when not given."""
        if self.total_samples is not None:
            return self.total_samples, "samples"
        if self.total_epochs is not None:
            return self.total_epochs, "epochs"
        return self.total_steps, "steps"


def _number(low: float) -> Callable[[str, str], float]:
    def parse(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low:
            raise UsageError(f"{name}={text!r}: expected a number >= {low:g}")
        return value

    return parse


def _whole(name: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise UsageError(f"{name}={text!r}: expected a whole number >= 1")
    return int(text)


def _wholes(name: str, text: str) -> tuple[int, ...]:
    # torchrun itself splits --rdzv-conf at commas, so world sizes are separated by slashes.
    parts = text.replace("+", "/").replace(":", "/").split("/")
    return tuple(sorted({_whole(name, part) for part in parts}))


def _flag(name: str, text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.strip().lower() not in known:
        raise UsageError(f"{name}={text!r}: expected true or false")
    return known[text.strip().lower()]


def _text(name: str, text: str) -> str:
    if not text:
        raise UsageError(f"{name} is empty: give it a value or leave it out")
    return text


def _prefix(name: str, text: str) -> str:
    try:
        return Keys(text).prefix
    except ValueError as e:
        raise UsageError(f"{name}: {e}") from None


PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "prefix": _prefix,
    "name": _text,
    "min_workers": _whole,
    "max_workers": _whole,
    "workers": _wholes,
    "multiple_of": _whole,
    "priority": _number(0.001),
    "total_steps": _number(0),
    "total_samples": _number(0),
    "total_epochs": _number(0),
    "ttl_s": _number(1),
    "join_timeout": _number(0),
    "allocation_timeout": _number(0),
    "acknowledge_timeout": _number(1),
    "stop_grace_s": _number(0),
    "lost_peer_grace_s": _number(0),
    "fence_time_s": _number(0),
    "late_join_s": _number(0),
    "sample_interval_s": _number(0.2),
    "self_formed": _flag,
    "use_agent_store": _flag,
    "cacert": _text,
    "cert": _text,
    "key": _text,
    "user": _text,
    "password_file": _text,
}
"""Every key of `--rdzv-conf` with its parser; the table in docs/usage.md is checked against it."""


def read_settings(
    *,
    endpoint: str,
    run_id: str,
    min_nodes: int,
    max_nodes: int,
    local_addr: str | None,
    conf: Mapping[str, Any],
    environ: Mapping[str, str],
) -> tuple[RendezvousSettings, tuple[str, ...]]:
    """Settings of this torchrun, and the foreign keys that were ignored. Raises UsageError."""
    if "password" in conf:
        raise UsageError("password= would be visible in `ps`: put it into a file and give password_file=FILE")
    unknown = sorted(set(conf) - set(PARSERS) - FOREIGN_KEYS)
    if unknown:
        raise UsageError(f"--rdzv-conf: unknown key {unknown[0]!r}; known are {', '.join(sorted(PARSERS))}")
    _check_run_id(run_id)
    if not endpoint:
        endpoint = environ.get("HEET_ETCD", "")
    if not endpoint:
        raise UsageError(
            "--rdzv-endpoint is missing: give the addresses of etcd, e.g. --rdzv-endpoint=host1:2379,host2:2379"
        )
    given: dict[str, Any] = {}
    for key, parse in PARSERS.items():
        if key in conf:
            given[key] = parse(f"--rdzv-conf {key}", str(conf[key]))
        elif environ.get(f"HEET_{key.upper()}"):
            given[key] = parse(f"HEET_{key.upper()}", environ[f"HEET_{key.upper()}"])
    settings = RendezvousSettings(
        endpoint=endpoint,
        job=run_id,
        min_hosts=min_nodes,
        max_hosts=max_nodes,
        local_addr=local_addr,
        join_timeout_given="join_timeout" in given,
        **given,
    )
    _check_limits(settings)
    return settings, tuple(sorted(set(conf) & FOREIGN_KEYS - {"timeout"}))


def _check_run_id(run_id: str) -> None:
    if run_id == "none":
        raise UsageError("the job has no id: give every torchrun of a job the same --rdzv-id=NAME")
    try:
        check_id("job id (--rdzv-id)", run_id)
    except ValueError as e:
        raise UsageError(str(e)) from None
    if "/" in run_id or len(run_id.encode()) > LONGEST_ID_BYTES:
        raise UsageError(
            f"--rdzv-id={run_id[:60]}: torch makes a folder of that name, so it holds no slash and has at most "
            f"{LONGEST_ID_BYTES} bytes"
        )


def _check_limits(settings: RendezvousSettings) -> None:
    totals = [n for n in ("total_steps", "total_samples", "total_epochs") if getattr(settings, n) is not None]
    if len(totals) > 1:
        raise UsageError(f"{totals[0]} and {totals[1]} are both given: the work of a job has one unit")
    least, most = settings.min_workers, settings.max_workers
    if least is not None and most is not None and most < least:
        raise UsageError(f"max_workers={most} is below min_workers={least}")


def asked_spec(
    settings: RendezvousSettings, *, nproc: int, script: str, incarnation: str, user: str, origin: str
) -> JobSpec:
    """The job as this command line describes it. Raises UsageError for limits that nothing can meet."""
    total, unit = settings.work()
    rigid = settings.min_hosts == settings.max_hosts
    least = settings.min_workers or settings.min_hosts
    try:
        spec = JobSpec(
            job=settings.job,
            name=settings.name or script or settings.job,
            incarnation=incarnation,
            min_hosts=settings.min_hosts,
            max_hosts=settings.max_hosts,
            min_workers=least,
            max_workers=settings.max_workers,
            allowed_workers=settings.workers,
            multiple_of=settings.multiple_of,
            priority=settings.priority,
            total_work=total,
            work_unit=unit,
            script=script,
            user=user,
            origin=origin,
        )
    except ValueError as e:
        raise UsageError(f"--rdzv-conf / --nnodes: {e}") from None
    most = min(spec.max_workers or 1 << 20, spec.max_hosts * nproc)
    if not rigid and not any(spec.allows(w) for w in range(1, most + 1)):
        sizes = "/".join(map(str, spec.allowed_workers))
        raise UsageError(
            f"no world size is allowed: at most {spec.max_hosts} hosts x {nproc} workers, "
            f"min_workers={spec.min_workers}, max_workers={spec.max_workers}, workers={sizes or 'any'}, "
            f"multiple_of={spec.multiple_of}"
        )
    return spec
