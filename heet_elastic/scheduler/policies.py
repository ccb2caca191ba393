"""The policies by name, as `--policy` takes them. Constructing one reads nothing and computes nothing."""

from __future__ import annotations

from functools import partial

from heet_elastic.scheduler.afs import Afs
from heet_elastic.scheduler.api import PolicyFactory
from heet_elastic.scheduler.fifo import Fifo
from heet_elastic.scheduler.gavel import Gavel
from heet_elastic.scheduler.heet import Heet
from heet_elastic.scheduler.market import Market
from heet_elastic.scheduler.max_throughput import MaxThroughput
from heet_elastic.scheduler.optimus import Optimus
from heet_elastic.scheduler.pollux import Pollux
from heet_elastic.scheduler.sia import Sia
from heet_elastic.scheduler.srsf import Srsf

POLICIES: dict[str, PolicyFactory] = {
    "heet": Heet,
    "short-only": partial(Heet, name="short-only", objective="short"),
    "scale-only": partial(Heet, name="scale-only", objective="scale"),
    "market": Market,
    "afs": Afs,
    "srsf": Srsf,
    "srsf-e": partial(Srsf, name="srsf-e", variant="elastic"),
    "srsf-max": partial(Srsf, name="srsf-max", variant="max"),
    "gavel": Gavel,
    "gavel-minjct": partial(Gavel, name="gavel-minjct", goal="jct"),
    "sia": Sia,
    "pollux": Pollux,
    "optimus": Optimus,
    "fifo": Fifo,
    "max-throughput": MaxThroughput,
}

DEFAULT_POLICY = "heet"
