"""Free GPUs by group, indexed so that the best-fitting host is found without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heappop, heappush


class Free:
    """Free GPUs of each group. Per host type and free count, a heap of groups (stale entries are dropped when met)."""

    def __init__(self, size: list[int], type_of: list[int], types: int) -> None:
        self.gpus = list(size)
        self.groups: list[list[int]] = [[] for _ in range(types)]
        self._type_of = type_of
        self._heaps: list[dict[int, list[int]]] = [{} for _ in range(types)]
        for group, h in enumerate(type_of):
            self.groups[h].append(group)
            self._heaps[h].setdefault(size[group], []).append(group)  # ascending: a heap already

    def take(self, group: int, workers: int) -> None:
        """`workers` GPUs of `group` are no longer free; a negative number gives them back."""
        free = self.gpus[group] = self.gpus[group] - workers
        heappush(self._heaps[self._type_of[group]].setdefault(free, []), group)

    def fit(
        self, h: int, ask: int, exact: bool, used: Container[int], limit: Callable[[int], int] | None
    ) -> tuple[int, int] | None:
        """A group of type h outside `used` for `ask` workers: (group, most workers there), or None.

        The group with the least room >= ask; else, unless `exact`, the one with most room. Ties: the lowest group.
        `limit` tells the most workers of this job on a group, where that is less than all of its GPUs.
        """
        if limit is not None:
            return self._scan(h, ask, exact, used, limit)
        counts = sorted(self._heaps[h])
        for count in counts:
            if count >= ask and (group := self._unused(h, count, used)) is not None:
                return group, count
        if not exact:
            for count in reversed(counts):
                if 0 < count < ask and (group := self._unused(h, count, used)) is not None:
                    return group, count
        return None

    def _unused(self, h: int, count: int, used: Container[int]) -> int | None:
        heap = self._heaps[h][count]
        while heap and self.gpus[heap[0]] != count:
            heappop(heap)
        if not heap or heap[0] not in used:
            return heap[0] if heap else None
        # Only a job's own hosts are passed over, and those it has filled first: this scan is rare.
        return next((g for g in self.groups[h] if self.gpus[g] == count and g not in used), None)

    def _scan(
        self, h: int, ask: int, exact: bool, used: Container[int], limit: Callable[[int], int]
    ) -> tuple[int, int] | None:
        best: tuple[tuple[int, int, int], int, int] | None = None
        for group in self.groups[h]:
            free = self.gpus[group]
            room = min(free, limit(group))
            if group in used or room <= 0 or (exact and room < ask):
                continue
            key = (0, free, group) if room >= ask else (1, -room, group)
            if best is None or key < best[0]:
                best = key, group, room
        return None if best is None else (best[1], best[2])
