"""Shortest augmenting paths in a transportation problem with few sinks.

A path leads a job to a sink, one of that sink's jobs on to another sink, and so on to a sink with room. Its length is
found by Dijkstra over the sinks; the cheapest job to move from h to k is the top of a heap by cost[k] - cost[h], so a
path costs O(sinks^2 log jobs) whatever the number of jobs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from heet_elastic.scheduler.api import FloatArray, IntArray


class Paths:
    """A partial assignment that is optimal for the prices given, to be completed job by job.

    cost[s, j] of job j at sink s; room[s]; price[s] >= 0, positive only at full sinks; type_J[j] = sink, -1 = none yet.
    """

    def __init__(self, cost: FloatArray, room: IntArray, price: FloatArray, type_J: IntArray) -> None:
        self.cost, self.type_J = cost, type_J
        self.price: list[float] = price.tolist()
        sinks = range(len(room))
        self.left: list[int] = (room - np.bincount(type_J[type_J >= 0], minlength=len(room))).tolist()
        self.heaps: list[list[list[tuple[float, int]]]] = [[[] for _ in sinks] for _ in sinks]
        if not (type_J < 0).any():
            return
        for h in sinks:
            members = np.flatnonzero(type_J == h)
            for k in sinks:
                if k != h:
                    extra = (cost[k, members] - cost[h, members]).tolist()
                    heap = list(zip(extra, members.tolist(), strict=True))
                    heapify(heap)
                    self.heaps[h][k] = heap

    def augment(self, j: int) -> None:
        """Assign job j and move others so that the assignment stays of least cost; updates prices."""
        sinks, price = range(len(self.left)), self.price
        column: list[float] = self.cost[:, j].tolist()
        distance = [c + p for c, p in zip(column, price, strict=True)]
        mover, came_from, done = [j] * len(distance), [-1] * len(distance), [False] * len(distance)
        while True:
            h = min((k for k in sinks if not done[k]), key=lambda k: (distance[k], k))
            done[h] = True
            if self.left[h] > 0:
                break
            for k in sinks:
                if not done[k] and (top := self._top(h, k)) is not None:
                    reach = distance[h] + max(top[0] + price[k] - price[h], 0.0)
                    if reach < distance[k]:
                        distance[k], mover[k], came_from[k] = reach, top[1], h
        for k in sinks:
            if done[k]:
                price[k] += distance[h] - distance[k]
        self.left[h] -= 1
        while h >= 0:
            self._assign(mover[h], h)
            h = came_from[h]

    def _top(self, h: int, k: int) -> tuple[float, int] | None:
        heap, type_J = self.heaps[h][k], self.type_J
        while heap and type_J[heap[0][1]] != h:
            heappop(heap)
        return heap[0] if heap else None

    def _assign(self, j: int, h: int) -> None:
        column: list[float] = self.cost[:, j].tolist()
        self.type_J[j] = h
        for k, there in enumerate(column):
            if k != h:
                heappush(self.heaps[h][k], (there - column[h], j))
