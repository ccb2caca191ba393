"""Why a first connection failed: looks at the address with plain sockets, where gRPC only says "unavailable".

Tells apart: nobody listens; a web server; an etcd without the v3 API; TLS on one side only; a server certificate that
is expired, of another authority or for another name; a client certificate that is missing, expired or not accepted.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from heet_elastic.errors import HeetError, StoreRefusedError, StoreUnavailableError
from heet_elastic.store.etcd.settings import Endpoint, EtcdSettings, read_file

_PROBE_S = 1.0
_MAX_ANSWER = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for `GET /version`: nothing at all, or bytes."""

    data: bytes

    @property
    def http(self) -> bool:
        """Whether it is an HTTP answer."""
        return self.data.startswith(b"HTTP/")

    @property
    def etcd_version(self) -> str | None:
        """The server's version if it is an etcd."""
        try:
            body = json.loads(self.data.partition(b"\r\n\r\n")[2])
        except (ValueError, RecursionError):
            return None
        version = body.get("etcdserver") if isinstance(body, dict) else None
        return version if isinstance(version, str) else None


def diagnose(settings: EtcdSettings, timeout_s: float = _PROBE_S) -> HeetError | None:
    """The most telling reason why no endpoint serves us, or None when they look well.

    A refusal by any endpoint wins over one that is merely down. Takes at most about 3 `timeout_s`.
    """
    found: list[HeetError] = []
    for endpoint in settings.endpoints[:3]:
        error = _diagnose_one(endpoint, settings, timeout_s / min(len(settings.endpoints), 3))
        if error is None or isinstance(error, StoreRefusedError):
            return error
        found.append(error)
    return StoreUnavailableError("; ".join(map(str, found)))


def _diagnose_one(endpoint: Endpoint, settings: EtcdSettings, timeout_s: float) -> HeetError | None:
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except socket.gaierror:
        return StoreUnavailableError(f"etcd at {endpoint}: the host {endpoint.host!r} is not known to this machine")
    except TimeoutError:
        return StoreUnavailableError(f"etcd at {endpoint} does not answer: no connection within {timeout_s:g} s")
    except OSError as e:
        return StoreUnavailableError(f"nobody listens at {endpoint}: {e.strerror or e}; is etcd running there?")
    with connection:
        connection.settimeout(timeout_s)
        if settings.tls:
            return _diagnose_tls(connection, endpoint, settings)
        return _diagnose_plain(connection, endpoint, timeout_s)


def _diagnose_plain(connection: socket.socket, endpoint: Endpoint, timeout_s: float) -> HeetError | None:
    try:
        answer = _ask_version(connection, endpoint)
    except TimeoutError:
        return StoreUnavailableError(f"something listens at {endpoint}, but does not answer; is that etcd?")
    except OSError:
        answer = Answer(b"")
    if answer.data.startswith((b"\x15\x03", b"")) and not answer.http and _speaks_tls(endpoint, timeout_s):
        return _needs_tls(endpoint)
    if b"HTTPS" in answer.data and answer.data.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")):
        return _needs_tls(endpoint)
    return _judge(answer, endpoint)


def _needs_tls(endpoint: Endpoint) -> StoreRefusedError:
    return StoreRefusedError(f"{endpoint} asks for TLS: write https://{endpoint} and give cacert")


def _judge(answer: Answer, endpoint: Endpoint) -> HeetError | None:
    version = answer.etcd_version
    if version is not None:
        if version.split(".")[0] in ("0", "1", "2"):
            return StoreRefusedError(
                f"etcd at {endpoint} is version {version} and lacks the v3 API: upgrade it to 3.4 or later"
            )
        return None
    if answer.http:
        return StoreRefusedError(f"{endpoint} is a web server, not etcd: check host and port")
    return StoreRefusedError(f"what listens at {endpoint} is not etcd: check host and port")


def _speaks_tls(endpoint: Endpoint, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout_s) as connection:
            with context.wrap_socket(connection):
                return True
    except ssl.SSLError as e:
        return "ALERT" in (e.reason or "")
    except OSError:
        return False


def _diagnose_tls(connection: socket.socket, endpoint: Endpoint, settings: EtcdSettings) -> HeetError | None:
    context = ssl.create_default_context(cafile=settings.cacert)
    if settings.cert is not None:
        context.load_cert_chain(settings.cert, settings.key)
    try:
        with context.wrap_socket(connection, server_hostname=settings.server_name or endpoint.host) as secure:
            try:
                answer = _ask_version(secure, endpoint)
            except ssl.SSLError as e:
                return _client_certificate(e, endpoint, settings)
    except ssl.SSLCertVerificationError as e:
        return _server_certificate(e, endpoint, settings)
    except ssl.SSLError as e:
        if "ALERT" in (e.reason or ""):
            return _client_certificate(e, endpoint, settings)
        return _no_tls(endpoint)
    except TimeoutError:
        return StoreUnavailableError(f"something listens at {endpoint}, but does not answer over TLS; is that etcd?")
    except OSError as e:
        # A plain server answers the handshake with words, or just hangs up: asked plainly, it says what it is.
        if _speaks_http(endpoint):
            return _no_tls(endpoint)
        return StoreRefusedError(f"{endpoint} ends the TLS connection ({e}): check host and port")
    return _judge(answer, endpoint)


def _no_tls(endpoint: Endpoint) -> StoreRefusedError:
    return StoreRefusedError(f"{endpoint} does not speak TLS: write http://{endpoint}, or check host and port")


def _speaks_http(endpoint: Endpoint) -> bool:
    try:
        with socket.create_connection((endpoint.host, endpoint.port), _PROBE_S) as connection:
            connection.settimeout(_PROBE_S)
            answer = _ask_version(connection, endpoint)
    except OSError:
        return False
    return answer.etcd_version is not None


def _server_certificate(e: ssl.SSLCertVerificationError, endpoint: Endpoint, settings: EtcdSettings) -> HeetError:
    reason = e.verify_message or "not valid"
    if e.verify_code == 10:
        return StoreRefusedError(f"the certificate of etcd at {endpoint} has expired: renew it on the server")
    if e.verify_code == 9:
        return StoreRefusedError(f"the certificate of etcd at {endpoint} is not valid yet: check both clocks")
    if e.verify_code in (62, 64):
        name = settings.server_name or endpoint.host
        return StoreRefusedError(
            f"the certificate of etcd at {endpoint} is not for {name!r}: use a name that it carries, or set server_name"
        )
    authority = f"cacert={settings.cacert}" if settings.cacert else "this system's authorities (set cacert)"
    return StoreRefusedError(f"the certificate of etcd at {endpoint} was not issued by {authority}: {reason}")


def _client_certificate(e: ssl.SSLError, endpoint: Endpoint, settings: EtcdSettings) -> HeetError:
    if settings.cert is None:
        return StoreRefusedError(f"etcd at {endpoint} asks for a client certificate: set cert and key")
    ends = certificate_end(read_file("cert", settings.cert))
    if ends is not None and ends < datetime.now(UTC):
        return StoreRefusedError(
            f"the client certificate cert={settings.cert} expired on {ends:%Y-%m-%d %H:%M} UTC: renew it"
        )
    return StoreRefusedError(
        f"etcd at {endpoint} does not accept the client certificate cert={settings.cert}: {e.reason}"
    )


def _ask_version(connection: socket.socket, endpoint: Endpoint) -> Answer:
    connection.sendall(f"GET /version HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n".encode())
    data, deadline = b"", time.monotonic() + _PROBE_S
    while len(data) < _MAX_ANSWER and time.monotonic() < deadline and (part := connection.recv(4096)):
        data += part
    return Answer(data)


def certificate_end(pem: bytes) -> datetime | None:
    """When the first certificate of a PEM file expires; None where it cannot be read.

    Walks the DER of RFC 5280: Certificate { TBSCertificate { [0] version, serial, algorithm, issuer, validity ...
    """
    body = pem.partition(b"-----BEGIN CERTIFICATE-----")[2].partition(b"-----END CERTIFICATE-----")[0]
    try:
        der = base64.b64decode(b"".join(body.split()))
        fields = _children(_children(der, *_content(der, 0))[0])
        if fields[0][:1] == b"\xa0":
            fields = fields[1:]
        validity = _children(fields[3])
        text = validity[1][2:].decode()
        return datetime.strptime(text, "%y%m%d%H%M%SZ" if len(text) == 13 else "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except (ValueError, IndexError):
        return None


def _content(der: bytes, at: int) -> tuple[int, int]:
    """First and last offset of the content of the DER value at `at`."""
    length, start = der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, start = int.from_bytes(der[start : start + octets], "big"), start + octets
    return start, start + length


def _children(der: bytes, start: int | None = None, end: int | None = None) -> list[bytes]:
    """The values inside a DER sequence, each with its header."""
    if start is None or end is None:
        start, end = _content(der, 0)
    found = []
    while start < end:
        _, after = _content(der, start)
        found.append(der[start:after])
        start = after
    return found
