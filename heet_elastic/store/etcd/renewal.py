"""Notices renewed certificate files, so that a long run outlives its certificates without a restart."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from heet_elastic.errors import UsageError
from heet_elastic.store.etcd.channel import check_files
from heet_elastic.store.etcd.settings import EtcdSettings

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int] | None

PERIOD_S = 1.0


def stamp(path: str) -> Stamp:
    """What changes when a file is rewritten or replaced (also through a symbolic link); None when it is missing."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def fit(settings: EtcdSettings) -> bool:
    """Whether the files can be used together: a renewal writes them one after the other."""
    try:
        check_files(settings)
    except UsageError:
        return False
    return True


class CertificateWatch:
    """Calls `on_change` when the certificate files have changed and fit together; looks every `period_s`."""

    def __init__(self, settings: EtcdSettings, on_change: Callable[[], None], period_s: float = PERIOD_S) -> None:
        self._settings = settings
        self._on_change = on_change
        self._period_s = period_s
        self._known = self._stamps()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="etcd-certificates", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking and join the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _stamps(self) -> tuple[Stamp, ...]:
        return tuple(stamp(path) for path in self._settings.files)

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            now = self._stamps()
            if now == self._known or not fit(self._settings) or now != self._stamps():
                continue
            self._known = now
            log.info("certificate files changed: going over to them", extra={"files": self._settings.files})
            self._on_change()
