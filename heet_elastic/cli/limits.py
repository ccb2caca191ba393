"""Whether a job's limits can be met by the hosts that are there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heet_elastic.agents.node_records import AGENT_PREFIX
from heet_elastic.model import Host, JobSpec


def why_never(spec: JobSpec, hosts: Mapping[str, Host]) -> str | None:
    """Why none of the host types could ever run this job, were all of its devices free; None = one could.

    Only hosts with a heet-agent count; None too where there is no such host yet.
    """
    pool = [h for h in hosts.values() if any(a.startswith(AGENT_PREFIX) for a in h.agents)]
    if not pool:
        return None
    types = capacities(pool)
    if any(_fits(spec, counts) for counts in types.values()):
        return None
    have = "; ".join(
        f"{kind}: {sum(counts)} on {len(counts)} host{'s' if len(counts) > 1 else ''}"
        for kind, counts in sorted(types.items())
    )
    return f"it needs {needs(spec)} of one host type, and the pool has {have or 'no device'}"


def capacities(hosts: Iterable[Host]) -> dict[str, list[int]]:
    """Devices of each host type, host by host, the largest first. Unusable ones count: they may be repaired."""
    found: dict[str, list[int]] = {}
    for host in hosts:
        counts: dict[str, int] = {}
        for gpu in host.gpus:
            counts[gpu.host_type] = counts.get(gpu.host_type, 0) + 1
        for kind, number in counts.items():
            found.setdefault(kind, []).append(number)
    return {kind: sorted(numbers, reverse=True) for kind, numbers in found.items()}


def needs(spec: JobSpec) -> str:
    """The job's least demand in words."""
    if spec.rigid:
        each = f"{spec.most_per_host} devices on each" if spec.most_per_host else "all devices"
        return f"{each} of {spec.min_hosts} hosts"
    least = max(spec.min_workers, spec.min_hosts)
    sizes = f" ({'/'.join(map(str, spec.allowed_workers))})" if spec.allowed_workers else ""
    multiple = f", a multiple of {spec.multiple_of}" if spec.multiple_of > 1 else ""
    per_host = f", at most {spec.most_per_host} a host" if spec.most_per_host else ""
    return f"at least {least} devices{sizes}{multiple}{per_host} on {spec.min_hosts} to {spec.max_hosts} hosts"


def _fits(spec: JobSpec, counts: list[int]) -> bool:
    each = spec.most_per_host
    if spec.rigid:
        allowed = each is None or spec.allows(each * spec.min_hosts)
        return allowed and sum(n >= (each or 1) for n in counts) >= spec.min_hosts
    room = sum(min(n, each or n) for n in counts[: spec.max_hosts])
    if len(counts) < spec.min_hosts:
        return False
    return any(spec.allows(w) for w in range(max(spec.min_workers, spec.min_hosts), room + 1))
