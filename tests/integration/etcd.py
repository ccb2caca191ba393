"""An etcd of a test's own, to be killed, stopped and brought back on the same port, with its data or without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.processes import Proc, free_port, wait_until


@dataclass
class Etcd:
    """One member on loopback."""

    folder: Path
    mark: str
    flags: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    proc: Proc | None = None

    @property
    def endpoint(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 20.0) -> None:
        """Start (again) on the same port and data, and wait until it answers."""
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{free_port()}"
        command = [
            *(_binary(), "--name=lab", f"--data-dir={self.folder / 'data'}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=lab={peer}"),
            *("--heartbeat-interval=20", "--election-timeout=200", "--log-level=error", *self.flags),
        ]
        env = {k: v for k, v in os.environ.items() if not k.startswith("ETCD_")}
        self.proc = Proc.start("etcd", f"{self.mark}:etcd", command, env, self.folder / "etcd.log")
        wait_until(self.healthy, timeout_s, lambda: f"etcd answers on {client}: {self.proc and self.proc.tail()}")

    def healthy(self) -> bool:
        """Whether it serves now."""
        if self.proc is None or not self.proc.alive:
            return False
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as answer:
                return bool(json.load(answer)["health"] == "true")
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        if self.proc is not None:
            self.proc.kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        if self.proc is not None:
            os.kill(self.proc.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.proc is not None:
            os.kill(self.proc.pid, signal.SIGCONT)

    def erase(self) -> None:
        """Remove the data of a stopped etcd: it comes back empty, as another store."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def close(self) -> None:
        """End it and remove its data."""
        if self.proc is not None:
            self.proc.end()
            self.proc = None
        self.erase()


def _binary() -> str:
    found = os.environ.get("HEET_ETCD_BIN") or shutil.which("etcd")
    if found is None:
        raise AssertionError("no etcd: install Debian's etcd-server, or set HEET_ETCD_BIN to a binary")
    return found
