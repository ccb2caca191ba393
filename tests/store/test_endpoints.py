"""Endpoints and settings of etcd: what is understood, and the sentence for what is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heet_elastic.errors import UsageError
from heet_elastic.store.etcd import Endpoint, EtcdSettings, parse_endpoints
from heet_elastic.store.etcd.channel import target_of

ONE = parse_endpoints("h")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1:2379", [Endpoint("h1", 2379)]),
        ("h1", [Endpoint("h1", 2379)]),
        ("h1:1,h2.example.org:65535", [Endpoint("h1", 1), Endpoint("h2.example.org", 65535)]),
        (" h1:1 , h2 ,", [Endpoint("h1", 1), Endpoint("h2", 2379)]),
        ("h1,h1:2379", [Endpoint("h1", 2379)]),
        ("http://h1:2379/", [Endpoint("h1", 2379, tls=False)]),
        ("HTTPS://h1", [Endpoint("h1", 2379, tls=True)]),
        ("10.0.0.1:1", [Endpoint("10.0.0.1", 1)]),
        ("[::1]:1", [Endpoint("::1", 1)]),
        ("[::1]", [Endpoint("::1", 2379)]),
        ("::1", [Endpoint("::1", 2379)]),
        ("https://[2001:DB8::0:1]:1", [Endpoint("2001:db8::1", 1, tls=True)]),
    ],
)
def test_good_endpoints(text: str, expected: list[Endpoint]) -> None:
    assert parse_endpoints(text) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no etcd endpoint is given: expected HOST:PORT"),
        (" , ", "no etcd endpoint is given"),
        ("ftp://h1", "ftp:// is not known"),
        ("h1:0", "port '0' is not within 1 to 65535"),
        ("h1:65536", "port '65536'"),
        ("h1:", "port ''"),
        ("h1:http", "port 'http'"),
        ("h1:-1", "port '-1'"),
        ("h1:²", "port '²'"),
        (":2379", "names no host"),
        ("http://", "names no host"),
        ("h1:1/v2", "has a path"),
        ("[::1", "an IPv6 address is written [ADDRESS]:PORT"),
        ("[::1]2379", "an IPv6 address is written"),
        ("[::g]:1", "::g is no IPv6 address"),
        ("a:b:c", "a:b:c is no IPv6 address"),
        ("h 1", "'h 1' is no host name"),
        ("h1;h2", "'h1;h2' is no host name"),
        ("-h", "'-h' is no host name"),
        ("h1,:1", "names no host"),
    ],
)
def test_bad_endpoints_are_named(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_endpoints(text)
    assert words in str(caught.value)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_endpoints_or_a_usage_error(text: str) -> None:
    try:
        endpoints = parse_endpoints(text)
    except UsageError:
        return
    assert parse_endpoints(",".join(map(str, endpoints))) == tuple(
        dict.fromkeys(Endpoint(e.host, e.port) for e in endpoints)
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"endpoints": ()}, "no etcd endpoint"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"cert": "c"}, "both cert and key"),
        ({"key": "k"}, "both cert and key"),
        ({"password": "p"}, "without a user"),
        ({"user": "u"}, "'u' has no password: set password_file"),
        ({"user": "u", "password": "p", "password_file": "f"}, "both password and password_file"),
        ({"endpoints": parse_endpoints("http://a,https://b")}, "mix http:// and https://"),
        ({"endpoints": parse_endpoints("http://a"), "cacert": "c"}, "say http://"),
    ],
)
def test_settings_that_contradict_themselves_are_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        EtcdSettings(**({"endpoints": ONE} | fields))  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_an_unreadable_password_file_is_named() -> None:
    with pytest.raises(UsageError, match="password_file=/no/such/file cannot be read: No such file"):
        EtcdSettings(ONE, user="u", password_file="/no/such/file").read_password()


@pytest.mark.parametrize(
    ("text", "fields", "target"),
    [
        ("10.0.0.1,10.0.0.2:1", {}, "ipv4:10.0.0.1:2379,10.0.0.2:1"),
        ("[::1],[::2]:1", {}, "ipv6:[::1]:2379,[::2]:1"),
        ("h1,h2", {}, "dns:///h1:2379"),
        ("10.0.0.1,h2", {}, "ipv4:10.0.0.1:2379"),
        ("10.0.0.1,10.0.0.2", {"cacert": "c"}, "dns:///10.0.0.1:2379"),
        ("10.0.0.1,10.0.0.2", {"cacert": "c", "server_name": "etcd"}, "ipv4:10.0.0.1:2379,10.0.0.2:2379"),
    ],
)
def test_addresses_share_a_grpc_target_where_grpc_can_tell_their_names_apart(
    text: str, fields: dict[str, str], target: str
) -> None:
    """With TLS each member is checked against its own name, which one target cannot do."""
    settings = EtcdSettings(parse_endpoints(text), **fields)  # type: ignore[arg-type]
    assert target_of(settings, settings.endpoints) == target
