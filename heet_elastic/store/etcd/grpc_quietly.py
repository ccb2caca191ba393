"""Imports grpc without its own log lines: it prints every failed handshake to standard error, beside our sentence.

It reads GRPC_VERBOSITY once, when it is first imported; the environment of our caller and of its children stays as it
was, and a caller who has set the variable, or imported grpc before us, keeps what he chose.
"""

import os
import sys

from heet_elastic.errors import UsageError

_VERBOSITY = "GRPC_VERBOSITY"
_ours = _VERBOSITY not in os.environ and "grpc" not in sys.modules
if _ours:
    os.environ[_VERBOSITY] = "NONE"
try:
    import grpc
except ImportError as e:
    raise UsageError("the etcd store needs grpcio: pip install heet-elastic (or pip install grpcio)") from e
finally:
    if _ours:
        del os.environ[_VERBOSITY]

__all__ = ["grpc"]
