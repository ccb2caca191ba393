"""An etcd of a test's own, to be killed, frozen and brought back on the same port, with its data or without."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings


class Etcd(EmbeddedEtcd):
    """One member on loopback: `start`, `kill`, `start` again; `wipe` and `start` = another store behind the address."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        super().__init__(EmbeddedSettings(str(folder), extra_arguments=tuple(flags)))

    def healthy(self) -> bool:
        """Whether it serves now."""
        return self.running and self._healthy()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
