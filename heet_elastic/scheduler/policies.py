"""The policies by name, as `--policy` takes them. Constructing one reads nothing and computes nothing."""

from __future__ import annotations

from heet_elastic.scheduler.api import PolicyFactory
from heet_elastic.scheduler.fifo import Fifo
from heet_elastic.scheduler.heet import Heet

POLICIES: dict[str, PolicyFactory] = {
    "heet": Heet,
    "fifo": Fifo,
}

DEFAULT_POLICY = "heet"
