"""The store on etcd, over the messages of PyPI's `etcd3==0.12.0`. Importing it needs grpcio, protobuf and etcd3."""

from heet_elastic.errors import UsageError

try:
    import grpc  # noqa: F401
except ImportError as e:
    raise UsageError("the etcd store needs grpcio: pip install heet-elastic (or pip install grpcio)") from e

from heet_elastic.store.etcd.settings import Endpoint, EtcdSettings, parse_endpoints
from heet_elastic.store.etcd.store import EtcdStatus, EtcdStore

__all__ = ["Endpoint", "EtcdSettings", "EtcdStatus", "EtcdStore", "parse_endpoints"]
