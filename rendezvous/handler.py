"""The RendezvousHandler behind `--rdzv-backend=heet`: a thin shell between torch's elastic agent and `Member`.

Pause, resume, grow, shrink and migrate need nothing but answers to two calls: `num_nodes_waiting() > 0` stops the
workers, and `next_rendezvous()` returns with the next round, or waits. Decisions are the protocol's.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
)

from heet_elastic.errors import (
    CancelledError,
    HeetError,
    RefusedError,
    WaitTimeoutError,
)
from heet_elastic.model import Allocation
from heet_elastic.model import Member as Place
from heet_elastic.rendezvous import torch_agent
from heet_elastic.rendezvous.edge import PlainErrors, say
from heet_elastic.rendezvous.member import Member
from heet_elastic.rendezvous.process import Process, open_process
from heet_elastic.rendezvous.round_store import FormedRound, form_round
from heet_elastic.rendezvous.settings import RendezvousSettings, read_settings
from heet_elastic.rendezvous.signals import SignalWatch
from heet_elastic.rendezvous.values import Order, WorkerState
from heet_elastic.words import counted

LOCK_WAIT_S = 5.0
"""A device that stays locked for longer is reported as busy, with its holder."""

GONE_WAIT_S = 60.0
"""After SIGKILL, processes get this long to vanish before we say that they do not."""


def create_handler(parameters: RendezvousParameters) -> HeetRendezvousHandler:
    """What torch calls for `--rdzv-backend=heet`. Does no I/O."""
    with PlainErrors():
        torch_agent.check_torch()
        settings, ignored = read_settings(
            endpoint=parameters.endpoint or "",
            run_id=parameters.run_id,
            min_nodes=parameters.min_nodes,
            max_nodes=parameters.max_nodes,
            local_addr=parameters.local_addr,
            conf={k: v for k, v in parameters.config.items() if v is not None},
            environ=os.environ,
        )
        if ignored:
            say(f"--rdzv-conf: {', '.join(ignored)} belong to other backends and mean nothing to heet")
        torch_agent.install()
        return HeetRendezvousHandler(settings)


class HeetRendezvousHandler(RendezvousHandler):  # type: ignore[misc]
    """One torchrun's part in its job. Also answers the agent that `torch_agent` has bound to it."""

    is_heet = True

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._signals = SignalWatch(self._on_signal)
        self._agent: torch_agent.AgentAdapter | None = None
        self._process: Process | None = None
        self._round: FormedRound | None = None
        self._started = time.monotonic()
        self._asked_since = 0.0
        self._environment_before: dict[str, str | None] = {}
        self._closed = False

    # ------------------------------------------------------------------ RendezvousHandler

    def get_backend(self) -> str:
        """Name of the backend."""
        return "heet"

    @property
    def use_agent_store(self) -> bool:
        """Workers use the agents' TCPStore: there is no master port to be lost to somebody else."""
        return self._settings.use_agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a round that this agent is part of and form it. May take as long as it likes.

        Ends the process (under torchrun) or raises (under `elastic_launch`) when the job is over, refused or timed out.
        """
        with PlainErrors(self._leave_quietly):
            self._asked_since = time.monotonic()
            process = self._open()
            self._settle(process)
            try:
                formed = self._await_round(process)
            finally:
                process.member.update(asking=False)
            return self._enter(process, formed)

    def is_closed(self) -> bool:
        """Whether the job has ended."""
        return self._process is not None and self._process.member.target.order is Order.FINISH

    def set_closed(self) -> None:
        """torch's way to end a rendezvous for everybody; a heet job ends by its result."""

    def num_nodes_waiting(self) -> int:
        """1 when a newer round exists, else 0. A local read that never raises: it is called ten times a second."""
        return int(self._process is not None and self._process.member.target.order is Order.RESCALE)

    def get_run_id(self) -> str:
        """The job's id."""
        return self._settings.job

    def shutdown(self) -> bool:
        """torch is done with us, by success or failure."""
        self._close()
        return True

    # ------------------------------------------------------------------ for torch_agent

    def bind(self, agent: torch_agent.AgentAdapter) -> None:
        """The agent that runs us; before its first rendezvous."""
        self._agent = agent

    def ranks(self) -> tuple[int, int, int]:
        """(first global rank, local workers, world size) of the round that was just formed."""
        place = self._place()
        allocation = self._formed().allocation
        return allocation.base_rank(place.agent), len(place.gpus), allocation.world_size

    def before_start(self) -> None:
        """Set what the workers inherit: devices by UUID, the sampler's socket, the reaper's marker."""
        process, formed, place = self._live(), self._formed(), self._place()
        allocation = formed.allocation
        process.guard.start()
        environment = dict(process.member.begin_round(allocation.round, allocation.configuration, len(place.gpus)))
        marker, token = process.guard.marker
        environment[marker] = token
        environment.update(process.device_environment(place.gpus))
        for name, value in environment.items():
            self._environment_before.setdefault(name, os.environ.get(name))
            os.environ[name] = value
        self._adapter().keep_logs(allocation)

    def started(self, pids: Mapping[int, int], error_files: Mapping[int, str]) -> None:
        """Workers run: the reaper and the member thread look after them."""
        process, formed = self._live(), self._formed()
        process.guard.watch(pids.values())
        base = formed.allocation.base_rank(self._place().agent)
        process.member.watch_workers(formed.allocation.round, pids, error_files, base)
        self._signals.install_wakeup()

    def before_stop(self) -> float:
        """Grace in seconds: all of it for a plan; little after a lost peer or a failure (a worker inside a C++
        collective never handles SIGTERM)."""
        process = self._live()
        process.member.stop_watching()
        newest = process.member.memory.allocation
        planned = newest is not None and self._round is not None and newest.round > self._round.allocation.round
        if planned and newest is not None and newest.grace:
            return self._settings.stop_grace_s
        return self._settings.lost_peer_grace_s

    def stopped(self) -> None:
        """Make sure that no process of the workers is left: torch may return with one alive."""
        self._await_gone(self._live())

    def monitor(self) -> str:
        """What torch's monitor shall see, ten times a second."""
        with PlainErrors(self._leave_quietly):
            member = self._live().member
            self._raise_thread_error(member)
            workers, target = member.local.workers, member.target
            if target.order is Order.REFUSE:
                raise RefusedError(target.reason)
            if target.order is Order.FINISH and target.result is not None and target.result.outcome != "succeeded":
                if workers is WorkerState.FAILED and target.result.outcome == "failed":
                    say(f"job failed: {target.reason}")
                    self._adapter().spend_all_restarts()
                    return "ask"
                self._finish(target.result.outcome, target.reason)
            return "ask" if workers is WorkerState.SUCCEEDED else "healthy"

    def ended(self, exit_codes: Mapping[int, int]) -> None:
        """Workers (local rank -> exit code) that torch has reaped."""
        self._live().member.tell_ended(exit_codes)

    def await_end(self) -> None:
        """Own workers are done: stay until the job has its result, so that our round's store lives on for others."""
        with PlainErrors(self._leave_quietly):
            member = self._live().member
            with member.changed:
                while member.target.order not in (Order.FINISH, Order.REFUSE):
                    self._raise_thread_error(member)
                    member.changed.wait(1.0)
            target = member.target
            if target.result is not None and target.result.outcome != "succeeded":
                self._finish(target.result.outcome, target.reason)

    # ------------------------------------------------------------------ inside next_rendezvous

    def _open(self) -> Process:
        if self._process is None:
            adapter = self._adapter()
            self._process = open_process(
                self._settings,
                adapter.nproc,
                adapter.max_restarts,
                adapter.entrypoint,
                adapter.args,
                adapter.virtual_local_rank,
                say,
            )
            atexit.register(self._close)
            if adapter.clear_numa_options():
                say("--numa-binding is not used: it would bind workers by the wrong device")
            if self._signals.received:
                self._process.member.update(leaving=True)
            self._process.member.start()
        return self._process

    def _settle(self, process: Process) -> None:
        """Old workers and their store are gone, and the devices that the newest round does not grant us are free."""
        process.member.stop_watching()
        self._await_gone(process)
        self._restore_environment()
        if self._round is not None and self._round.held is not None:
            self._round.held.close()
        self._round = None
        newest = process.member.memory.allocation
        place = newest.member(process.agent) if newest else None
        process.guard.release(keep=place.gpus if place else ())
        process.member.update(
            workers=WorkerState.NONE,
            failure=None,
            first_exit=False,
            clean=newest.round if newest else 0,
            asking=True,  # at once: an agent without workers that does not ask would look as if it had given up
        )

    def _await_gone(self, process: Process) -> None:
        deadline = time.monotonic() + GONE_WAIT_S
        warned = False
        while process.guard.alive():
            process.guard.kill(signal.SIGKILL)
            if time.monotonic() > deadline and not warned:
                warned = True
                say(f"workers {list(process.guard.alive())} cannot be killed (uninterruptible); waiting for them")
            time.sleep(0.02)

    def _await_round(self, process: Process) -> FormedRound:
        member = process.member
        while True:
            allocation = self._await_order(process)
            place = allocation.member(process.agent)
            if place is None:
                continue
            superseded = _superseded(member, allocation)
            process.guard.release(keep=place.gpus)
            member.update(clean=allocation.round)
            busy = process.guard.acquire(place.gpus, LOCK_WAIT_S, superseded)
            if busy:
                self._report_busy(process, allocation, busy)
                continue
            address, share = process.address_for(allocation), self.use_agent_store
            formed = form_round(allocation, process.agent, address, member, superseded, share)
            if formed is not None:
                return formed
            with member.changed:
                member.changed.wait(0.1)

    def _await_order(self, process: Process) -> Allocation:
        """The allocation to form now; keeps this agent clean and its time limits while it waits."""
        member = process.member
        seen = -1
        while True:
            with member.changed:
                self._raise_thread_error(member)
                target = member.target
                if target.order is Order.FORM and target.allocation is not None:
                    return target.allocation
                newest = target.allocation.round if target.allocation else 0
                if target.order is Order.IDLE and newest == seen:
                    member.changed.wait(0.2)
            if target.order is Order.REFUSE:
                raise RefusedError(target.reason)
            if target.order is Order.FINISH and target.result is not None:
                self._finish(target.result.outcome, target.reason)
            if newest != seen:
                seen = newest
                process.guard.release()
                member.update(clean=newest)
            self._check_time(member)

    def _report_busy(self, process: Process, allocation: Allocation, busy: Any) -> None:
        if _superseded(process.member, allocation)():
            return
        names = tuple(b.device for b in busy)
        say(f"round {allocation.round}: {', '.join(names)} stays locked by {busy[0].holder}")
        process.member.update(busy=names, busy_holder=busy[0].holder, busy_round=allocation.round)
        superseded = _superseded(process.member, allocation)
        while not superseded():
            self._check_time(process.member)
            with process.member.changed:
                process.member.changed.wait(0.5)

    def _check_time(self, member: Member) -> None:
        now = time.monotonic()
        limit = self._settings.allocation_timeout
        if not member.reached and now - self._started > self._settings.join_timeout:
            raise WaitTimeoutError(
                f"job {self._settings.job!r} did not start within join_timeout={self._settings.join_timeout:g} s: "
                f"{member.target.reason or 'nothing was heard'}"
            )
        if limit is not None and now - self._asked_since > limit:
            raise WaitTimeoutError(
                f"job {self._settings.job!r} got no GPUs within allocation_timeout={limit:g} s: {member.target.reason}"
            )

    def _enter(self, process: Process, formed: FormedRound) -> RendezvousInfo:
        allocation = formed.allocation
        self._round = formed
        adapter = self._adapter()
        adapter.set_workers(len(self._place().gpus))
        adapter.set_restarts_used(allocation.restarts_used)
        process.member.update(
            formed=allocation.round,
            workers=WorkerState.RUNNING,
            workers_round=allocation.round,
            busy=(),
            unacknowledged=(),
        )
        place = self._place()
        say(
            f"round {allocation.round}: {counted(allocation.world_size, 'worker')} on "
            f"{counted(len(allocation.members), 'agent')}, here "
            f"{len(place.gpus)} ({', '.join(place.gpus)}); {allocation.reason}"
        )
        info = RendezvousStoreInfo(formed.address, formed.port)
        return RendezvousInfo(formed.store, formed.rank, len(allocation.members), info)

    # ------------------------------------------------------------------ the end

    def _finish(self, outcome: str, reason: str) -> NoReturn:
        """The job is over for an agent that torch cannot end by itself."""
        if outcome == "succeeded":
            say(f"job {self._settings.job!r} has succeeded: {reason}")
            self._exit(0)
        if outcome == "cancelled":
            raise CancelledError(f"job {self._settings.job!r} was cancelled: {reason}")
        raise HeetError(f"job {self._settings.job!r} has failed: {reason}")

    def _exit(self, code: int) -> NoReturn:
        # RendezvousGracefulExitError would end torchrun with 1: launch_agent then asks None whether it has failed.
        raise SystemExit(code)

    def _on_signal(self, signum: int) -> None:
        """From the signal thread: say that we leave at once; GPUs and lease are released when the workers are gone."""
        if signum in (signal.SIGTERM, signal.SIGINT) and self._process is not None:
            self._process.member.update(leaving=True)

    def _leave_quietly(self) -> None:
        if self._process is not None and not self.is_closed():
            self._process.member.update(leaving=True)

    def _close(self) -> None:
        if self._closed or self._process is None:
            return
        self._closed = True
        process = self._process
        if process.guard.alive():
            process.guard.kill(signal.SIGKILL)
            self._await_gone(process)
        process.guard.release()
        newest = process.member.memory.allocation
        if not self.is_closed():
            process.member.update(leaving=True)
        process.member.update(clean=(newest.round if newest else 0) + 1)
        process.close()
        self._restore_environment()
        self._signals.close()

    def _restore_environment(self) -> None:
        for name, value in self._environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment_before.clear()

    # ------------------------------------------------------------------ small things

    def _adapter(self) -> torch_agent.AgentAdapter:
        if self._agent is None:
            raise RendezvousStateError(
                "heet's rendezvous runs inside torch's elastic agent (torchrun, elastic_launch) only"
            )
        return self._agent

    def _live(self) -> Process:
        if self._process is None:
            raise RendezvousStateError("the rendezvous has not begun")
        return self._process

    def _formed(self) -> FormedRound:
        if self._round is None:
            raise RendezvousStateError("no round was formed")
        return self._round

    def _place(self) -> Place:
        place = self._formed().allocation.member(self._live().agent)
        if place is None:
            raise RendezvousStateError("this agent is not in its round")
        return place

    def _raise_thread_error(self, member: Member) -> None:
        if member.error is not None:
            raise HeetError(f"heet's rendezvous thread has ended: {member.error!r}") from member.error


def _superseded(member: Member, allocation: Allocation) -> Callable[[], bool]:
    def check() -> bool:
        target = member.target
        newer = target.allocation is not None and target.allocation.round > allocation.round
        return newer or target.order in (Order.FINISH, Order.REFUSE) or member.error is not None or member.local.leaving

    return check
