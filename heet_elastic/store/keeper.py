"""Keeps an embedded etcd running: one that ended by itself (killed, out of memory, full disk) is started again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from heet_elastic.errors import HeetError
from heet_elastic.store.embedded import EmbeddedEtcd

log = logging.getLogger(__name__)

LOOK_S = 0.5
MOST_WAIT_S = 30.0


@contextmanager
def kept(etcd: EmbeddedEtcd) -> Iterator[None]:
    """While the block runs, `etcd` is started again on its port and data whenever it has ended.

    Nobody else may touch `etcd` in the block. A start that fails is told and tried again after 1, 2, 4 ... 30 s.
    """
    done = threading.Event()
    keeper = threading.Thread(target=_keep, args=(etcd, done), name="etcd keeper", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()


def _keep(etcd: EmbeddedEtcd, done: threading.Event) -> None:
    wait_s = 1.0
    while not done.wait(LOOK_S):
        if etcd.running:
            wait_s = 1.0
            continue
        log.warning("etcd has ended and is started again (its log: %s)", etcd.log_file)
        try:
            etcd.restart()
            log.warning("etcd serves again at %s", etcd.endpoint)
        except HeetError as e:
            log.error("etcd does not come back: %s; tried again in %g s", e, wait_s)
        done.wait(wait_s)
        wait_s = min(2 * wait_s, MOST_WAIT_S)
