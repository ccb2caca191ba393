"""`heet explain JOB`: what it has, why, what it lost, how fast it is where, and what is known of that."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.text import Text

from heet_elastic.cli.access import Access
from heet_elastic.cli.output import console, print_json
from heet_elastic.cli.picture import JobLine, Picture, job_line, speeds
from heet_elastic.cli.render import speeds_table
from heet_elastic.cli.status import Json, fetch
from heet_elastic.cli.watching import JobArgument
from heet_elastic.errors import UsageError
from heet_elastic.model import JobView
from heet_elastic.words import counted


def explain(access: Access, job: JobArgument, json_: Json = False) -> None:
    """Explain a job: its GPUs and why, restarts, progress, speeds measured and predicted."""
    picture = fetch(access)
    view = find(picture, job)
    if json_:
        print_json(as_json(picture, view))
        return
    out = console()
    for line in sentences(picture, view):
        out.print(Text(line))
    found = speeds(picture, job)
    if found and view.spec is not None:
        out.print()
        out.print(speeds_table(found, view.spec.record.work_unit))


def find(picture: Picture, job: str) -> JobView:
    """The job, or UsageError with the ids that are there."""
    view = picture.snapshot.jobs.get(job)
    if view is None or view.spec is None:
        known = ", ".join(sorted(picture.snapshot.jobs)[:10]) or "none"
        raise UsageError(f"job {job!r} is not known here; known are: {known}")
    return view


def sentences(picture: Picture, view: JobView) -> list[str]:
    """The job in sentences, most important first."""
    line = job_line(picture, view)
    found = [f"Job {line.job} is {line.phase}: {line.reason}"]
    if line.queue_position is not None:
        found.append(f"Queue position {line.queue_position}.")
    found += _round(view, line)
    found += _limits(view)
    if line.restarts_left is not None:
        found.append(
            f"Restarts: {line.restarts_used} used by failures, {line.restarts_left} left "
            f"(lost or joining hosts cost none)."
        )
    row = picture.table.rows.get(view.job)
    if row is not None and row.done:
        share = "" if line.share is None else f", {line.share:.0%} of its work"
        found.append(f"Progress: {row.done:g} {line.unit} done{share}.")
    found += _account(view)
    found += [f"  {detail}" for detail in (view.status.record.details if view.status else ())]
    problems = sorted({p for r in view.samples.values() for p in r.problems})
    found += [f"Sampler: {problem}" for problem in problems]
    if not row or not row.cells:
        found.append("Nothing was measured yet: all speeds below are predictions.")
    return found


def _round(view: JobView, line: JobLine) -> list[str]:
    if view.allocation is None or view.result is not None:
        return []
    allocation = view.allocation.record
    if not allocation.members:
        return [f"Round {allocation.round} gave its devices back: {allocation.reason}"]
    found = [f"Round {allocation.round} ({allocation.cause}), {counted(line.workers, 'worker')}: {allocation.reason}"]
    for member in allocation.members:
        record = view.agents.get(member.agent)
        state = f", {record.record.state} since round {record.record.round}" if record else ", not heard of now"
        found.append(f"  rank {allocation.base_rank(member.agent)}+ on {member.host}: {', '.join(member.gpus)}{state}")
    return found


def _limits(view: JobView) -> list[str]:
    assert view.spec is not None
    spec = view.spec.record
    hosts = f"{spec.min_hosts}" if spec.rigid else f"{spec.min_hosts} to {spec.max_hosts}"
    most = "as many as its agents offer" if spec.max_workers is None else str(spec.max_workers)
    rule = f", one of {'/'.join(map(str, spec.allowed_workers))}" if spec.allowed_workers else ""
    rule += f", a multiple of {spec.multiple_of}" if spec.multiple_of > 1 else ""
    offers = ", ".join(sorted(f"{a.record.host}:{a.record.most_workers}" for a in view.agents.values())) or "none"
    return [
        f"It asks for {hosts} hosts and {spec.min_workers} to {most} workers{rule}, priority {spec.priority:g}.",
        f"Agents that offer themselves: {offers}.",
    ]


def _account(view: JobView) -> list[str]:
    if view.account is None:
        return []
    account = view.account.record
    found = []
    if account.rescales:
        costs = [
            f"{what} takes {cost:.0f} s"
            for what, cost in (("growing", account.rescale_up_s), ("shrinking", account.rescale_down_s))
            if cost is not None
        ]
        found.append(f"It was changed {account.rescales} times{': ' + ', '.join(costs) if costs else ''}.")
    shut = [x for x in account.exclusions if x.remaining_s > 0]
    return found + [f"Host {x.host} is excluded for {x.remaining_s:.0f} s more: {x.reason}" for x in shut]


def as_json(picture: Picture, view: JobView) -> dict[str, Any]:
    """What `heet explain --json` prints."""
    return {
        **asdict(job_line(picture, view)),
        "sentences": sentences(picture, view),
        "spec": asdict(view.spec.record) if view.spec else None,
        "allocation": asdict(view.allocation.record) if view.allocation else None,
        "account": asdict(view.account.record) if view.account else None,
        "speeds": [{**asdict(s), "configuration": asdict(s.configuration)} for s in speeds(picture, view.job)],
    }
