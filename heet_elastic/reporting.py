"""What a training script may tell heet, and need not: how far it is, and what heet cannot count by itself.

    import heet_elastic
    heet_elastic.progress(epoch, epochs)          # anywhere, as often as you like
    heet_elastic.report(samples=len(batch))       # where forward passes do not show the batch

Both check their arguments alike everywhere, and do nothing outside a heet job. Neither imports torch.
"""

from __future__ import annotations

import math
from typing import Protocol


class Sink(Protocol):
    """Who takes reports: the sampler of a heet worker."""

    def progress(self, done: float, total: float | None) -> None:
        """Latest position of the job."""

    def report(self, samples: float | None, steps: int | None) -> None:
        """Samples and steps that this worker made since its last report; None = not told."""


_sink: Sink | None = None


def connect(sink: Sink | None) -> None:
    """Send reports to `sink` from now on (None: nowhere)."""
    global _sink
    _sink = sink


def progress(done: float, total: float | None = None) -> None:
    """Tell heet how far the job is: `done` of `total`, in any unit (epochs, steps, files...).

    It replaces heet's own count of the remaining work: `done / total` is the share that is done. Give the position of
    the whole job, including what was done before a restart. Any worker may tell; the largest value counts.
    ValueError: `done` is negative or not finite, `total` is not a positive finite number.
    """
    done_, total_ = float(done), None if total is None else float(total)
    if not math.isfinite(done_) or done_ < 0:
        raise ValueError(f"heet_elastic.progress: done is {done!r}, expected a finite number >= 0")
    if total_ is not None and (not math.isfinite(total_) or total_ <= 0):
        raise ValueError(f"heet_elastic.progress: total is {total!r}, expected a finite number > 0")
    if _sink is not None:
        _sink.progress(done_, total_)


def report(samples: float | None = None, steps: int | None = None) -> None:
    """Tell heet what this worker has done since its last report; from the first one on it is not guessed any more.

    `samples` of this worker alone, where forward passes do not show them; `steps` only in loops that use no
    `torch.optim` optimizer. ValueError: nothing is given, or a number is negative or not finite.
    """
    if samples is None and steps is None:
        raise ValueError("heet_elastic.report: give samples=, steps=, or both")
    samples_, steps_ = None if samples is None else float(samples), None if steps is None else int(steps)
    if samples_ is not None and (not math.isfinite(samples_) or samples_ < 0):
        raise ValueError(f"heet_elastic.report: samples is {samples!r}, expected a finite number >= 0")
    if steps_ is not None and steps_ < 0:
        raise ValueError(f"heet_elastic.report: steps is {steps!r}, expected a whole number >= 0")
    if _sink is not None:
        _sink.report(samples_, steps_)
