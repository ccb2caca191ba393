"""Logs over HTTP, from the heet-agent that has them: authenticated, bounded, read-only.

    GET /logs?job=JOB                                  {"host", "streams": [...]}
    GET /logs?job=JOB&stream=0&position=-4096&most=N   the bytes; X-Heet-Begin, X-Heet-End, X-Heet-Size
    Authorization: Bearer TOKEN

The token is in the agent's record in etcd, so who may read the prefix may read the logs, and nobody else. One answer
holds at most `node_logs.MOST_BYTES`; few requests are served at once; a slow client is cut off. The connection is not
encrypted, like the workers' own traffic (docs/assumptions.md).
"""

from __future__ import annotations

import hmac
import http.client
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from heet_elastic.agents import node_logs
from heet_elastic.agents.node_logs import Piece
from heet_elastic.agents.node_records import NodeRecord
from heet_elastic.errors import HeetError, UsageError

AT_ONCE = 16
CLIENT_S = 10.0


class LogServer:
    """Serves the logs of one daemon from a thread. folder_of: the folder of a job's run."""

    def __init__(self, address: str, port: int, token: str, host: str, folder_of: Callable[[str], Path]) -> None:
        handler = _handler(token, host, folder_of)
        try:
            self._server = _server_class(address)((address, port), handler)
        except OSError as e:
            raise UsageError(f"cannot listen on {address} port {port}: {e.strerror} (--listen)") from e
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="heet-logs", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer no longer."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def list_streams(node: NodeRecord, job: str) -> tuple[str, ...]:
    """Streams that a host has of a job. HeetError when its heet-agent does not answer or refuses."""
    body, _ = _get(node, {"job": job})
    return tuple(json.loads(body)["streams"])


def fetch(node: NodeRecord, job: str, stream: str, position: int, most: int = node_logs.MOST_BYTES) -> Piece:
    """Part of a stream, from the host that has it. HeetError as above."""
    body, headers = _get(node, {"job": job, "stream": stream, "position": position, "most": most})
    begin, end, size = (int(headers.get(f"X-Heet-{name}", "0")) for name in ("Begin", "End", "Size"))
    return Piece(body, begin, end, size)


def _get(node: NodeRecord, query: dict[str, Any]) -> tuple[bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(node.address, node.port, timeout=CLIENT_S)
    try:
        connection.request("GET", f"/logs?{urlencode(query)}", headers={"Authorization": f"Bearer {node.token}"})
        answer = connection.getresponse()
        body = answer.read(node_logs.MOST_BYTES + 1)
    except (OSError, http.client.HTTPException) as e:
        raise HeetError(f"the heet-agent of host {node.host} does not answer at {node.address}:{node.port}: {e}") from e
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise HeetError(f"the heet-agent of host {node.host} refuses: {body.decode(errors='replace')[:200]}")
    return body, answer.headers


def _server_class(address: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True
        slots = threading.BoundedSemaphore(AT_ONCE)

        def process_request(self, request: Any, client_address: Any) -> None:
            if not self.slots.acquire(blocking=False):
                self.shutdown_request(request)  # busy: the client tries again
                return
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                self.slots.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is nobody's error."""

    return Server


def _handler(token: str, host: str, folder_of: Callable[[str], Path]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S
        server_version, sys_version = "heet", ""

        def do_GET(self) -> None:
            shown = self.headers.get("Authorization", "")
            if not hmac.compare_digest(shown.encode(), f"Bearer {token}".encode()):
                self._answer(401, b"the token is missing or wrong: it is in etcd, under nodes/")
                return
            url = urlsplit(self.path)
            given = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
            if url.path != "/logs" or not given.get("job"):
                self._answer(404, b"there is /logs?job=JOB")
                return
            self._logs(folder_of(given["job"]) / "logs", given)

        def _logs(self, logs: Path, given: dict[str, str]) -> None:
            known = node_logs.streams(logs)
            if "stream" not in given:
                self._answer(200, json.dumps({"host": host, "streams": known}).encode())
                return
            if given["stream"] not in known:
                self._answer(404, f"no such log; there are: {', '.join(known) or 'none'}".encode())
                return
            try:
                position, most = int(given.get("position", "0")), int(given.get("most", str(node_logs.MOST_BYTES)))
            except ValueError:
                self._answer(400, b"position and most are whole numbers")
                return
            piece = node_logs.read(logs, given["stream"], position, max(0, most))
            places = {"Begin": piece.begin, "End": piece.end, "Size": piece.size}
            self._answer(200, piece.data, {f"X-Heet-{k}": str(v) for k, v in places.items()})

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base class's name)
            """Requests are not logged."""

    return Handler
