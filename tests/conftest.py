"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """Programs under test begin as from a terminal, also where the tests themselves run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
