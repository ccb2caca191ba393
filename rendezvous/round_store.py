"""The TCPStore of one round: rank 0 binds it on a free port and publishes it, everybody connects and acknowledges.

A fresh store, port and key prefix every round. Every wait is a slice of at most a second, so that a newer round or a
signal is seen in between; a round that is superseded while it forms is simply left.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, Store, TCPStore

from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import Allocation, RoundStore
from heet_elastic.rendezvous.member import Member
from heet_elastic.store.api import Committed

log = logging.getLogger(__name__)

SLICE = timedelta(seconds=1)
CALL_TIMEOUT = timedelta(seconds=5)
MASTER_PORT = "master_port"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.002, 0.05
"""Pauses between two looks at whether everybody has acknowledged."""


@dataclass(frozen=True, slots=True)
class FormedRound:
    """A complete round: every member has acknowledged.

    address, port: where workers meet. server: the store's server at rank 0, kept alive for the round. held: at rank 0,
    the port of workers that make their own store, bound until one of them listens on it.
    """

    allocation: Allocation
    rank: int
    address: str
    port: int
    store: Store
    server: TCPStore | None
    held: socket.socket | None = None


def form_round(
    allocation: Allocation,
    agent: str,
    address: str,
    member: Member,
    superseded: Callable[[], bool],
    share_store: bool = True,
) -> FormedRound | None:
    """Form `allocation`'s round; None when it was superseded or its store could not be reached (then: come again).

    share_store: workers use this store; else rank 0 holds a port for the store that they make themselves.
    """
    try:
        return _form(allocation, agent, address, member, superseded, share_store)
    except DistError as e:
        log.info("round %d: %s", allocation.round, e)
        return None


def _form(
    allocation: Allocation,
    agent: str,
    address: str,
    member: Member,
    superseded: Callable[[], bool],
    share_store: bool,
) -> FormedRound | None:
    rank = [m.agent for m in allocation.members].index(agent)
    if rank == 0:
        server = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=CALL_TIMEOUT)
        where = RoundStore(allocation.round, agent, address, server.port)
        if not _publish(where, member, superseded):
            return None
    else:
        server = None
        found = _await_address(allocation.round, member, superseded)
        if found is None:
            return None
        where = found
    client = server if server is not None else _connect(where, member, superseded)
    if client is None:
        return None
    client.set_timeout(CALL_TIMEOUT)
    store = PrefixStore(f"heet/round_{allocation.round}", client)
    held = hold_port(where.address) if rank == 0 and not share_store else None
    if held is not None:
        store.set(MASTER_PORT, str(held.getsockname()[1]))
    if not _acknowledge(store, allocation, rank, member, superseded):
        return None
    port = where.port if share_store else int(store.get(MASTER_PORT))
    return FormedRound(allocation, rank, where.address, port, store, server, held)


def hold_port(address: str) -> socket.socket:
    """A free port that nobody else gets, bound but not listening: a worker's server, which also sets SO_REUSEADDR, may
    bind and listen on it."""
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _publish(where: RoundStore, member: Member, superseded: Callable[[], bool]) -> bool:
    while not superseded():
        try:
            if isinstance(member.publish(where), Committed):
                return True
        except StoreUnavailableError as e:
            log.info("publishing the store of round %d: %s", where.round, e)
        with member.changed:
            member.changed.wait(0.2)
    return False


def _await_address(round_: int, member: Member, superseded: Callable[[], bool]) -> RoundStore | None:
    while not superseded():
        with member.changed:
            found = member.round_store(round_)
            if found is not None:
                return found
            member.changed.wait(0.2)
    return None


def _connect(where: RoundStore, member: Member, superseded: Callable[[], bool]) -> TCPStore | None:
    while not superseded():
        if not member.address_of(where.agent):
            # Its agent is gone: a round without it follows, and torch would print every attempt.
            with member.changed:
                member.changed.wait(0.2)
            continue
        try:
            return TCPStore(where.address, where.port, is_master=False, wait_for_workers=False, timeout=SLICE)
        except DistError as e:
            log.debug("connecting to %s:%d: %s", where.address, where.port, e)
    return None


def _acknowledge(
    store: Store, allocation: Allocation, rank: int, member: Member, superseded: Callable[[], bool]
) -> bool:
    """Say that we are there, and wait until all are. Rank 0 keeps telling the member thread who is missing."""
    others = {r: m.agent for r, m in enumerate(allocation.members)}
    store.set(f"ack/{rank}", allocation.members[rank].agent)
    if store.add("acks", 1) >= len(others):
        store.set("complete", "1")
        return True
    pause_s = FIRST_PAUSE_S
    while not superseded():
        # Not `store.wait`: torch prints a warning for every slice of it that passes.
        if store.check(["complete"]):
            return True
        if rank == 0:
            _tell_missing(store, allocation, others, member)
        with member.changed:
            member.changed.wait(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
    return False


def _tell_missing(store: Store, allocation: Allocation, others: dict[int, str], member: Member) -> None:
    missing = tuple(a for r, a in others.items() if not store.check([f"ack/{r}"]))
    if missing != member.local.unacknowledged or member.local.unacknowledged_round != allocation.round:
        member.update(unacknowledged=missing, unacknowledged_round=allocation.round)
