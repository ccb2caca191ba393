"""The one place that touches torch's private names: binding our handler to the elastic agent that runs it.

`SimpleElasticAgent._rendezvous` is wrapped once, so that a heet handler gets its agent and worker group before the
first rendezvous. On that agent instance (and no other) these methods are then answered by the handler:

    _assign_worker_ranks   ranks come from the allocation, nothing is exchanged
    _start_workers         environment before, process ids after
    _stop_workers          the grace depends on why; gone means that the reaper sees no process
    _monitor_workers       workers are looked at without closing siblings; the verdict decides
    _exit_barrier          waits for the job's end, not 300 s for a store that may be gone

`check_torch` says at start which name is missing in this torch.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.elastic.agent.server import api as agent_api
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

from heet_elastic.errors import UnsupportedTorchError
from heet_elastic.model import Allocation

log = logging.getLogger(__name__)

USED = {
    agent_api.SimpleElasticAgent: ("_rendezvous", "_invoke_run", "_exit_barrier", "_assign_worker_ranks"),
    LocalElasticAgent: ("_start_workers", "_stop_workers", "_monitor_workers", "_shutdown"),
}
"""Private names that this module wraps or calls, by class."""


class Bound(Protocol):
    """What the wrapped agent asks of our handler."""

    def bind(self, agent: AgentAdapter) -> None:
        """The agent that will call us; before its first rendezvous."""

    def ranks(self) -> tuple[int, int, int]:
        """(first global rank, local workers, world size) of the round that was just formed."""

    def before_start(self) -> None:
        """Workers are about to be started: set the environment that they inherit."""

    def started(self, pids: Mapping[int, int], error_files: Mapping[int, str]) -> None:
        """Workers (local rank -> pid) run."""

    def before_stop(self) -> float:
        """Workers are about to be stopped; returns the seconds that they get after SIGTERM."""

    def stopped(self) -> None:
        """torch is done stopping; returns when no process of theirs is left."""

    def monitor(self) -> str:
        """ "healthy", or "ask" when torch itself shall look (all succeeded, or the job has failed)."""

    def ended(self, exit_codes: Mapping[int, int]) -> None:
        """Workers (local rank -> exit code) that torch has reaped."""

    def await_end(self) -> None:
        """Own workers are done: return at the job's end."""


class AgentAdapter:
    """The public face of one torch elastic agent for the handler."""

    def __init__(self, agent: Any, worker_group: Any) -> None:
        self._agent, self._group = agent, worker_group
        self.max_restarts = int(worker_group.spec.max_restarts)
        self.nproc = int(worker_group.spec.local_world_size)
        self.entrypoint = worker_group.spec.entrypoint
        self.args = tuple(worker_group.spec.args)

    def set_workers(self, count: int) -> None:
        """Run this many workers on this host in the next round."""
        self._group.spec.local_world_size = count

    def clear_numa_options(self) -> bool:
        """Take `--numa-binding` off (it would bind by the wrong device); True when it was set."""
        was = getattr(self._group.spec, "numa_options", None) is not None
        if was:
            self._group.spec.numa_options = None
        return was

    @property
    def virtual_local_rank(self) -> bool:
        """Whether every worker sees its own device as device 0."""
        return bool(getattr(self._group.spec, "virtual_local_rank", False))

    def set_restarts_used(self, used: int) -> None:
        """Show every worker and torch's own accounting the job-wide restarts that are left."""
        self._agent._remaining_restarts = max(0, self.max_restarts - used)

    def spend_all_restarts(self) -> None:
        """The job has failed: torch shall print the error and end."""
        self._agent._remaining_restarts = 0

    def keep_logs(self, allocation: Allocation) -> None:
        """torch deletes `attempt_<restarts>` at every start; rounds that cost no restart would erase earlier logs."""
        specs = getattr(self._agent, "_logs_specs", None)
        run_dir = getattr(specs, "_run_log_dir", None)
        if not run_dir:
            return
        attempt = Path(run_dir) / f"attempt_{self.max_restarts - self._agent._remaining_restarts}"
        if attempt.is_dir():
            kept = attempt.with_name(f"{attempt.name}_before_round_{allocation.round}")
            shutil.rmtree(kept, ignore_errors=True)
            attempt.rename(kept)


def check_torch() -> None:
    """Raise UnsupportedTorchError when this torch lacks a name that we rely on."""
    for cls, names in USED.items():
        for name in names:
            if not callable(getattr(cls, name, None)):
                raise UnsupportedTorchError(
                    f"torch {torch.__version__} has no {cls.__name__}.{name}, on which heet relies: use torch 2.13 or "
                    f"2.14, or a heet that knows this torch"
                )


def install() -> None:
    """Wrap `SimpleElasticAgent._rendezvous`, once a process."""
    original = agent_api.SimpleElasticAgent._rendezvous
    if getattr(original, "_heet", False):
        return

    @wraps(original)
    def rendezvous(self: Any, worker_group: Any) -> Any:
        handler = worker_group.spec.rdzv_handler
        if getattr(handler, "is_heet", False) and not getattr(self, "_heet_bound", False):
            _override(self, worker_group, handler)
        return original(self, worker_group)

    rendezvous._heet = True  # type: ignore[attr-defined]
    agent_api.SimpleElasticAgent._rendezvous = rendezvous


def _override(agent: Any, worker_group: Any, handler: Bound) -> None:
    start, monitor, shutdown = agent._start_workers, agent._monitor_workers, agent._shutdown
    healthy = agent_api.RunResult(state=agent_api.WorkerState.HEALTHY)

    def assign(_store: Any, _rank: int, _size: int, _spec: Any) -> list[Any]:
        base, count, world = handler.ranks()
        return [
            agent_api.Worker(
                local_rank=i, global_rank=base + i, role_rank=base + i, world_size=world, role_world_size=world
            )
            for i in range(count)
        ]

    def start_workers(group: Any) -> Any:
        handler.before_start()
        pids = start(group)
        handler.started(pids, dict(getattr(agent._pcontext, "error_files", {}) or {}))
        return pids

    def stop_workers(_group: Any) -> None:
        grace_s = handler.before_stop()
        shutdown(signal.SIGTERM, max(1, round(grace_s)))
        handler.stopped()

    def monitor_workers(group: Any) -> Any:
        if handler.monitor() == "ask":
            return monitor(group)
        # A worker that is a function ends only when torch has read what it returned.
        return _look(monitor(group), handler, healthy) if _functions(agent) else healthy

    agent._assign_worker_ranks = assign
    agent._start_workers = start_workers
    agent._stop_workers = stop_workers
    agent._monitor_workers = monitor_workers
    agent._exit_barrier = handler.await_end
    agent._heet_bound = True
    handler.bind(AgentAdapter(agent, worker_group))


def _functions(agent: Any) -> bool:
    return isinstance(agent._pcontext, MultiprocessContext)


def _look(result: Any, handler: Bound, healthy: Any) -> Any:
    """Tell the handler what torch found of workers that are functions. A failure is the verdict's to judge."""
    if result.state is agent_api.WorkerState.SUCCEEDED:
        handler.ended(dict.fromkeys(range(len(result.return_values)), 0))
        return result
    if result.state is agent_api.WorkerState.FAILED:
        handler.ended({f.local_rank: f.exitcode for f in result.failures.values()})
        return healthy
    return result


def runs_under_torchrun() -> bool:
    """Whether this process is torchrun (then a user's mistake is a sentence and an exit code, not an exception)."""
    import __main__

    spec = getattr(__main__, "__spec__", None)
    if spec is not None and spec.name in ("torch.distributed.run", "torch.distributed.launch"):
        return True
    return os.path.basename(getattr(__main__, "__file__", "") or "") == "torchrun"  # noqa: PTH119
