import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transports.endpoint import Endpoint, as_endpoint, is_address, parse_endpoint
from transports.errors import EndpointError, TransportError

ACCEPTED = {
    "ipv4": ("tcp://127.0.0.1:5555", Endpoint("tcp", host="127.0.0.1", port=5555)),
    "name": ("tcp://feed-1.example.com:1", Endpoint("tcp", host="feed-1.example.com", port=1)),
    "name with underscore": ("tcp://my_host:1", Endpoint("tcp", host="my_host", port=1)),
    "rooted name": ("tcp://host.:1", Endpoint("tcp", host="host.", port=1)),
    "ipv6": ("tcp://[::1]:80", Endpoint("tcp", host="::1", port=80)),
    "ipv6 with zone": ("tcp://[fe80::1%eth0]:80", Endpoint("tcp", host="fe80::1%eth0", port=80)),
    "star": ("tcp://*:5555", Endpoint("tcp", host="*", port=5555)),
    "port 0": ("tcp://0.0.0.0:0", Endpoint("tcp", host="0.0.0.0", port=0)),
    "highest port": ("tcp://[::]:65535", Endpoint("tcp", host="::", port=65535)),
    "ipc": ("ipc:///run/a b.sock", Endpoint("ipc", path="/run/a b.sock")),
    "relative ipc": ("ipc://feed", Endpoint("ipc", path="feed")),
    "abstract ipc": ("ipc://@feed", Endpoint("ipc", path="@feed")),
    "longest ipc": ("ipc://" + "x" * 107, Endpoint("ipc", path="x" * 107)),
    "inproc": ("inproc://feed#1", Endpoint("inproc", path="feed#1")),
    "memory": ("memory://feed", Endpoint("memory", path="feed")),
    "group": ("udp://239.1.1.1:5000", Endpoint("udp", host="239.1.1.1", port=5000)),
    "group with options": (
        "udp://[ff15::1]:5000?interface=eth0&ttl=3&loopback=0",
        Endpoint(
            "udp", "ff15::1", 5000, "", (("interface", "eth0"), ("ttl", "3"), ("loopback", "0"))
        ),
    ),
    "mold": (
        "mold://239.1.1.1:5000?request=a:1&request=[::1]:2",
        Endpoint("mold", "239.1.1.1", 5000, "", (("request", "a:1"), ("request", "[::1]:2"))),
    ),
}

CANONICAL = {
    "star port": ("tcp://127.0.0.1:*", "tcp://127.0.0.1:0"),
    "upper-case host": ("tcp://LocalHost:1", "tcp://localhost:1"),
    "long ipv6": ("tcp://[0:0:0:0:0:0:0:1]:1", "tcp://[::1]:1"),
    "leading zeros": ("tcp://h:0080", "tcp://h:80"),
}

REFUSED = {
    "empty": ("", "scheme", "missing scheme (known: tcp, ipc, inproc, memory, udp, mold) in ''"),
    "no scheme": ("127.0.0.1:5555", "scheme", "missing scheme"),
    "empty scheme": ("://h:1", "scheme", "missing scheme"),
    "one slash": ("tcp:/h:1", "scheme", "missing scheme"),
    "unknown scheme": ("pgm://h:1", "scheme", "unknown scheme 'pgm' (known: tcp, ipc"),
    "upper-case scheme": ("TCP://h:1", "scheme", "unknown scheme 'TCP'"),
    "port above": ("tcp://h:70000", "port", "port 70000 is above 65535 in 'tcp://h:70000'"),
    "endless port": ("tcp://h:" + "9" * 5000, "port", "is above 65535"),
    "missing port": ("tcp://h", "port", "missing port after host 'h' in 'tcp://h'"),
    "empty port": ("tcp://h:", "port", "missing port"),
    "negative port": ("tcp://h:-1", "port", "port '-1' is not a number"),
    "named port": ("tcp://h:http", "port", "port 'http' is not a number"),
    "digits that are no ASCII": ("tcp://h:٣", "port", "is not a number"),
    "trailing path": ("tcp://h:1/x", "port", "port '1/x' is not a number"),
    "trailing port": ("tcp://h:1:2", "port", "port '1:2' is not a number"),
    "empty host": ("tcp://:1", "host", "empty host in 'tcp://:1'"),
    "empty brackets": ("tcp://[]:1", "host", "empty host"),
    "nothing": ("tcp://", "host", "empty host"),
    "bare ipv6": ("tcp://::1:80", "host", "empty host"),
    "open bracket": ("tcp://[::1:80", "host", "malformed host and port '[::1:80'"),
    "text after bracket": ("tcp://[::1]x:80", "host", "malformed host and port"),
    "bad ipv6": ("tcp://[::g]:80", "host", "'[::g]' is not an IPv6 address"),
    "bad ipv4": ("tcp://10.0.0.256:80", "host", "'10.0.0.256' is not an IPv4 address"),
    "short ipv4": ("tcp://10.1:80", "host", "'10.1' is not an IPv4 address"),
    "user": ("tcp://me@h:80", "host", "'me@h' is not a host name"),
    "source address": ("tcp://a;b:80", "host", "is not a host name"),
    "hyphen first": ("tcp://-a:80", "host", "is not a host name"),
    "empty label": ("tcp://a..b:80", "host", "is not a host name"),
    "long label": (f"tcp://{'a' * 64}:80", "host", "is not a host name"),
    "long name": (f"tcp://{'a.' * 127}a:80", "host", "is not a host name"),
    "name that is no ASCII": ("tcp://bücher.de:80", "host", "is not a host name"),
    "space before": (" tcp://h:1", "endpoint", "white space around"),
    "newline after": ("tcp://h:1\n", "endpoint", "white space around"),
    "space inside": ("tcp://h: 1", "endpoint", "white space inside"),
    "empty path": ("ipc://", "path", "empty path"),
    "empty abstract path": ("ipc://@", "path", "empty path"),
    "star path": ("ipc://*", "path", "a path must be named"),
    "long path": ("ipc://" + "x" * 108, "path", "path of 108 bytes is above 107"),
    "long path in bytes": ("ipc://" + "ü" * 54, "path", "path of 108 bytes is above 107"),
    "zero byte": ("ipc://a\0b", "path", "unprintable character in path"),
    "lone surrogate": ("ipc://a\udc80", "path", "unprintable character in path"),
    "empty name": ("inproc://", "name", "empty name"),
    "space in name": ("inproc://a b", "name", "white space inside the name 'a b'"),
    "long name of inproc": ("inproc://" + "x" * 256, "name", "name of 256 bytes is above 255"),
    "unknown option": ("udp://h:1?mtu=3", "option", "unknown option 'mtu' (known: interface, ttl"),
    "request of udp": ("udp://h:1?request=h:2", "option", "unknown option 'request'"),
    "request without port": ("mold://h:1?request=h", "option", "is not of the form HOST:PORT"),
    "option twice": ("udp://h:1?ttl=1&ttl=2", "option", "option 'ttl' is given twice"),
    "option without value": ("udp://h:1?ttl", "option", "is not of the form NAME=VALUE"),
    "ttl above": ("udp://h:1?ttl=256", "option", "ttl '256' is not a number from 0 to 255"),
    "no flag": ("udp://h:1?loopback=2", "option", "loopback '2' is neither 0 nor 1"),
    "odd interface": ("udp://h:1?interface=a/b", "option", "neither a name nor an address"),
    "options of tcp": ("tcp://h:1?ttl=1", "option", "unknown option 'ttl' (known: key)"),
    "None": (None, "endpoint", "an endpoint is a str, not NoneType"),
    "bytes": (b"tcp://h:1", "endpoint", "an endpoint is a str, not bytes"),
    "number": (5555, "endpoint", "an endpoint is a str, not int"),
}


@pytest.mark.parametrize(("text", "endpoint"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepts_and_gives_the_text_back(text, endpoint):
    assert parse_endpoint(text) == endpoint
    assert str(endpoint) == text
    assert as_endpoint(text) == as_endpoint(endpoint) == endpoint


@pytest.mark.parametrize(("text", "canonical"), CANONICAL.values(), ids=CANONICAL)
def test_makes_the_text_canonical(text, canonical):
    assert str(parse_endpoint(text)) == canonical
    assert str(parse_endpoint(canonical)) == canonical


@pytest.mark.parametrize(("text", "part", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses_and_says_why(text, part, message):
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text)
    assert caught.value.part == part
    assert caught.value.endpoint == text
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TransportError)


@pytest.mark.parametrize(
    "text",
    [
        "tcp://h:1?key={}", "ipc:///run/a?key={}", "tcp://h:1?{}", "tcp://h:1?kye={}",
        "tcp://h:x?key={}", "udp://h:1?ttl=1&key={}", "udp://h:1?{}=1", "mold://h:1?key={}",
        "tcp://h:1?key={0}&key={0}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("secret", ["s" * 42, "s" * 44, "s" * 39 + "&" + "s" * 4])
def test_what_may_be_a_secret_key_is_not_shown(text, secret):
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text.format(secret))
    error = caught.value
    assert "sssss" not in f"{error} {error!r} {error.args} {error.endpoint}"
    assert "…" in str(error)


@pytest.mark.parametrize("text", ["tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://h:0"])
def test_wildcards_and_port_0_cannot_be_connected_to(text):
    with pytest.raises(EndpointError, match="cannot connect to"):
        parse_endpoint(text).require_connectable()


def test_a_group_is_distinguished_from_an_address():
    assert parse_endpoint("udp://239.1.1.1:1").is_multicast
    assert parse_endpoint("udp://[ff15::1]:1").is_multicast
    assert not parse_endpoint("udp://10.0.0.1:1").is_multicast
    assert not parse_endpoint("udp://localhost:1").is_multicast
    assert parse_endpoint("udp://*:1").require_connectable().is_wildcard
    assert parse_endpoint("udp://h:1?ttl=4").option("ttl") == "4"


def test_port_and_host_can_be_replaced():
    endpoint = parse_endpoint("tcp://*:0")
    assert str(endpoint.with_port(7).with_host("Example.com")) == "tcp://example.com:7"
    assert str(endpoint.with_host("::1")) == "tcp://[::1]:0"
    assert str(endpoint.with_host("[::1]")) == "tcp://[::1]:0"
    assert str(parse_endpoint("tcp://[::1]:1").with_port(2)) == "tcp://[::1]:2"


def test_what_a_peer_announces_has_the_zone_and_the_host_by_which_it_is_reached():
    link_local = parse_endpoint("tcp://[fe80::1%va]:7")
    assert str(link_local.reached_by("fe80::1%vb")) == "tcp://[fe80::1%vb]:7"
    assert str(link_local.reached_by("fe80::2%3")) == "tcp://[fe80::1%3]:7"
    assert str(link_local.reached_by("localhost")) == "tcp://[fe80::1%va]:7"
    assert str(parse_endpoint("tcp://[fd77::1]:7").reached_by("fe80::1%vb")) == "tcp://[fd77::1]:7"
    assert str(parse_endpoint("tcp://*:7").reached_by("fe80::1%vb")) == "tcp://[fe80::1%vb]:7"


hosts = st.one_of(
    st.just("*"),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.from_regex(r"[a-z]([a-z0-9\-]{0,10}[a-z0-9])?(\.[a-z]{1,5}){0,3}", fullmatch=True),
)
printable = st.characters(codec="utf-8", exclude_categories=("C", "Z"))
endpoints = st.one_of(
    st.builds(Endpoint, st.just("tcp"), host=hosts, port=st.integers(0, 65535)),
    st.builds(
        Endpoint,
        st.sampled_from(["ipc", "inproc", "memory"]),
        path=st.text(printable, min_size=1, max_size=26).filter(lambda path: path not in "*@"),
    ),
)


@given(endpoints)
def test_text_and_endpoint_are_each_other(endpoint):
    assert parse_endpoint(str(endpoint)) == endpoint


@given(
    st.one_of(
        st.text(),
        st.builds("{}://{}".format, st.sampled_from(["tcp", "ipc", "inproc", "x"]), st.text()),
        st.builds("tcp://{}:{}".format, st.text("[]:.%*0a-/ "), st.text("0123456789*- :")),
    )
)
@example("tcp://[::1%]:1")
@example("tcp://[[::1]]:1")
def test_any_text_is_an_endpoint_or_an_endpoint_error(text):
    try:
        endpoint = parse_endpoint(text)
    except EndpointError:
        return
    assert parse_endpoint(str(endpoint)) == endpoint


@given(
    st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.lists(st.sampled_from(["", "0", "00", "01", "9", "99", "100", "249", "255", "256"])).map(
            ".".join
        ),
        st.text("0123456789.:af%", max_size=20),
    )
)  # fmt: skip
def test_addresses_are_those_of_the_standard_library(text):
    try:
        known = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        assert not is_address(text)
        return
    assert is_address(text)
    assert Endpoint("udp", host=text).is_multicast == ipaddress.ip_address(text).is_multicast
    bracketed = f"[{text}]" if known.version == 6 else text
    assert parse_endpoint(f"tcp://{bracketed}:1").host == str(ipaddress.ip_address(text))
