"""A pool of heet-agents on pretend hosts, for tests: agents, `heet submit` and the like, on a `Cluster`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from heet_elastic.model import HostRecord
from heet_elastic.store.keys import Keys
from heet_elastic.store.records import decode
from tests.integration.harness import LAB_WORKER, Cluster
from tests.integration.processes import Proc, wait_until

SLOW = 120.0
FAST = ("--cooldown-s=0", "--ttl-s=2", "--recovery-window-s=3", "--rescale-up-s=1", "--rescale-down-s=1")


class Pool:
    """heet-agents of one cluster. `devices`: host -> number of devices, as an inventory of T4s."""

    def __init__(self, lab: Cluster, devices: dict[str, int], coordinator: bool = True) -> None:
        self.lab = lab
        self.inventory = lab.folder / "inventory.toml"
        self.inventory.write_text(
            "".join(
                f'[hosts.{h}]\ngpus = [{{model = "T4", memory_mib = 15360, count = {n}}}]\n' for h, n in devices.items()
            )
        )
        if coordinator:
            lab.start_coordinator(*FAST)
        self.agents = {h: self.start(h) for h in devices}
        self.await_hosts(*devices)

    def start(self, host: str, *flags: str) -> Proc:
        """One heet-agent."""
        command = [sys.executable, "-m", "heet_elastic.cli.agent", "--etcd", self.lab.endpoint, "--ttl-s=2"]
        proc = self.lab.start(f"heet-agent-{host}", [*command, *flags], **self.environment(host))
        self.agents = {**getattr(self, "agents", {}), host: proc}
        return proc

    def environment(self, host: str) -> dict[str, str]:
        """Of a pretend host."""
        folder = self.lab.folder / "hosts" / host
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        return {
            "HEET_HOST": host,
            "HEET_ADDRESS": "127.0.0.1",
            "HEET_INVENTORY": str(self.inventory),
            "HEET_LOCK_DIR": str(folder / "locks"),
            "HEET_STATE_DIR": str(self.state(host)),
            "LAB_LOG": str(self.lab.event_log("pool")),
        }

    def state(self, host: str) -> Path:
        """State folder of a host's agent."""
        return self.lab.folder / "state" / host

    def await_hosts(self, *hosts: str, timeout_s: float = SLOW) -> None:
        """Until heet-agents of these hosts are registered."""
        wait_until(lambda: set(hosts) <= self.registered(), timeout_s, lambda: f"{hosts} registered\n{self.tails()}")

    def registered(self) -> set[str]:
        """Hosts of live heet-agents."""
        keys = Keys()
        with self.lab.store() as store:
            entries = store.read(keys.hosts).entries
            records = [decode(k, e.value, HostRecord) for k, e in entries.items()]
        return {r.host for r in records if r.agent.startswith("heet-agent:")}

    def tails(self) -> str:
        """Ends of all logs."""
        return "\n".join(f"--- {p.name}\n{p.tail(12)}" for p in self.lab.procs)

    # ------------------------------------------------------------------ commands

    def heet(self, *words: str, timeout_s: float = SLOW) -> subprocess.CompletedProcess[str]:
        """A command of a person, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "heet_elastic.cli.main", words[0], "--etcd", self.lab.endpoint, *words[1:]],
            env=self.lab.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=self.lab.folder,
        )

    def submit(self, job: str, *flags: str, args: Sequence[str] = (), script: Path | str = LAB_WORKER) -> None:
        """Submit a lab worker that joins no group."""
        log = self.lab.event_log(job)
        done = self.heet(
            "submit", f"--id={job}", f"--env=LAB_LOG={log}", *flags, "--", str(script), "--no-group", *args
        )
        assert (done.returncode, done.stdout) == (0, f"{job}\n"), done.stderr

    def wait(self, job: str, timeout_s: float = SLOW) -> int:
        """Exit code of `heet wait`."""
        done = self.heet("wait", job, f"--timeout-s={timeout_s}", timeout_s=timeout_s + 30)
        assert done.returncode != 6, f"{done.stderr}\n{self.tails()}"
        return done.returncode
