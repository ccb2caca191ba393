"""Who does not serve us, and why: one sentence each, soon (cases C28 and C37)."""

from __future__ import annotations

import http.server
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from heet_elastic.errors import HeetError, StoreRefusedError, StoreUnavailableError, UsageError
from heet_elastic.store.api import Committed, Put, absent
from heet_elastic.store.embedded import EmbeddedEtcd, EmbeddedSettings, free_port
from heet_elastic.store.etcd import EtcdSettings, EtcdStore, parse_endpoints
from tests.store.certificates import Authority
from tests.store.labs import Admin, Recorder, wait_until

PASSWORD = "correct-horse-battery"


def settings(endpoint: str, **fields: object) -> EtcdSettings:
    return EtcdSettings(parse_endpoints(endpoint), store_id_key="/heet/v1/store_id", **fields)  # type: ignore[arg-type]


def refusal(of: EtcdSettings) -> HeetError:
    """How `connect` fails. The promise is less than 5 s; on a machine that is too busy for that, one tries again."""
    for _ in range(5):
        store, start = EtcdStore(of), time.monotonic()
        try:
            with pytest.raises(HeetError) as caught:
                store.connect()
        finally:
            store.close()
        assert time.monotonic() - start < 5
        if "did not answer in time" not in str(caught.value):
            break
    return caught.value


def usable(of: EtcdSettings) -> bool:
    """Whether a connection can write and read."""
    store = EtcdStore(of)
    try:
        store.connect()
        written = store.txn([], [Put("/heet/v1/x", b"1")])
        return isinstance(written, Committed) and "/heet/v1/x" in store.read("/heet/v1/").entries
    finally:
        store.close()


@contextmanager
def web_server(body: bytes, status: int = 200) -> Iterator[str]:
    """A server of HTTP/1.1 that says the same to everybody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        answer: ClassVar[bytes] = body

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(self.answer)))
            self.end_headers()
            self.wfile.write(self.answer)

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class TestNotEtcd:
    def test_nobody_listens(self) -> None:
        error = refusal(settings(f"127.0.0.1:{free_port('127.0.0.1')}"))
        assert isinstance(error, StoreUnavailableError)
        assert "nobody listens at 127.0.0.1:" in str(error)

    def test_an_unknown_host(self) -> None:
        error = refusal(settings("no-such-host.invalid:2379"))
        assert isinstance(error, StoreUnavailableError)
        assert "no-such-host.invalid" in str(error)

    @pytest.mark.parametrize("status", [200, 404])
    def test_a_web_server(self, status: int) -> None:
        with web_server(b"<html>hello</html>", status) as endpoint:
            error = refusal(settings(endpoint))
        assert isinstance(error, StoreRefusedError)
        assert f"{endpoint} is a web server, not etcd" in str(error)

    def test_an_etcd_that_speaks_only_v2(self) -> None:
        with web_server(b'{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}') as endpoint:
            error = refusal(settings(endpoint))
        assert isinstance(error, StoreRefusedError)
        assert "version 2.3.8 and lacks the v3 API" in str(error)

    def test_something_that_listens_and_says_nothing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            error = refusal(settings(f"127.0.0.1:{mute.getsockname()[1]}"))
        assert isinstance(error, StoreUnavailableError)
        assert "does not answer" in str(error)

    def test_something_that_hangs_up(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            done = threading.Event()

            def hang_up() -> None:
                while not done.is_set():
                    try:
                        server.accept()[0].close()
                    except TimeoutError:
                        continue

            thread = threading.Thread(target=hang_up)
            thread.start()
            error = refusal(settings(f"127.0.0.1:{server.getsockname()[1]}"))
            done.set()
            thread.join()
        assert isinstance(error, StoreRefusedError)
        assert "is not etcd" in str(error)

    def test_a_plain_etcd_that_hangs_up_on_a_handshake_is_asked_plainly(self) -> None:
        """Whether a server's words or its hanging up come first is a race; the sentence must not depend on it."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            done = threading.Event()

            def serve() -> None:
                while not done.is_set():
                    try:
                        connection, _ = server.accept()
                    except TimeoutError:
                        continue
                    with connection:
                        if connection.recv(1, socket.MSG_PEEK) == b"G":
                            connection.recv(4096)
                            body = b'{"etcdserver":"3.4.23","etcdcluster":"3.4.0"}'
                            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                        else:
                            reset = struct.pack("ii", 1, 0)
                            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

            thread = threading.Thread(target=serve)
            thread.start()
            error = refusal(settings(f"https://127.0.0.1:{server.getsockname()[1]}"))
            done.set()
            thread.join()
        assert isinstance(error, StoreRefusedError)
        assert "does not speak TLS" in str(error)

    def test_one_good_endpoint_of_several_is_enough(self, shared_etcd: EmbeddedEtcd) -> None:
        assert usable(settings(f"127.0.0.1:{free_port('127.0.0.1')},{shared_etcd.endpoint}"))
        assert usable(settings(f"localhost:{free_port('127.0.0.1')},{shared_etcd.endpoint}"))


@contextmanager
def tls_etcd(folder: Path, *extra: str) -> Iterator[tuple[EmbeddedEtcd, str]]:
    """An etcd that serves TLS on a second port; (etcd, its https:// endpoint)."""
    plain, secure = free_port("127.0.0.1"), free_port("127.0.0.1")
    urls = f"--listen-client-urls=http://127.0.0.1:{plain},https://127.0.0.1:{secure}"
    with EmbeddedEtcd(EmbeddedSettings(str(folder / "data"), port=plain, extra_arguments=(urls, *extra))) as server:
        yield server, f"https://127.0.0.1:{secure}"


class TestCertificates:
    @pytest.fixture
    def ca(self, tmp_path: Path) -> Authority:
        return Authority(tmp_path, "ca")

    def test_tls_works_and_each_way_to_miss_it_has_its_sentence(self, tmp_path: Path, ca: Authority) -> None:
        served = ca.issue("server")
        other = Authority(tmp_path, "other")
        with tls_etcd(tmp_path, f"--cert-file={served.cert}", f"--key-file={served.key}") as (server, endpoint):
            assert usable(settings(endpoint, cacert=ca.cacert))
            sentences = {
                "not issued by cacert=": settings(endpoint, cacert=other.cacert),
                "not issued by this system's authorities": settings(endpoint),
                "asks for TLS: write https://": settings(endpoint.removeprefix("https://")),
                "does not speak TLS": settings(f"https://{server.endpoint}", cacert=ca.cacert),
                "is not for 'localhost'": settings(endpoint.replace("127.0.0.1", "localhost"), cacert=ca.cacert),
                "is not for 'etcd.example'": settings(endpoint, cacert=ca.cacert, server_name="etcd.example"),
            }
            for sentence, wrong in sentences.items():
                error = refusal(wrong)
                assert isinstance(error, StoreRefusedError)
                assert sentence in str(error)
        with pytest.raises(UsageError, match=r"cacert=/no/such\.pem cannot be read"):
            EtcdStore(settings(endpoint, cacert="/no/such.pem")).connect()

    def test_an_expired_certificate_of_the_server(self, tmp_path: Path, ca: Authority) -> None:
        served = ca.issue("server", valid=False)
        with tls_etcd(tmp_path, f"--cert-file={served.cert}", f"--key-file={served.key}") as (_, endpoint):
            error = refusal(settings(endpoint, cacert=ca.cacert))
        assert isinstance(error, StoreRefusedError)
        assert "the certificate of etcd at 127.0.0.1" in str(error)
        assert "has expired" in str(error)

    def test_a_client_certificate_is_needed_and_must_be_good(self, tmp_path: Path, ca: Authority) -> None:
        served, mine = ca.issue("server"), ca.issue("mine")
        late, strange = ca.issue("late", valid=False), Authority(tmp_path, "other").issue("strange")
        flags = ("--client-cert-auth", f"--trusted-ca-file={ca.cacert}")
        with tls_etcd(tmp_path, *flags, f"--cert-file={served.cert}", f"--key-file={served.key}") as (_, endpoint):
            base = settings(endpoint, cacert=ca.cacert)
            assert usable(replace(base, cert=mine.cert, key=mine.key))
            sentences = {
                "asks for a client certificate: set cert and key": base,
                f"the client certificate cert={late.cert} expired on": replace(base, cert=late.cert, key=late.key),
                f"does not accept the client certificate cert={strange.cert}": replace(
                    base, cert=strange.cert, key=strange.key
                ),
            }
            for sentence, wrong in sentences.items():
                error = refusal(wrong)
                assert isinstance(error, StoreRefusedError)
                assert sentence in str(error)
        with pytest.raises(UsageError, match="cert and key do not fit together"):
            EtcdStore(replace(base, cert=mine.cert, key=late.key)).connect()

    def test_renewed_certificate_files_are_taken_up_and_streams_move_over(self, tmp_path: Path, ca: Authority) -> None:
        """etcd takes the user from the certificate's name, so what is allowed shows which certificate is in use."""
        served, mine = ca.issue("server"), ca.issue("mine", common_name="first")
        flags = ("--client-cert-auth", f"--trusted-ca-file={ca.cacert}")
        with tls_etcd(tmp_path, *flags, f"--cert-file={served.cert}", f"--key-file={served.key}") as (server, endpoint):
            with Admin(server.endpoint) as admin:
                for user, prefixes in (("first", ["/heet/v1/"]), ("second", ["/heet/v1/", "/more/"])):
                    add_user(admin, user, "unused", prefixes)
                enable_auth(admin)
            store = EtcdStore(settings(endpoint, cacert=ca.cacert, cert=mine.cert, key=mine.key))
            store.connect()
            recorder = Recorder(store, "/heet/v1/")
            watch = store.watch("/heet/v1/", store.read("/heet/v1/").revision, recorder.on_events, recorder.on_resync)
            lease = store.lease(2.0)
            with pytest.raises(StoreUnavailableError, match=r"/more/: grant a role"):
                store.read("/more/")

            ca.issue("mine", common_name="second")

            def allowed() -> bool:
                try:
                    store.read("/more/")
                except StoreUnavailableError:
                    return False
                return True

            wait_until(allowed)
            store.txn([], [Put("/heet/v1/after", b"", lease.id)])
            recorder.wait(lambda r: r.keys == ["/heet/v1/after"])
            seen = lease.last_ack
            wait_until(lambda: lease.last_ack > seen)
            assert recorder.resyncs == []
            watch.close()
            store.close()


def add_user(admin: Admin, user: str, password: str, prefixes: list[str]) -> None:
    """A user with a role of its own that may read and write these prefixes."""
    from heet_elastic.store.etcd.etcd3_loader import load
    from heet_elastic.store.etcd.watch import prefix_end

    admin.call("Auth", "UserAdd", name=user, password=password)
    admin.call("Auth", "RoleAdd", name=user)
    for prefix in prefixes:
        key = prefix.encode()
        permission = load().Permission(permType=2, key=key, range_end=prefix_end(key))
        admin.call("Auth", "RoleGrantPermission", name=user, perm=permission)
    admin.call("Auth", "UserGrantRole", user=user, role=user)


def enable_auth(admin: Admin) -> None:
    """Users from now on."""
    admin.call("Auth", "UserAdd", name="root", password="root-password")
    admin.call("Auth", "RoleAdd", name="root")
    admin.call("Auth", "UserGrantRole", user="root", role="root")
    admin.call("Auth", "AuthEnable")


class TestUsers:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[EmbeddedEtcd]:
        """An etcd with the user heet, limited to heet's prefix."""
        with EmbeddedEtcd(EmbeddedSettings(str(tmp_path))) as server:
            with Admin(server.endpoint) as admin:
                add_user(admin, "heet", PASSWORD, ["/heet/v1/"])
                enable_auth(admin)
            yield server

    def test_a_role_limited_to_the_prefix_suffices(self, server: EmbeddedEtcd, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD + "\n")
        of = settings(server.endpoint, user="heet", password_file=str(file))
        assert usable(of)
        store = EtcdStore(of)
        recorder = Recorder(store, "/heet/v1/")
        watch = store.watch("/heet/v1/", store.read("/heet/v1/").revision, recorder.on_events, recorder.on_resync)
        lease = store.lease(5.0)
        assert isinstance(store.txn([absent("/heet/v1/k")], [Put("/heet/v1/k", b"", lease.id)]), Committed)
        recorder.wait(lambda r: r.keys == ["/heet/v1/k"])
        lease.revoke()
        recorder.wait(lambda r: len(r.batches) == 2)
        # What has worked before is no refusal any more, but an outage with the same sentence.
        with pytest.raises(StoreUnavailableError, match=r"does not allow the user 'heet' to use /elsewhere: grant a"):
            store.txn([], [Put("/elsewhere", b"")])
        watch.close()
        store.close()
        fresh = EtcdStore(of)
        with pytest.raises(StoreRefusedError, match=r"does not allow the user 'heet' to use /elsewhere: grant a role"):
            fresh.txn([], [Put("/elsewhere", b"")])
        fresh.close()

    def test_no_user_and_a_wrong_password_have_their_sentences(self, server: EmbeddedEtcd) -> None:
        error = refusal(settings(server.endpoint))
        assert isinstance(error, StoreRefusedError)
        assert "asks for a user: set user and password_file" in str(error)
        for user in ("heet", "nobody"):
            error = refusal(settings(server.endpoint, user=user, password="wrong"))
            assert isinstance(error, StoreRefusedError)
            assert f"does not accept the user {user!r} with this password" in str(error)

    def test_a_user_whose_role_ends_before_our_prefix_is_told_so(self, server: EmbeddedEtcd) -> None:
        of = replace(settings(server.endpoint, user="heet", password=PASSWORD), store_id_key="/other/store_id")
        assert "does not allow the user 'heet' to use /other/store_id" in str(refusal(of))

    def test_tokens_that_the_server_has_forgotten_are_renewed(self, server: EmbeddedEtcd) -> None:
        store = EtcdStore(settings(server.endpoint, user="heet", password=PASSWORD))
        recorder = Recorder(store, "/heet/v1/")
        watch = store.watch("/heet/v1/", store.read("/heet/v1/").revision, recorder.on_events, recorder.on_resync)
        lease = store.lease(5.0)
        server.restart()  # simple tokens live in memory
        wait_until(lambda: "/heet/v1/" in read_or_nothing(store))
        assert isinstance(store.txn([], [Put("/heet/v1/k", b"", lease.id)]), Committed)
        recorder.wait(lambda r: r.keys == ["/heet/v1/k"])
        seen = lease.last_ack
        wait_until(lambda: lease.last_ack > seen)
        assert lease.alive
        watch.close()
        store.close()

    def test_a_changed_password_file_is_taken_up(self, server: EmbeddedEtcd, tmp_path: Path) -> None:
        file = tmp_path / "password"
        file.write_text(PASSWORD)
        store = EtcdStore(settings(server.endpoint, user="heet", password_file=str(file)))
        store.connect()
        root = EtcdStore(settings(server.endpoint, user="root", password="root-password"))
        root._connector.call("auth", "UserChangePassword", change_password("heet", "another"))
        file.write_text("another")
        assert isinstance(store.txn([], [Put("/heet/v1/k", b"")]), Committed)
        root._connector.call("auth", "UserChangePassword", change_password("heet", "a third"))
        with pytest.raises(StoreUnavailableError, match="does not accept the user 'heet' with this password"):
            store.txn([], [Put("/heet/v1/k", b"")])
        file.write_text("a third")
        assert isinstance(store.txn([], [Put("/heet/v1/k", b"")]), Committed)
        root.close()
        store.close()

    def test_a_user_for_an_etcd_without_users_is_no_error(self, shared_etcd: EmbeddedEtcd) -> None:
        assert usable(settings(shared_etcd.endpoint, user="heet", password=PASSWORD))

    def test_secrets_are_in_no_text_that_anybody_may_see(
        self, server: EmbeddedEtcd, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(0)
        wrong = settings(server.endpoint, user="heet", password="wrong-but-secret")
        error = refusal(wrong)
        right = settings(server.endpoint, user="heet", password=PASSWORD)
        store = EtcdStore(right)
        store.connect()
        token = store._connector.current().token
        assert token
        with pytest.raises(StoreRefusedError) as refused:
            store.read("/elsewhere/")
        texts = [repr(wrong), repr(right), repr(store), str(refused.value), repr(refused.value.__cause__), caplog.text]
        texts += [str(error), repr(error.__cause__), repr(error.__context__)]
        store.close()
        for text in texts:
            for secret in ("wrong-but-secret", PASSWORD, token):
                assert secret not in text
        with pytest.raises(UsageError) as caught:
            parse_endpoints("http://me:hunter2@host:2379")
        assert "hunter2" not in str(caught.value)


def change_password(user: str, password: str) -> object:
    from heet_elastic.store.etcd.etcd3_loader import load

    return load().AuthUserChangePasswordRequest(name=user, password=password)


def read_or_nothing(store: EtcdStore) -> str:
    """The prefix once it can be read, else nothing."""
    try:
        store.read("/heet/v1/")
    except StoreUnavailableError:
        return ""
    return "/heet/v1/"
