"""The messages and services of etcd's API, from the installed `etcd3==0.12.0`, on any protobuf >= 4.25.

Importing etcd3 itself fails on protobuf >= 4 (its generated code is older), so that code is never run: the three
serialized descriptors are read out of it as literals, and the classes are built in a private descriptor pool, which
clashes with nobody else's protobuf files. docs/decisions/010-etcd-client.md says why.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from heet_elastic.errors import UsageError

_INSTALL = (
    "the etcd store needs {what}: pip install heet-elastic (or pip install 'etcd3==0.12.0' grpcio 'protobuf>=4.25')"
)

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as e:
    raise UsageError(_INSTALL.format(what="protobuf")) from e


_loading = threading.Lock()


def load() -> Any:
    """A namespace of message classes (`RangeRequest`), enum values (`PUT`) and service classes (`KVStub`).

    Built once, by the first thread that asks; building takes some 50 ms of processor time.
    """
    with _loading:
        return _build()


@functools.cache
def _build() -> Any:
    folder = _generated_code()
    pool = descriptor_pool.DescriptorPool()
    files = []
    for name in ("kv", "auth", "rpc"):
        file = descriptor_pb2.FileDescriptorProto.FromString(_serialized_descriptor(folder / f"{name}_pb2.py"))
        pool.Add(file)
        files.append(file)

    def message(full_name: str) -> Any:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name.lstrip(".")))

    api = SimpleNamespace()
    for file in files:
        for kind in file.message_type:
            setattr(api, kind.name, message(f"{file.package}.{kind.name}"))
        for enum in file.enum_type:
            for value in enum.value:
                setattr(api, value.name, value.number)
        for service in file.service:
            setattr(api, f"{service.name}Stub", _stub_class(file.package, service, message))
    return api


def _generated_code() -> Path:
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(_INSTALL.format(what="etcd3"))
    folder = Path(spec.submodule_search_locations[0]) / "etcdrpc"
    if not (folder / "rpc_pb2.py").is_file():
        raise UsageError(f"the etcd3 in {folder.parent} is another package or version: pip install 'etcd3==0.12.0'")
    return folder


def _serialized_descriptor(path: Path) -> bytes:
    """The argument `serialized_pb` of the file's first descriptor, as bytes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            literal = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            value = ast.literal_eval(literal)
            return value.encode("latin1") if isinstance(value, str) else bytes(value)
    raise UsageError(f"{path} holds no descriptor: pip install 'etcd3==0.12.0'")


def _stub_class(package: str, service: Any, message: Any) -> type:
    def init(self: Any, channel: Any) -> None:
        for method in service.method:
            sends = "stream" if method.client_streaming else "unary"
            answers = "stream" if method.server_streaming else "unary"
            call = getattr(channel, f"{sends}_{answers}")(
                f"/{package}.{service.name}/{method.name}",
                request_serializer=message(method.input_type).SerializeToString,
                response_deserializer=message(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    return type(f"{service.name}Stub", (), {"__init__": init})
