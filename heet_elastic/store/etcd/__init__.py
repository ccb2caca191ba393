"""The store on etcd, over the messages of PyPI's `etcd3==0.12.0`. Importing it needs grpcio, protobuf and etcd3."""

from heet_elastic.store.etcd.grpc_quietly import grpc as _grpc  # noqa: F401 (first, before anything else imports it)
from heet_elastic.store.etcd.settings import Endpoint, EtcdSettings, parse_endpoints
from heet_elastic.store.etcd.store import EtcdStatus, EtcdStore

__all__ = ["Endpoint", "EtcdSettings", "EtcdStatus", "EtcdStore", "parse_endpoints"]
