"""The ends of a bridge as text."""

import pytest

from p2pmsg.bridge.endpoint import OurEnd, PlainEnd, parse_end
from transports import EndpointError, parse_endpoint

AT_1 = parse_endpoint("tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("zmq+sub://127.0.0.1:1", PlainEnd("zmq", "sub", AT_1, False)),
        ("zmq+push://*:0?bind=1", PlainEnd("zmq", "push", parse_endpoint("tcp://*:0"), True)),
        ("zmq+pull+ipc:///run/a", PlainEnd("zmq", "pull", parse_endpoint("ipc:///run/a"), False)),
        ("zmq+pub+inproc://a?bind=1", PlainEnd("zmq", "pub", parse_endpoint("inproc://a"), True)),
        ("tcp://127.0.0.1:1", OurEnd("", "tcp://127.0.0.1:1")),
        ("queue+ipc:///run/a", OurEnd("queue", "ipc:///run/a")),
        ("stream+tcp://a:1", OurEnd("stream", "tcp://a:1")),
    ],
)  # fmt: skip
def test_what_an_end_says(text, end):
    assert parse_end(text) == end


@pytest.mark.parametrize("text", ["zmq+sub://127.0.0.1:1", "zmq+pub+ipc://a?bind=1"])
def test_its_name_can_be_parsed_again(text):
    end = parse_end(text)
    assert parse_end(end.name_at(str(end.endpoint))) == end


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zmq+dealer://a:1", "zmq has no 'dealer' here (known: sub, pull, pub, push)"),
        ("amqp+sub://a:1", "unknown 'amqp' before the + (known: zmq"),
        ("zmq+sub+udp://a:1", "zmq goes over tcp, ipc, inproc, not 'udp'"),
        ("zmq+sub://a:1?bind=0", "unknown option 'bind=0' (known: bind=1, curve=1, key=KEY)"),
        ("zmq+sub://*:1", "cannot connect to '*:1': it binds with ?bind=1"),
        ("zmq+sub://a:0", "cannot connect to 'a:0': it binds with ?bind=1"),
        ("zmq+sub://a", "missing port after host 'a'"),
        ("zmq+sub://", "empty host in 'zmq+sub://'"),
        ("zmq+sub://a:x", "port 'x' is not a number from 0 to 65535 in 'zmq+sub://a:x'"),
        ("foo://1", "unknown scheme 'foo'"),
        ("foo://1", "plain sockets: zmq+sub, zmq+pull, zmq+pub, zmq+push, sp+sub"),
        ("queue+tcp+x://a:1", "scheme"),
        ("nothing", "missing scheme"),
        (None, "an endpoint is a str"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(EndpointError) as raised:
        parse_end(text)
    assert words in str(raised.value)
    assert raised.value.endpoint == text
