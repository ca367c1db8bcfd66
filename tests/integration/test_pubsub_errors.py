"""What the API refuses, with the right exception; and peers refused at a bound, which is said."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from datetime import datetime

import pytest
import zmq

import p2pmsg
from p2pmsg import PublisherConfig
from tests.integration.peers import (
    DEADLINE_S,
    ROOT,
    TOPIC,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    take,
)
from transports import connections, context

LONG = "x" * 256
BAD_PUBLISHERS = {
    "unknown scheme": ({"endpoint": "http://a:1"}, "http"),
    "pgm": ({"endpoint": "pgm://239.0.0.1:5000"}, "pgm"),
    "recovery": ({"recovery_endpoint": "tcp://a"}, "port"),
    "name": ({"name": LONG}, "name must be a str of at most 255 bytes"),
}
BAD_SUBSCRIBERS = {
    "port 0": ({"endpoints": "tcp://127.0.0.1:0"}, "port"),
    "wildcard": ({"endpoints": "tcp://*:5556"}, "tcp://*:5556"),
    "one of two": ({"endpoints": ["tcp://a:1", "tcp://a"]}, "tcp://a"),
    "no topic": ({"topics": []}, "one, or None or '*' for all"),
    "empty topic": ({"topics": [""]}, "1 to 255 bytes"),
    "long topic": ({"topics": [LONG]}, "255"),
    "star inside": ({"topics": ["a**"]}, "topics"),
    "zero byte": ({"topics": ["a\0b"]}, "zero byte"),
    "too many topics": ({"topics": [f"topic {n}" for n in range(20_000)]}, "topics"),
    "start": ({"start": "oldest"}, "start must be"),
    "start bool": ({"start": True}, "start"),
    "start beyond": ({"start": 2**63}, "start"),
    "start naive": ({"start": datetime(2026, 1, 1)}, "time zone"),
    "on_gap": ({"on_gap": "ignore"}, "on_gap must be"),
}
"""What is of a wrong type or out of a number's limits: `unit/p2pmsg/test_arguments.py`."""


@pytest.mark.parametrize(("arguments", "text"), BAD_PUBLISHERS.values(), ids=BAD_PUBLISHERS)
def test_a_publisher_refuses(arguments, text):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        p2pmsg.Publisher(**{"endpoint": "tcp://127.0.0.1:0", **arguments})
    assert text in str(refused.value)
    assert isinstance(refused.value, ValueError | OSError)


@pytest.mark.parametrize(("arguments", "text"), BAD_SUBSCRIBERS.values(), ids=BAD_SUBSCRIBERS)
def test_a_subscriber_refuses(arguments, text):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        p2pmsg.Subscriber(**{"endpoints": "tcp://127.0.0.1:9", **arguments})
    assert text in str(refused.value)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class Odd:
    pass


DEEP = nested(100_000)
BAD_MESSAGES = {
    "object": (("t", Odd()), {}, "value"),
    "object deep inside": (("t", {"a": [1, {"b": Odd()}]}), {}, "value"),
    "function": (("t", print), {}, "value"),
    "generator": (("t", (n for n in ())), {}, "value"),
    "complex": (("t", 1j), {}, "value"),
    "int too large": (("t", 2**64), {}, "value"),
    "int too small": (("t", -(2**63) - 1), {}, "value"),
    "int too large inside": (("t", [1, 2**64]), {}, "value"),
    "surrogate": (("t", "\ud800"), {}, "value"),
    "too deep": (("t", DEEP), {}, "value"),
    "too large": (("t", bytes(2**20 + 1)), {}, "1048576"),
    "too large text": (("t", "x" * (2**20 + 1)), {}, "1048576"),
    "too large list": (("t", [bytes(1000)] * 2000), {}, "1048576"),
    "headers too large": (("t", 1), {"headers": {"a": bytes(2**20)}}, "1048576"),
    "key too large": (("t", 1, "k" * 2**20), {}, "1048576"),
    "key of bytes": (("t", 1, b"k"), {}, "key"),
    "key surrogate": (("t", 1, "\ud800"), {}, "key"),
    "timestamp float": (("t", 1), {"timestamp_ns": 1.5}, "timestamp_ns"),
    "timestamp bool": (("t", 1), {"timestamp_ns": True}, "timestamp_ns"),
    "timestamp str": (("t", 1), {"timestamp_ns": "now"}, "timestamp_ns"),
    "timestamp too large": (("t", 1), {"timestamp_ns": 2**63}, "timestamp_ns"),
    "headers list": (("t", 1), {"headers": [1]}, "headers"),
    "headers keys": (("t", 1), {"headers": {1: 2}}, "headers"),
    "headers value": (("t", 1), {"headers": {"a": Odd()}}, "headers"),
    "topic empty": (("", 1), {}, "topic"),
    "topic None": ((None, 1), {}, "topic"),
    "topic bytes": ((b"t", 1), {}, "topic"),
    "topic list": ((["t"], 1), {}, "topic"),
    "topic long": ((LONG, 1), {}, "255"),
    "topic long in bytes": (("ü" * 128, 1), {}, "255"),
    "topic zero byte": (("a\0b", 1), {}, "zero byte"),
    "topic star": (("a.*", 1), {}, "topic"),
    "topic surrogate": (("\ud800", 1), {}, "topic"),
}


@pytest.fixture(params=["idle", "open batch", "wide batch"])
def state(request):
    return request.param


@pytest.mark.parametrize(("arguments", "options", "text"), BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_a_refused_message_leaves_no_trace(connect, state, arguments, options, text):
    publisher, subscriber = connect()
    sent = 0
    columns = {"key": "k", "headers": {"h": 1}} if state == "wide batch" else {}
    for turn in range(1 if state == "idle" else 100):
        sent += publisher.publish("t", sent, **columns) >= 0
        with pytest.raises(p2pmsg.MessageError) as refused:
            publisher.publish(*arguments, **options)
        assert text in str(refused.value)
        assert len(str(refused.value)) < 2_000, "the message repeats a large value"
        assert publisher.publish("t", sent) == sent
        sent += 1
        if text == "1048576" or (turn == 3 and DEEP in arguments[1:]):
            break  # to refuse it takes time
    messages = take(subscriber, sent)
    check_exact(messages)
    assert all(m.key is None and m.headers is None for m in messages[1::2])
    check_ledger(subscriber, published=sent, delivered=sent, lost=0)
    assert publisher.stats().published == sent


def test_the_limit_of_a_message_holds_in_every_way_of_publishing(connect):
    config = PublisherConfig(message_bytes_max=1024)
    publisher, subscriber = connect(publisher={"config": config})
    sent = 0
    for _ in range(300):
        sent += publisher.publish(TOPIC, sent) >= 0
        for value in (bytes(2000), "x" * 2000, [bytes(500)] * 4):
            with pytest.raises(p2pmsg.errors.MessageTooLargeError) as refused:
                publisher.publish(TOPIC, value)
            assert refused.value.limit == 1024
            assert refused.value.size > 1024
        with pytest.raises(p2pmsg.errors.MessageTooLargeError):
            publisher.publish(TOPIC, sent, headers={"a": bytes(2000)})
    for values in ([bytes(2000)], [1, bytes(2000)]):
        with pytest.raises(p2pmsg.errors.MessageTooLargeError):
            publisher.publish_many("other", values)
    check_exact([m for m in take(subscriber, sent) if m.topic == TOPIC])


def test_only_the_message_that_a_subscriber_cannot_take_is_lost(connect, caplog):
    config = PublisherConfig(message_bytes_max=16 * 2**20)
    publisher, subscriber = connect(publisher={"config": config}, on_gap="wait")
    assert "16,777,216 bytes (its message_bytes_max)" in caplog.text
    assert "frame_bytes_max (4,194,304 bytes, SubscriberConfig)" in caplog.text
    publisher.publish(TOPIC, 0)
    publisher.publish(TOPIC, bytes(6 * 2**20))
    for number in range(2, 9):
        publisher.publish(TOPIC, number)
        publisher.publish("other", number)
    messages = [subscriber.receive(DEADLINE_S) for _ in range(15)]
    check_exact([m for m in messages if m.topic == TOPIC], [0, *range(2, 9)])
    assert [m.value for m in messages if m.topic == "other"] == list(range(2, 9))
    stats = check_ledger(subscriber, delivered=15, lost=1)
    assert ranges(stats.losses) == [(1, 2, "too_large")]
    publisher.publish(TOPIC, 9)
    assert subscriber.receive(DEADLINE_S).value == 9


@pytest.mark.parametrize(
    ("values", "columns", "kind"),
    [
        ([], {}, p2pmsg.ConfigError),
        ([1, 2], {"keys": ["a"]}, p2pmsg.ConfigError),
        ([1, 2], {"timestamps_ns": [1]}, p2pmsg.ConfigError),
        ([1, 2], {"keys": ["a", 5]}, p2pmsg.MessageError),
        ([1, 2], {"keys": ["a", "\ud800"]}, p2pmsg.MessageError),
        ([1, 2], {"timestamps_ns": [1, None]}, p2pmsg.MessageError),
        ([1, 2], {"timestamps_ns": [1, 2**63]}, p2pmsg.MessageError),
        ([1, Odd()], {}, p2pmsg.MessageError),
        ([1, 2**64], {}, p2pmsg.MessageError),
        (5, {}, p2pmsg.MessageError),
        (None, {}, p2pmsg.MessageError),
        ((n for n in (1, 2)), {}, p2pmsg.MessageError),
        ({1, 2}, {}, p2pmsg.MessageError),
        ({1: 2}, {}, p2pmsg.MessageError),
        ("ab", {}, p2pmsg.MessageError),
        (b"ab", {}, p2pmsg.MessageError),
    ],
)
def test_publish_many_refuses(make_publisher, values, columns, kind):
    publisher = make_publisher()
    publisher.publish(TOPIC, 0)
    with pytest.raises(kind):
        publisher.publish_many(TOPIC, values, **columns)
    assert publisher.stats().published == 1
    assert publisher.publish_many(TOPIC, [1, 2]) == (1, 2)


@pytest.fixture
def bound(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 2)
    shared = context()
    made = shared.socket(zmq.PUB)
    counted = connections.Connections(made, shared)
    made.bind("tcp://127.0.0.1:*")
    yield counted, made.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    counted.close()
    made.close(linger=0)


def connect(stack, endpoint, count):
    host, _, port = endpoint.removeprefix("tcp://").partition(":")
    for _ in range(count):
        stack.enter_context(socket.create_connection((host, int(port))))


def test_refused_connections_are_said_with_endpoint_limit_and_count(bound, caplog, monkeypatch):
    counted, endpoint = bound

    def refused(count):
        counted.update()
        return counted.refused == count

    with contextlib.ExitStack() as stack:
        connect(stack, endpoint, 3)
        eventually(lambda: refused(1))
        (said,) = caplog.records
        assert said.levelname == "WARNING"
        assert endpoint in said.message
        assert "1, since there are 2 already" in said.message
        connect(stack, endpoint, 4)
        eventually(lambda: refused(5))
        assert len(caplog.records) == 1  # a minute has not passed
        in_a_minute_ns = time.monotonic_ns() + 60 * 10**9
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic_ns", lambda: in_a_minute_ns)
            counted.update()
        assert len(caplog.records) == 2
        assert "4, since" in caplog.records[1].message
        counted.update()
        assert len(caplog.records) == 2


FEW_FILES = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
import p2pmsg
with p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher:
    publisher.stats()  # imports what it needs
    print(publisher.endpoint, flush=True)
    while not publisher.stats().connections_refused:
        time.sleep(0.01)
    print("refused", flush=True)
    sys.stdin.readline()
    publisher.publish("t", "served")
"""


@pytest.fixture
def start(opened):
    def start(program, *arguments):
        child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        opened.callback(child.communicate)
        opened.callback(child.kill)
        return child

    return start


@pytest.mark.long
@pytest.mark.parametrize("files", [40, pytest.param(64, marks=pytest.mark.long)])
def test_with_few_open_files_some_are_served_and_nothing_fails(start, make_subscriber, files):
    child = start(FEW_FILES, str(files))
    endpoint = child.stdout.readline().strip()
    with contextlib.ExitStack() as stack:
        connect(stack, endpoint, files)
        assert child.stdout.readline() == "refused\n"
    subscriber = make_subscriber(endpoint)
    eventually(lambda: subscriber.stats().publishers)
    said = child.communicate("go\n", timeout=60)[1]
    assert subscriber.receive(60).value == "served"
    assert (child.returncode, "Traceback" in said, "failed" in said) == (0, False, False), said
