"""The loop around `decide`: read what is new, lead or stand by, decide, write, log what changed.

Nothing is decided on a picture that may be wrong: while the store is out of reach, and for `recovery_window_s` after
that or after the store was emptied, agents register again first and absences count for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heet_elastic import __version__
from heet_elastic.coordinator.api import Action, Allocate, Decision, Memory, SetResult, Table, World
from heet_elastic.coordinator.decide import decide
from heet_elastic.coordinator.decide.table import refresh
from heet_elastic.coordinator.election import Term, campaign
from heet_elastic.coordinator.rounding import Rounded
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.coordinator.writes import transactions
from heet_elastic.errors import StoreUnavailableError
from heet_elastic.model import Epoch, Profile, Snapshot
from heet_elastic.predictor import METHODS
from heet_elastic.predictor.api import Predictor
from heet_elastic.scheduler.policies import POLICIES
from heet_elastic.store.api import Committed, Put, Store, absent
from heet_elastic.store.keys import Keys
from heet_elastic.store.mirror import Mirror
from heet_elastic.store.records import encode
from heet_elastic.store.snapshot import SnapshotDecoder

log = logging.getLogger(__name__)


_LONGEST_SLEEP_S = 5.0
_RETRY_S = 0.5
_OUTAGE_S = 1.0
"""Out of reach for longer than this is an outage; shorter gaps are a reconnect."""


@dataclass(slots=True)
class _Fitted:
    """The predictor and what it was fitted to."""

    predictor: Predictor
    profiles: object
    at: float


class Coordinator:
    """One coordinator process. `run` blocks until `stop`; the constructor does no I/O."""

    def __init__(
        self,
        store: Store,
        settings: CoordinatorSettings,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix)
        self._store = store
        self._host = host
        self._clock = clock
        self._rng = np.random.default_rng(seed)
        self._policy = POLICIES[settings.policy]()
        self._fit = METHODS[settings.predictor]
        self._stop = threading.Event()
        self._mirror = Mirror(store, self.keys.root, self.keys)
        self._decoder = SnapshotDecoder(self.keys)
        self._term: Term | None = None
        self._memory = Memory()
        self._table = Table()
        self._fitted: _Fitted | None = None
        self._quiet_until = 0.0
        self._out_since: float | None = None
        self._store_id = b""
        self._said: dict[str, str] = {}
        self._problems: frozenset[str] = frozenset()

    @property
    def leading(self) -> bool:
        """Whether this process leads now."""
        return self._term is not None and self._term.alive

    def stop(self) -> None:
        """Make `run` end; may be called from a signal handler or another thread."""
        self._stop.set()
        self._mirror.wake()

    def run(self) -> None:
        """Lead or stand by until `stop`. Raises StoreRefusedError where a person must change something first."""
        try:
            self._connect()
            while not self._stop.is_set():
                try:
                    sleep_s = self._cycle()
                except StoreUnavailableError as e:
                    self._say("store", f"the store does not answer: {e}", logging.WARNING)
                    sleep_s = _RETRY_S
                except Exception:
                    # A fault in one decision must not end the coordinator: the next snapshot may be another one.
                    log.exception("a decision failed; the next one follows in %g s", _RETRY_S)
                    self._stop.wait(_RETRY_S)
                    sleep_s = 0.0
                self._wait(sleep_s)
        finally:
            self._leave()

    def _connect(self) -> None:
        while not self._stop.is_set():
            try:
                self._mirror.start()
                self._store_id = self._mirror.store_id
                return
            except StoreUnavailableError as e:
                self._say("store", f"waiting for the store: {e}", logging.WARNING)
                self._stop.wait(_RETRY_S)

    def _leave(self) -> None:
        self._mirror.close()
        if self._term is not None and self._term.alive:
            self._term.resign()

    def _wait(self, sleep_s: float) -> None:
        """Until something changes, at most `sleep_s`."""
        if sleep_s > 0 and not self._stop.is_set():
            self._mirror.wait(self._seen[0], min(sleep_s, _LONGEST_SLEEP_S), self._seen[1])

    _seen: tuple[int, int] = (0, 0)

    def _cycle(self) -> float:
        """One look; how long to sleep unless something changes."""
        now = self._clock()
        self._watch_outages(now)
        self._seen = (self._mirror.view.revision, self._mirror.generation)
        view, changed = self._mirror.drain()
        decoded = self._decoder.decode(view, changed)
        self._report(decoded.problems)
        snapshot = decoded.snapshot
        if not self._lead(snapshot, now):
            return _LONGEST_SLEEP_S if self._mirror.connected else _RETRY_S
        if not self._mirror.connected:
            return _RETRY_S
        if now < self._quiet_until:
            self._say("state", "leads, and waits for agents to register again before it decides")
            return self._quiet_until - now
        if not self._mark_epoch(snapshot):
            return _RETRY_S
        return self._decide(snapshot, now)

    def _watch_outages(self, now: float) -> None:
        """Open a recovery window after an outage and after a change of store."""
        silent = self._mirror.silent_for_s()
        if silent > _OUTAGE_S and self._out_since is None:
            self._out_since = now - silent
            self._say("store", "the store is out of reach: nothing is decided until it is back", logging.WARNING)
        emptied = self._mirror.store_id != self._store_id
        back = self._out_since is not None and self._mirror.connected
        if emptied or back:
            self._out_since, self._store_id = None, self._mirror.store_id
            self._quiet_until = now + self.settings.recovery_window_s
            what = "another store answers (it was emptied?)" if emptied else "the store is back"
            self._say("store", f"{what}: nothing is decided for {self.settings.recovery_window_s:g} s", logging.WARNING)
        if emptied:
            # Its term ended with the old store: the leader key is gone, whatever the lease says.
            self._step_down("the store was emptied")

    def _lead(self, snapshot: Snapshot, now: float) -> bool:
        """Whether this process leads, after trying to where nobody does."""
        term, leader = self._term, snapshot.leader
        if term is not None:
            shown = leader is not None and leader.record.uuid == term.leader.record.uuid
            unseen = snapshot.revision < term.leader.create_revision
            if term.alive and (shown or unseen):
                return True
            self._step_down("another coordinator leads" if leader is not None else "its lease ended")
        if leader is not None:
            who = leader.record
            self._say("state", f"standby: {who.host} (pid {who.pid}, policy {who.policy}) leads")
            return False
        if not self._mirror.connected:
            return False
        self._term = campaign(
            self._store,
            self.keys,
            self._mirror.store_id,
            self._host,
            self.settings.policy,
            __version__,
            self.settings.ttl_s,
            lambda _: self._mirror.wake(),
        )
        if self._term is None:
            return False
        self._memory = Memory()
        if snapshot.epoch is None:
            # A store that nobody ever led, or one that was emptied: its agents come back within a quarter of a TTL.
            self._quiet_until = max(self._quiet_until, now + self._first_window_s(snapshot))
        self._say("state", f"leads: policy {self.settings.policy}, predictor {self.settings.predictor}")
        return True

    def _first_window_s(self, snapshot: Snapshot) -> float:
        ran = any(v.record.round > 0 for view in snapshot.jobs.values() for v in view.agents.values())
        known = any(view.allocation is not None for view in snapshot.jobs.values())
        return self.settings.recovery_window_s if ran and not known else 0.0

    def _step_down(self, why: str) -> None:
        if self._term is not None:
            self._term.lease.abandon()
            self._term = None
            self._say("state", f"leads no more: {why}", logging.WARNING)

    def _mark_epoch(self, snapshot: Snapshot) -> bool:
        """Whether everybody can see that a coordinator leads here; creates the mark before the first decision."""
        if snapshot.epoch is not None:
            return True
        assert self._term is not None
        mark = Put(self.keys.epoch, encode(Epoch(uuid.uuid4().hex)))
        outcome = self._store.txn([*self._term.compares(self.keys), absent(self.keys.epoch)], [mark])
        self._catch_up(outcome.revision if isinstance(outcome, Committed) else 0)
        return False

    def _decide(self, snapshot: Snapshot, now: float) -> float:
        assert self._term is not None
        predictor = self._fitted_to(snapshot.profiles, now)
        self._table = refresh(self._table, snapshot, predictor, self.settings.most_workers)
        world = World(snapshot, self._table, self._memory, self._term.leader.record.uuid)
        decision = decide(now, world, self._policy, self.settings, self._rng)
        self._memory = decision.memory
        self._say("reason", decision.reason)
        self._catch_up(self._apply(decision, snapshot))
        return decision.wake_in_s

    def _fitted_to(self, profiles: object, now: float) -> Predictor:
        """The predictor, fitted anew when profiles came, at most once an interval."""
        fitted = self._fitted
        stale = fitted is None or (fitted.profiles is not profiles and now - fitted.at >= self.settings.interval_s)
        if fitted is None or stale:
            assert isinstance(profiles, dict)
            history: list[Profile] = [profiles[name] for name in sorted(profiles)]
            fitted = self._fitted = _Fitted(Rounded(self._fit(history, self._rng)), profiles, now)
        return fitted.predictor

    def _apply(self, decision: Decision, snapshot: Snapshot) -> int:
        """Write the actions in order; the newest revision that was written. Ends early when the store fails."""
        assert self._term is not None
        fences = self._term.compares(self.keys)
        newest = 0
        for (compares, operations), actions in transactions(decision.actions, self.keys, snapshot, time.time()):
            if not self._term.alive:
                break
            outcome = self._store.txn([*fences, *compares], operations)
            newest = max(newest, outcome.revision)
            if isinstance(outcome, Committed):
                for action in actions:
                    self._written(action)
            else:
                log.debug("lost the race for %s: it is looked at again", ", ".join(op.key for op in operations[:2]))
        return newest

    def _written(self, action: Action) -> None:
        match action:
            case Allocate(job, allocation):
                log.info("job %s round %d: %s", job, allocation.round, allocation.reason)
            case SetResult(job, result):
                log.info("job %s %s: %s", job, result.outcome, result.reason)
                self._mark_ended(job, encode(result))
            case _:
                pass

    def _mark_ended(self, job: str, value: bytes) -> None:
        """Who comes within `late_join_s` belongs to the run that has just ended."""
        assert self._term is not None
        if self.settings.late_join_s > 0:
            lease = self._store.lease(max(self.settings.late_join_s, 1.0))
            lease.abandon()
            self._store.txn(self._term.compares(self.keys), [Put(self.keys.ended(job), value, lease.id)])

    def _catch_up(self, revision: int) -> None:
        """Wait until the mirror shows what was just written (or what made it lose): no decision on an older picture."""
        deadline = time.monotonic() + 2.0
        while self._mirror.view.revision < revision and time.monotonic() < deadline and not self._stop.is_set():
            self._mirror.wait(revision - 1, 0.5)

    def _report(self, problems: tuple[str, ...]) -> None:
        for problem in sorted(set(problems) - self._problems):
            log.warning("skipped what cannot be read: %s", problem)
        self._problems = frozenset(problems)

    def _say(self, about: str, sentence: str, level: int = logging.INFO) -> None:
        """Log a sentence when it differs from the last one about the same."""
        if self._said.get(about) != sentence:
            self._said[about] = sentence
            log.log(level, "%s", sentence)
