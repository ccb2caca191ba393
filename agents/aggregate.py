"""What an agent's workers reported, as counters of one round: pure functions of the newest message of each worker.

Workers of a round are synchronous: they share the time per step (the median over them is taken), and samples add up.
A worker whose message is missing is assumed to have seen what the others saw on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from heet_elastic.agents.messages import SampleMessage
from heet_elastic.model import CellCounters, Configuration, JobFeatures, RoundProgress


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What a round is counted for. `configuration` None = mixed host types: it fills no cell."""

    round: int
    configuration: Configuration | None
    local_workers: int


def round_cell(plan: RoundPlan, messages: Sequence[SampleMessage]) -> CellCounters | None:
    """Counters of one round; None for a mixed round and until somebody made a second step.

    The first step only starts the clock, so `steps` and the samples are those made in `seconds`.
    """
    stepping = [m for m in messages if m.steps > 1]
    if plan.configuration is None or not stepping:
        return None
    steps = round(median(m.steps - 1 for m in stepping))
    worker_steps = steps * plan.local_workers
    timed = [m for m in stepping if m.windows > 0 and m.step_s > 0]
    return CellCounters(
        configuration=plan.configuration,
        seconds=median(max(0.0, m.at_s - m.first_step_s - m.paused_s) for m in stepping),
        steps=steps,
        local_samples=fmean(m.samples / m.steps for m in stepping) * worker_steps,
        local_tokens=fmean(m.tokens / m.steps for m in stepping) * worker_steps,
        step_s=median([m.step_s for m in timed] or [0.0]),
        step_spread_s=median([m.step_spread_s for m in timed] or [0.0]),
        windows=round(median([m.windows for m in timed] or [0])),
        local_workers=plan.local_workers,
        paused_s=median(m.paused_s for m in stepping),
        stalled_s=median(m.stalled_s for m in stepping),
        compute_s=median([m.compute_s for m in stepping if m.compute_s > 0] or [0.0]),
    )


def add_cells(cells: Iterable[CellCounters]) -> tuple[CellCounters, ...]:
    """One of each configuration and number of local workers: counters add up, times weigh by their windows."""
    sums: dict[tuple[Configuration, int], CellCounters] = {}
    for cell in cells:
        key = (cell.configuration, cell.local_workers)
        known = sums.get(key)
        sums[key] = cell if known is None else _sum(known, cell)
    return tuple(sums[key] for key in sorted(sums))


def _sum(a: CellCounters, b: CellCounters) -> CellCounters:
    windows = a.windows + b.windows

    def mean(x: float, y: float, weight_x: float, weight_y: float) -> float:
        return (x * weight_x + y * weight_y) / (weight_x + weight_y) if weight_x + weight_y else 0.0

    step_s = mean(a.step_s, b.step_s, a.windows, b.windows)
    # Rounds that disagree widen the spread: distance of each from the mean counts like a deviation.
    spread = mean(
        max(a.step_spread_s, abs(a.step_s - step_s)), max(b.step_spread_s, abs(b.step_s - step_s)), a.windows, b.windows
    )
    return replace(
        a,
        seconds=a.seconds + b.seconds,
        steps=a.steps + b.steps,
        local_samples=a.local_samples + b.local_samples,
        local_tokens=a.local_tokens + b.local_tokens,
        step_s=step_s,
        step_spread_s=spread,
        windows=windows,
        paused_s=a.paused_s + b.paused_s,
        stalled_s=a.stalled_s + b.stalled_s,
        compute_s=mean(a.compute_s, b.compute_s, a.windows * (a.compute_s > 0), b.windows * (b.compute_s > 0)),
    )


def round_progress(plan: RoundPlan, messages: Sequence[SampleMessage]) -> RoundProgress:
    """What the round did for the job's position: the most that anybody saw, as rank 0 alone may have saved or told."""
    if not messages:
        return RoundProgress(plan.round)
    marked = max(messages, key=lambda m: (m.marks > 0, m.marked_steps))
    told = max(messages, key=lambda m: -1.0 if m.done is None else m.done)
    loaded = [m.loaded_steps for m in messages if m.loaded_steps is not None]
    return RoundProgress(
        round=plan.round,
        steps=max(m.steps for m in messages),
        samples=fmean(m.samples for m in messages) * plan.local_workers,
        marks=marked.marks,
        marked_steps=marked.marked_steps,
        marked_samples=marked.marked_samples * plan.local_workers,
        loads=max(m.loads for m in messages),
        weight_loads=max(m.weight_loads for m in messages),
        loaded_steps=max(loaded, default=None),
        done=told.done,
        total=told.total,
    )


def features(messages: Sequence[SampleMessage]) -> JobFeatures | None:
    """Physical facts of the job, from the worker with the lowest rank that knows any; batch and tokens over all."""
    known = sorted((m for m in messages if m.parameters is not None), key=lambda m: m.rank)
    if not known:
        return None
    first = known[0]
    batches = [m.batch for m in messages if m.batch]
    samples, tokens = sum(m.samples for m in messages), sum(m.tokens for m in messages)
    return JobFeatures(
        parameters=first.parameters,
        parameter_bytes=first.parameter_bytes,
        gradient_bytes=first.gradient_bytes,
        dtype=first.dtype,
        batch_per_worker=median(batches) if batches else None,
        tokens_per_sample=tokens / samples if samples > 0 and tokens > 0 else None,
        device=first.device,
    )
