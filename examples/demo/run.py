"""The whole loop on one machine: three pretend hosts, two unmodified DDP scripts, one coordinator.

    scripts/demo [--plain] [--picture FILE.svg] [--logs DIR]

Hosts join one after another and a second job arrives; what heet makes of it is shown while it happens. Ends with 0 if
every torchrun ended with 0, every chapter of the story was seen, and predictions were within 30 %.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples.demo.history import History, mean
from examples.demo.screen import Screen
from examples.demo.stage import CNN, HOSTS, TRANSFORMER, Stage, measure_pace
from heet_elastic.coordinator.settings import CoordinatorSettings
from heet_elastic.predictor.api import Source

LONGEST_S = 225.0
TOLERANCE = 0.30


class Director:
    """Looks at the store four times a second, shows it, and waits for what the story needs."""

    def __init__(self, stage: Stage, history: History, screen: Screen) -> None:
        self.stage, self.history, self.screen = stage, history, screen
        self.deadline = time.monotonic() + LONGEST_S
        self.missing: list[str] = []

    def until(self, condition: Callable[[], object], timeout_s: float, what: str) -> bool:
        """Look until `condition`; False (and remembered as missing) when it has not come within `timeout_s`."""
        deadline = min(time.monotonic() + timeout_s, self.deadline)
        while time.monotonic() < deadline:
            snapshot = self.stage.snapshot()
            for change in self.history.look(snapshot, time.monotonic()):
                self.screen.say(f"{change}. {change.reason}")
            self.screen.show(snapshot, self.history)
            if broken := self.stage.broken():
                raise RuntimeError(broken)
            if condition():
                return True
            time.sleep(0.25)
        self.missing.append(what)
        self.screen.say(f"not seen within {timeout_s:g} s: {what}")
        return False

    def at(self, job: str, host_type: str, workers: int | None = None) -> bool:
        """Whether `job` runs there now and was measured there."""
        now = self.history.configuration(job)
        if now is None or not now.host_type.startswith(host_type) or workers not in (None, now.workers):
            return False
        return now in self.history.measured(job)

    def steps_now(self, job: str) -> bool:
        """Whether the newest round of `job` has made a step."""
        return self.history.of(job)[-1].first_step_at is not None

    def seen(self, job: str, kind: str, host_type: str = "", since: int = 0) -> bool:
        """Whether a change of that kind, to that host type, is among those from number `since` on."""
        new = self.history.changes[since:]
        return any(
            c.job == job and c.kind == kind and c.after is not None and c.after.host_type.startswith(host_type)
            for c in new
        )


def play(director: Director) -> None:
    """The story, chapter by chapter. Each starts processes and waits for what heet decides."""
    stage, screen, until = director.stage, director.screen, director.until
    screen.chapter("Host turing joins: job cnn starts on its one T4")
    stage.offer(CNN, "turing")
    until(lambda: director.at("cnn", "T4"), 40, "cnn is measured on the T4")

    screen.chapter("Host pascal joins: a P100 is 1.6 times a T4 by its datasheet, but this one is throttled")
    stage.offer(CNN, "pascal")
    until(lambda: director.seen("cnn", "moves", "P100"), 25, "cnn tries the P100")
    back = len(director.history.changes)
    until(lambda: director.seen("cnn", "moves", "T4", since=back), 45, "samples move cnn back to the T4")
    until(lambda: director.steps_now("cnn"), 20, "cnn trains on the T4 again")

    screen.chapter("Host volta joins: four V100s")
    stage.offer(CNN, "volta")
    until(lambda: director.seen("cnn", "grows", "V100"), 30, "cnn grows on the V100s")
    until(lambda: director.at("cnn", "V100"), 30, "cnn is measured on the V100s")

    screen.chapter("A second job arrives: transformer may use every host, too")
    stage.offer(TRANSFORMER, *(h.name for h in HOSTS))
    until(lambda: director.seen("cnn", "shrinks"), 30, "cnn shrinks for transformer")
    until(lambda: director.seen("transformer", "starts"), 30, "transformer starts")

    screen.chapter("Both train to their end")
    ended = lambda: not any(a.alive for a in stage.agents)  # noqa: E731
    until(ended, LONGEST_S, "every torchrun ends")


def summary(director: Director) -> list[str]:
    """The figures, printed; the sentences about what was not as it should be, returned."""
    history, say = director.history, director.screen.line
    wrong = [f"not seen: {what}" for what in director.missing]
    codes = [a.popen.poll() for a in director.stage.agents]
    say(f"torchruns: {len(codes)}, exit codes {sorted({str(c) for c in codes})}")
    wrong += [
        f"torchrun of {a.job} on {a.host}: exit code {a.popen.poll()}" for a in director.stage.agents if a.popen.poll()
    ]
    rounds = [c for c in history.changes if c.after is not None]
    by_job = ", ".join(f"{job.name} {sum(c.job == job.name for c in rounds)}" for job in (CNN, TRANSFORMER))
    say(f"rounds: {len(rounds)} ({by_job})")
    say("from a decision to the first step after it (workers save and stop, new ones import torch and start):")
    for kind in ("starts", "grows", "shrinks", "moves"):
        times = [c.seconds for c in rounds if c.kind == kind and c.seconds is not None]
        if times:
            say(f"  {kind:8} {len(times)}x, {mean(times):.1f} s")
    snapshot = director.stage.snapshot()
    records = [r for view in snapshot.jobs.values() for r in view.samples.values()]
    say(f"samples taken: {sum(r.datagrams for r in records)} messages of workers")
    wrong += judge(history, say)
    return wrong


def judge(history: History, say: Callable[[str], None]) -> list[str]:
    """Predicted against measured speed. What came from datasheets alone is shown, and not judged."""
    say("predicted against measured, steps/s:")
    wrong = []
    judged = 0
    for change, measured in history.predictions():
        assert change.expected is not None
        error = change.expected / measured - 1
        prior = change.source is Source.PRIOR
        note = "  from datasheets alone: not judged" if prior else ""
        say(f"  {change.job:12} {change.after!s:28} {change.expected:8.2f} {measured:8.2f} {error:+8.0%}{note}")
        judged += not prior
        if abs(error) > TOLERANCE and not prior:
            wrong.append(f"{change.job} on {change.after}: predicted {change.expected:.2f}, measured {measured:.2f}")
    return wrong if judged else ["no prediction could be compared with a measurement"]


def run(folder: Path, screen: Screen) -> list[str]:
    """Everything; the sentences about what went wrong."""
    screen.line(
        "Three pretend hosts on this machine. Their workers are stopped and continued (SIGSTOP, SIGCONT) so that"
    )
    screen.line("each gets only a share of a core; the training scripts know nothing of it:")
    for host in HOSTS:
        screen.line(f"  {host.name:8} {host.cards} x {host.card:5} each worker at most {host.share:.0%} of a core")
    screen.line("First each script trains alone, to measure what a worker makes here (seconds on an idle machine) ...")
    with ThreadPoolExecutor() as pool:
        jobs = (CNN, TRANSFORMER)
        paces = dict(zip((j.name for j in jobs), pool.map(lambda j: measure_pace(j, folder), jobs), strict=True))
    for name, pace in paces.items():
        screen.line(f"  with a core of its own, one worker of {name} makes {pace:.1f} steps/s here")
    with Stage(folder, paces) as stage:
        director = Director(stage, History(CoordinatorSettings()), screen)
        with screen:
            play(director)
        return summary(director)


def too_busy(load: tuple[float, float, float], cores: int) -> str:
    """A sentence about a machine on which nothing can be on time; "" where the demo alone explains its load.

    load: over 1, 5 and 15 minutes. The demo keeps two cores busy, with up to six workers in the queue for them.
    """
    if load[0] <= 2 * max(cores, 2) + 4:
        return ""
    return f"This machine is busy with other work (load {load[0]:.0f} on {cores} cores): try again when it is idle."


def main() -> int:
    """Run the demo; 0 when all was as promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="lines instead of a live table")
    parser.add_argument("--picture", type=Path, help="write the table with both jobs as SVG")
    parser.add_argument("--logs", type=Path, help="keep logs and checkpoints in this new folder")
    args = parser.parse_args()
    begun = time.monotonic()
    screen = Screen(plain=args.plain, picture=args.picture)
    with contextlib.ExitStack() as stack:
        folder = args.logs
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heet-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            wrong = run(folder, screen)
        except (RuntimeError, AssertionError) as error:
            wrong = [str(error)]
        except KeyboardInterrupt:
            wrong = ["interrupted"]
    screen.line(f"took {time.monotonic() - begun:.0f} s")
    for sentence in wrong:
        screen.line(f"FAILED: {sentence}")
    if wrong and (others := too_busy(os.getloadavg(), os.cpu_count() or 1)):
        screen.line(others)
    if not wrong:
        screen.line("All as promised.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
