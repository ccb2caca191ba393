"""The coordinator's settings: one frozen value, built once from file, environment and flags (the later wins).

Every field is a line of the table in docs/coordinator.md, a key of the TOML file, `HEET_<FIELD>` in the environment and
`--field` on the command line; its metadata holds what people read about it and which values are accepted.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from heet_elastic.errors import UsageError
from heet_elastic.predictor import DEFAULT as DEFAULT_PREDICTOR
from heet_elastic.predictor import METHODS
from heet_elastic.scheduler.policies import DEFAULT_POLICY, POLICIES
from heet_elastic.store.keys import DEFAULT_PREFIX

LOG_LEVELS = ("debug", "info", "warning", "error")


def _setting(default: Any, help_: str, low: float | None = None, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_, "low": low, "choices": choices})


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Everything that a person can set about a coordinator. Durations are seconds."""

    policy: str = _setting(DEFAULT_POLICY, "how GPUs are shared", choices=tuple(POLICIES))
    predictor: str = _setting(DEFAULT_PREDICTOR, "how unmeasured throughput is predicted", choices=tuple(METHODS))
    interval_s: float = _setting(300.0, "longest time between two looks at the whole cluster", 1.0)
    cooldown_s: float = _setting(30.0, "a running job is not changed again within this time of its last change", 0.0)
    settle_s: float = _setting(1.0, "how long no agent of a job must have arrived before its round grows by them", 0.0)
    settle_most_s: float = _setting(3.0, "longest wait of an arrived agent for others of its job", 0.0)
    ttl_s: float = _setting(10.0, "lease of the leader: a dead one is replaced within twice this", 1.0)
    recovery_window_s: float = _setting(
        12.0, "after an emptied or unreachable store nothing is decided for this time: more than the agents' lease", 0.0
    )
    start_timeout_s: float = _setting(
        60.0, "a heet-agent that starts no torchrun within this is excluded for the job", 1.0
    )
    fence_time_s: float = _setting(
        0.0, "agents cut off for this time stop their workers, so a vanished host counts as quiet then; 0 = off", 0.0
    )
    lock_report_s: float = _setting(5.0, "how often idle agents report the device locks of their host", 0.0)
    exclusion_s: float = _setting(60.0, "first exclusion of a host from a job; doubles with every further strike", 1.0)
    exclusion_most_s: float = _setting(3600.0, "longest exclusion", 1.0)
    flap_life_s: float = _setting(4.0, "an agent that vanishes this soon after it joined gets its host excluded", 0.0)
    rescale_up_s: float = _setting(30.0, "cost of growing, moving or starting a job until its own is learned", 0.0)
    rescale_down_s: float = _setting(5.0, "cost of shrinking a job until its own is learned", 0.0)
    probes_per_job: int = _setting(6, "most rounds that a job makes only to be measured; 0 = none", 0)
    probe_share: float = _setting(0.05, "most that such rounds may cost, of the time that the job ran", 0.0)
    probe_s: float = _setting(30.0, "how long such a round measures", 1.0)
    retention_s: float = _setting(86400.0, "how long the keys of an ended or abandoned job are kept", 0.0)
    retained_jobs: int = _setting(1000, "most ended jobs that are kept", 0)
    retained_profiles: int = _setting(500, "most profiles of past jobs that are kept for predictions", 0)
    late_join_s: float = _setting(
        60.0, "an agent that comes within this after its job's end belongs to that run, not to a new one", 0.0
    )
    account_interval_s: float = _setting(30.0, "how often a job's durations are saved", 0.1)
    status_interval_s: float = _setting(10.0, "how often a job that goes on waiting is told its place", 0.0)
    most_workers: int = _setting(1024, "widest round that is considered", 1)
    etcd: str = _setting("", "etcd endpoints HOST:PORT,HOST:PORT; empty = an embedded etcd")
    prefix: str = _setting(DEFAULT_PREFIX, "prefix of all keys")
    cacert: str = _setting("", "certificate of the authority that signed etcd's certificate")
    cert: str = _setting("", "client certificate")
    key: str = _setting("", "key of the client certificate")
    user: str = _setting("", "etcd user")
    password_file: str = _setting("", "file that holds the etcd user's password")
    data_dir: str = _setting("", "folder of the embedded etcd's data; empty = ~/.local/share/heet/etcd")
    listen: str = _setting("127.0.0.1", "address of the embedded etcd, HOST or HOST:PORT; no port = a free one")
    host: str = _setting("", "name of this host among coordinators; empty = its host name")
    log_level: str = _setting("info", "least important message that is shown", choices=LOG_LEVELS)

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting, getattr(self, setting.name))
        if self.settle_most_s < self.settle_s:
            raise UsageError(f"settle_most_s is {self.settle_most_s:g}: expected at least settle_s = {self.settle_s:g}")
        if self.exclusion_most_s < self.exclusion_s:
            raise UsageError(
                f"exclusion_most_s is {self.exclusion_most_s:g}: expected at least exclusion_s = {self.exclusion_s:g}"
            )
        if bool(self.cert) != bool(self.key):
            raise UsageError("cert and key belong together: set both or none")
        if not self.prefix.startswith("/") or self.prefix.endswith("/"):
            raise UsageError(f"prefix is {self.prefix!r}: expected something like {DEFAULT_PREFIX}")


def _check(setting: Field[Any], value: Any) -> None:
    low, choices = setting.metadata["low"], setting.metadata["choices"]
    if low is not None and (not math.isfinite(value) or value < low):
        raise UsageError(f"{setting.name} is {value}: expected a number >= {low:g}")
    if choices and value not in choices:
        raise UsageError(f"{setting.name} is {value!r}: expected one of {', '.join(choices)}")


SETTINGS: Mapping[str, Field[Any]] = {f.name: f for f in fields(CoordinatorSettings)}
"""Every setting by its name."""


def _convert(setting: Field[Any], value: object, origin: str) -> Any:
    """`value` as the setting's type; UsageError names `origin`, the setting and what is accepted."""
    kind = type(setting.default)
    try:
        if isinstance(value, bool) or not isinstance(value, str if kind is str else (int, float, str)):
            raise TypeError(value)
        if isinstance(value, str) and kind is str:
            return value
        number = float(value)
        if kind is int:
            if not number.is_integer():
                raise ValueError(value)
            return int(number)
        return number
    except (ValueError, OverflowError, TypeError):
        wanted = {str: "text", int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"{origin}: {setting.name} is {value!r}: expected {wanted}") from None


def build(values: Mapping[str, object], environment: Mapping[str, str], file: str | None) -> CoordinatorSettings:
    """The settings from flags (`values`, None = not given), HEET_* variables and a TOML file.

    Raises UsageError for an unknown setting, a value of the wrong kind or out of range, or a file that cannot be read.
    """
    chosen: dict[str, Any] = {}
    for name, value in _read(file).items():
        chosen[name] = _convert(_known(name, file or ""), value, f"file {file}")
    for name, setting in SETTINGS.items():
        variable = f"HEET_{name.upper()}"
        if variable in environment:
            chosen[name] = _convert(setting, environment[variable], f"environment variable {variable}")
    for name, value in values.items():
        if value is not None:
            chosen[name] = _convert(_known(name, "command line"), value, f"flag --{name.replace('_', '-')}")
    return CoordinatorSettings(**chosen)


def _known(name: str, origin: str) -> Field[Any]:
    if name not in SETTINGS:
        raise UsageError(f"{origin}: {name!r} is no setting; known are {', '.join(SETTINGS)}")
    return SETTINGS[name]


def _read(file: str | None) -> dict[str, object]:
    if not file:
        return {}
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"settings file {file}: {e.strerror or e}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"settings file {file} is no TOML: {e}") from None


def as_toml(settings: CoordinatorSettings) -> str:
    """The settings as a TOML file that `build` reads back (no secret is among them)."""
    lines = []
    for name, setting in SETTINGS.items():
        value = getattr(settings, name)
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}  # {setting.metadata['help']}")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """The table of docs/coordinator.md."""
    lines = ["| setting | default | what it is |", "|---|---|---|"]
    for name, setting in SETTINGS.items():
        default = json.dumps(setting.default) if setting.default != "" else "(empty)"
        # Policies and predictors come and go: `heet-coordinator --help` has those of this version.
        listed = name not in ("policy", "predictor")
        accepted = ", ".join(setting.metadata["choices"]) if listed else ""
        text = setting.metadata["help"] + (f": {accepted}" if accepted else "" if listed else " (names: --help)")
        lines.append(f"| `{name}` | {default} | {text.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
