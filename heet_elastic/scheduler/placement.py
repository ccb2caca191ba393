"""Which GPUs: puts a Choice on hosts so that as many workers as possible stay where they are (docs/scheduling.md).

1. A frozen job keeps exactly what it has.
2. Scale-downs: a job keeps its workers on its host type and gives back from the host with fewest of its workers.
3. Scale-ups that fit on hosts which hold the job already.
4. The others, the one that lacks most first: hosts that hold the job, whole hosts, then best fit. A job that must
   restart anyway starts on other hosts where it would be faster than spread over more of them.
A growth that would make a job slower (it would spread) is not applied. What does not fit is shrunk to the next allowed
count, or gets nothing. Every result is feasible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from heet_elastic.scheduler.api import BoolArray, Choice, Placed, Problem
from heet_elastic.scheduler.consolidation import consolidate
from heet_elastic.scheduler.free import Free
from heet_elastic.scheduler.options import counts_JW
from heet_elastic.scheduler.sizes import Priced, Sizes, reprice
from heet_elastic.scheduler.spanning import span_types

__all__ = ["Priced", "place", "reprice"]

Where = dict[int, int]
"""Workers of one job by group."""


def place(problem: Problem, choice: Choice) -> tuple[Placed, ...]:
    """Where each job runs under `choice`; near-linear in workers placed, deterministic, independent of job order."""
    return Placer(problem, choice).run()


class Placer:
    """One run of `place`: free GPUs by group, and what each job has been given so far."""

    def __init__(self, problem: Problem, choice: Choice) -> None:
        self.problem = problem
        self.sizes = Sizes(problem)
        self.free = Free(self.sizes.gpus, self.sizes.type_of, len(problem.host_types))
        self.placed: dict[int, Where] = {}
        self.type_J: list[int] = choice.type_J.tolist()
        self.want_J: list[int] = choice.workers_J.tolist()
        self.per_host_J: list[int] = problem.per_host_J.tolist()
        self._allowed_JW: BoolArray | None = None

    def run(self) -> tuple[Placed, ...]:
        problem, names = self.problem, self.problem.jobs
        frozen: list[bool] = problem.frozen_J.tolist()
        wanted = [j for j, want in enumerate(self.want_J) if want > 0 and self.type_J[j] >= 0 and not frozen[j]]
        for j in sorted((j for j, is_frozen in enumerate(frozen) if is_frozen), key=names.__getitem__):
            self.set(j, dict(problem.current[j]))
        wanted.sort(key=names.__getitem__)
        for j in wanted:
            if problem.current[j]:
                kept = self._kept(j)
                # On too few hosts (its limits have changed), it leaves a worker for each one that it lacks.
                lacks = max(int(problem.min_hosts_J[j]) - len(kept), 0) * max(self.per_host_J[j], 1)
                self.set(j, self._shrunk(j, kept, max(self.want_J[j] - lacks, 0)))
        growing = [j for j in wanted if sum(self.placed.get(j, {}).values()) < self.want_J[j]]
        growing = [j for j in growing if not self._grow_at_home(j)]
        growing.sort(key=lambda j: (sum(self.placed.get(j, {}).values()) - self.want_J[j], names[j]))
        for j in growing:
            self._grow(j)
        consolidate(self)
        nothing: Placed = ()
        result = [nothing] * len(names)
        for j, where in self.placed.items():
            result[j] = tuple(sorted(where.items()))
        return tuple(result)

    def set(self, j: int, where: Where) -> None:
        """Job j now holds `where` instead of what it held."""
        for group, workers in self.placed.get(j, {}).items():
            self.free.take(group, -workers)
        for group, workers in where.items():
            self.free.take(group, workers)
        self.placed[j] = where

    def limit(self, j: int, group: int) -> int:
        """Most workers of job j on this group, other jobs aside."""
        limit, size = self.problem.limit_JG, self.sizes.gpus[group]
        most = size if limit is None else min(size, int(limit[j, group]))
        each = self.per_host_J[j]
        return most if not each else (each if most >= each else 0)

    def _limiter(self, j: int) -> Callable[[int], int] | None:
        return None if self.problem.limit_JG is None else lambda group: self.limit(j, group)

    def _kept(self, j: int) -> Where:
        """Workers of job j on its chosen type that can stay, given limits and frozen jobs."""
        h, current, each = self.type_J[j], self.problem.current[j], self.per_host_J[j]
        mixed = len({self.sizes.type_of[group] for group, _ in current}) > 1
        where: Where = {}
        for group, workers in current:
            if mixed or self.sizes.type_of[group] == h:
                stays = min(workers, self.limit(j, group), self.free.gpus[group])
                if stays > 0 and (not each or stays == each):
                    where[group] = stays
        if mixed and sum(where.values()) != self.want_J[j]:
            return {}  # several types are a last resort: never extended, never cut
        most = int(self.problem.max_hosts_J[j])
        return where if len(where) <= most else dict(sorted(where.items(), key=lambda p: (-p[1], p[0]))[:most])

    def _shrunk(self, j: int, where: Where, want: int) -> Where:
        """`where` cut to at most `want` workers, from the host with fewest of them; at least `min_hosts` hosts stay."""
        surplus = sum(where.values()) - want
        if surplus <= 0:
            return where
        where, floor = dict(where), int(self.problem.min_hosts_J[j])
        for group in sorted(where, key=lambda g: (where[g], g)):
            gives = min(where[group], surplus)
            if gives == where[group] and len(where) <= floor:
                gives -= 1
            where[group] -= gives
            surplus -= gives
            if not where[group]:
                del where[group]
            if surplus <= 0:
                break
        return where

    def _grow_at_home(self, j: int) -> bool:
        """Grow job j on the hosts that hold it; whether that gave it all that it wants."""
        kept = self.placed.get(j, {})
        if not kept or len(kept) < int(self.problem.min_hosts_J[j]):
            return False
        where = self._at_home(j, kept, self.want_J[j])
        if sum(where.values()) < self.want_J[j]:
            return False
        if not (self._may_stay(j) and not self.faster(j, kept, where)):
            self.set(j, where)
        return True

    def _at_home(self, j: int, kept: Where, want: int) -> Where:
        where, lack = dict(kept), want - sum(kept.values())
        if self.per_host_J[j]:
            return where
        for group in sorted(kept, key=lambda g: (-kept[g], g)):
            more = min(lack, self.limit(j, group) - where[group], self.free.gpus[group])
            if more > 0:
                where[group] += more
                lack -= more
        return where

    def intact(self, j: int) -> bool:
        """Whether job j still holds exactly what it runs on, so that it may go on without a rescale."""
        kept = self.placed.get(j, {})
        return bool(kept) and tuple(sorted(kept.items())) == self.problem.current[j]

    def _may_stay(self, j: int) -> bool:
        """Whether job j may go on as it is: intact, and within its limits (they may have changed meanwhile)."""
        kept = self.placed.get(j, {})
        held, enough = sum(kept.values()), len(kept) >= int(self.problem.min_hosts_J[j])
        return enough and self.intact(j) and next(self._counts_down(j, held), 0) == held

    def faster(self, j: int, old: Where, new: Where) -> bool:
        """Whether job j is faster at `new`."""
        now, _ = self.sizes.speed(j, tuple(sorted(old.items())))
        then, _ = self.sizes.speed(j, tuple(sorted(new.items())))
        return then > now

    def _grow(self, j: int) -> None:
        """Give job j what it lacks; else the next allowed count below; else what it holds already, or nothing."""
        kept = self.placed.get(j, {})
        held, intact = sum(kept.values()), self._may_stay(j)
        for want in self._counts_down(j, self.want_J[j]):
            if want <= held and intact:
                return
            where = self._best(j, kept, want) if want > held else self._refit(j, kept, want)
            if where is not None:
                where = self._denser(j, where, want, held)
                if not (intact and not self.faster(j, kept, where)):
                    self.set(j, where)
                    return
        if not intact:
            self.set(j, {})

    def _denser(self, j: int, where: Where, want: int, held: int) -> Where:
        """`where`, or the most workers that fit on one host now, if they are faster than `want` spread over several."""
        if len(where) == 1 or self.sizes.speed(j, tuple(where.items()))[1]:
            return where
        room = max(min(self.free.gpus[g], self.limit(j, g)) for g in self.free.groups[self.type_J[j]])
        for fewer in islice(self._counts_down(j, min(room, want - 1)), 1):
            alone = self.fresh(j, fewer, (self.type_J[j],)) if fewer > held else None
            if alone is not None and not self.faster(j, alone, where):
                return alone
        return where

    def _refit(self, j: int, kept: Where, want: int) -> Where | None:
        """A place for fewer workers than job j has left of a broken placement."""
        where = self._shrunk(j, kept, want)
        if sum(where.values()) == want and len(where) >= int(self.problem.min_hosts_J[j]):
            return where
        return self.fresh(j, want, (self.type_J[j],))

    def _counts_down(self, j: int, most: int) -> Iterator[int]:
        """Allowed counts from `most` downwards; mostly the first is all that is asked for."""
        if self._allowed_JW is None:
            self._allowed_JW = counts_JW(self.problem)
        allowed = self._allowed_JW[j]
        for workers in range(min(most, len(allowed)), 0, -1):
            if allowed[workers - 1]:
                yield workers

    def _best(self, j: int, kept: Where, want: int) -> Where | None:
        """A place for `want` workers that extends `kept`, or a fresh one where that is faster; None = no place."""
        types = (self.type_J[j],)
        extended = self._extend(j, self._at_home(j, kept, want), want, types)
        if not kept:
            return extended if extended is not None else self._span(j, want)
        if extended is not None and len(extended) == 1:
            return extended
        fresh = self.fresh(j, want, types)
        if fresh is None or (extended is not None and not self.faster(j, extended, fresh)):
            return extended
        return fresh

    def fresh(self, j: int, want: int, types: tuple[int, ...]) -> Where | None:
        """A place for `want` workers as if job j held nothing (its own GPUs count as free)."""
        kept = self.placed.get(j, {})
        self.set(j, {})
        where = self._extend(j, {}, want, types)
        self.set(j, kept)
        return where

    def _span(self, j: int, want: int) -> Where | None:
        """Workers over several host types, for a job whose smallest allowed count is too large for each one alone."""
        smallest = list(self._counts_down(j, want))[-1:]
        types = range(len(self.problem.host_types))
        if not smallest or any(self._room(j, h) >= smallest[0] for h in types):
            return None
        return self._extend(j, {}, want, tuple(span_types(self.problem, j, want)))

    def _room(self, j: int, h: int) -> int:
        most = sorted((self.limit(j, group) for group in self.free.groups[h]), reverse=True)
        return sum(most[: int(self.problem.max_hosts_J[j])])

    def _extend(self, j: int, start: Where, want: int, types: tuple[int, ...]) -> Where | None:
        """`start` plus workers on other free hosts of `types` up to `want`; None when it does not fit.

        While more is lacking than any host can give, the emptiest host; at last the fullest that can hold the rest.
        """
        where, lack, each = dict(start), want - sum(start.values()), self.per_host_J[j]
        most_hosts, least_hosts = int(self.problem.max_hosts_J[j]), int(self.problem.min_hosts_J[j])
        limit = self._limiter(j)
        taken = []
        for h in types:
            while lack > 0 and len(where) < most_hosts:
                ask = each or max(lack - max(least_hosts - len(where) - 1, 0), 1)
                found = self.free.fit(h, ask, bool(each), where, limit)
                if found is None:
                    break
                group, most = found
                where[group] = min(ask, most)
                lack -= where[group]
                self.free.take(group, where[group])  # so that the next search does not meet it again
                taken.append(group)
        for group in taken:
            self.free.take(group, -where[group])
        return where if lack == 0 and len(where) >= least_hosts else None
