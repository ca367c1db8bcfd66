"""Bridges between p2pmsg and raw pyzmq sockets, which know nothing of it."""

import logging
import os
import signal
import subprocess
import sys

import pytest
import zmq

import p2pmsg
from p2pmsg.bridge import BridgeConfig
from p2pmsg.errors import ConfigError
from tests.integration.peers import DEADLINE_S, LOOPBACK, eventually, place_of, values_of

WAIT_MS = int(DEADLINE_S * 1000)


@pytest.fixture
def stranger():
    """Make a raw ZeroMQ socket that is bound; returns it and where, without the scheme."""
    context = zmq.Context()
    kept = []

    def make(kind, endpoint="tcp://127.0.0.1:*", *, connects=False, hwm=None):
        made = context.socket(kind)
        kept.append(made)
        made.set(zmq.LINGER, 0)
        made.set(zmq.RCVTIMEO, WAIT_MS)
        made.set(zmq.SNDTIMEO, WAIT_MS)
        if hwm:
            made.set(zmq.SNDHWM, hwm)
            made.set(zmq.RCVHWM, hwm)
        if kind == zmq.SUB:
            made.subscribe(b"")
        if connects:
            made.connect(endpoint)
            return made
        made.bind(endpoint)
        return made, made.getsockopt_string(zmq.LAST_ENDPOINT).partition("://")[2]

    yield make
    context.destroy(linger=0)


@pytest.mark.parametrize("binds", [False, True])
def test_a_plain_pub_becomes_a_stream(stranger, bridge, make_subscriber, binds):
    if binds:
        made = bridge("zmq+sub://127.0.0.1:0?bind=1", LOOPBACK)
        pub = stranger(zmq.XPUB, place_of(made.source), connects=True)
    else:
        pub, place = stranger(zmq.XPUB)
        made = bridge(f"zmq+sub://{place}", LOOPBACK)
    assert pub.recv() == b"\1"  # it has subscribed to all
    for number in range(100):
        pub.send_multipart([b"prices", b"%d" % number])
    pub.send_multipart([b"prices", b"x", b"y"])
    pub.send(b"alone")
    subscriber = make_subscriber(made.endpoint, topics=["prices"], start="earliest")
    values = values_of(subscriber, 101)
    assert values == [*(b"%d" % number for number in range(100)), [b"x", b"y"]]
    other = make_subscriber(made.endpoint, topics=["zmq"], start="earliest")
    assert values_of(other, 1) == [b"alone"]
    eventually(lambda: made.stats().passed_on == 102)  # it is counted after it was passed on
    stats = made.stats()
    assert (stats.received, stats.without_topic) == (102, 1)
    assert stats.ours.published == 102


def test_gaps_before_the_bridge_are_counted_and_said(stranger, bridge, caplog):
    pub, place = stranger(zmq.XPUB)
    made = bridge(f"zmq+sub://{place}", LOOPBACK, codec="json", sequence_at="n")
    pub.recv()
    for number in (1, 2, 5, 6, 9):
        pub.send_multipart([b"t", b'{"n": %d}' % number])
    pub.send_multipart([b"t", b"no json"])
    stats = eventually(lambda: made.stats().passed_on == 6 and made.stats())
    assert (stats.gaps, stats.missing, stats.unnumbered, stats.undecoded) == (2, 4, 1, 1)
    said = [record.getMessage() for record in caplog.records]
    assert any("messages were lost before they came here" in text for text in said)


def test_a_pub_that_is_faster_than_the_bridge_is_said(stranger, bridge, caplog):
    caplog.set_level(logging.WARNING, "p2pmsg")
    pub, place = stranger(zmq.XPUB)
    made = bridge(
        f"zmq+sub://{place}", LOOPBACK, topic_at="none", sequence_at="0:8",
        config=BridgeConfig(queue_messages=100),
    )  # fmt: skip
    pub.recv()
    sent = 0

    def flood():
        nonlocal sent
        for _ in range(5000):
            pub.send(sent.to_bytes(8, "big"))
            sent += 1
        return made.stats().overruns

    eventually(flood)
    said = "sends faster than the bridge reads"
    eventually(lambda: any(said in record.getMessage() for record in caplog.records))

    def all_is_known():  # the PUB dropped the others at its high-water mark; a last one shows it
        nonlocal sent
        pub.send(sent.to_bytes(8, "big"))
        sent += 1
        eventually(lambda: not made.stats().received < made.stats().passed_on)
        stats = made.stats()
        return stats.received + stats.missing == sent

    eventually(all_is_known)


def test_single_parts_are_read_faster_and_others_are_noticed(stranger, bridge, caplog):
    pub, place = stranger(zmq.XPUB)
    made = bridge(
        f"zmq+sub://{place}", LOOPBACK, topic_at="none", config=BridgeConfig(single_parts=True)
    )
    pub.recv()
    with p2pmsg.Subscriber(made.endpoint, start="earliest") as subscriber:
        for number in range(1000):
            pub.send(b"%d" % number)
        assert values_of(subscriber, 1000) == [b"%d" % number for number in range(1000)]
        for number in range(3):
            pub.send_multipart([b"a", b"%d" % number])
            assert values_of(subscriber, 1) == [[b"a", b"%d" % number]]
    assert made.stats().received_bytes == 2890 + 6
    assert sum("against single_parts" in r.getMessage() for r in caplog.records) == 1


def test_a_stream_reaches_a_plain_sub(stranger, bridge, make_publisher):
    publisher = make_publisher()
    made = bridge(publisher.endpoint, "zmq+pub://127.0.0.1:0?bind=1")
    sub = stranger(zmq.SUB, place_of(made.target), connects=True)
    publisher.wait_for_subscribers(1, timeout=DEADLINE_S)

    def is_there():
        publisher.publish("hello", b"")
        return sub.poll(1)

    eventually(is_there)
    publisher.publish_many("t", [b"0", "1", [b"2", b"x"]])
    got = []
    while len(got) < 3:
        message = sub.recv_multipart()
        if message[0] != b"hello":
            got.append(message)
    assert got == [[b"t", b"0"], [b"t", b"1"], [b"t", b"2", b"x"]]


def test_a_plain_sub_with_a_full_queue_loses_and_is_counted(
    stranger, bridge, make_publisher, caplog
):
    publisher = make_publisher()
    config = BridgeConfig(queue_messages=10, stall_timeout=0.05)
    made = bridge(publisher.endpoint, "zmq+pub://127.0.0.1:0?bind=1", config=config)
    sub = stranger(zmq.SUB, place_of(made.target), connects=True, hwm=10)
    publisher.wait_for_subscribers(1, timeout=DEADLINE_S)

    def is_there():
        publisher.publish("t", bytes(100_000))
        return sub.poll(1)

    eventually(is_there)

    def floods():
        for _ in range(20):
            publisher.publish("t", bytes(100_000))
        return made.stats().dropped

    eventually(floods)
    published = publisher.stats().published

    def all_is_settled():  # a message was for nobody where the SUB took longer than stall_timeout
        stats = made.stats()
        return stats.passed_on + stats.without_subscriber == published

    eventually(all_is_settled)
    taken = 0
    while sub.poll(200):
        sub.recv_multipart()
        taken += 1
    stats = made.stats()
    assert 0 < stats.dropped < published
    assert taken <= published - stats.dropped  # what was published before it was there
    assert any("messages are dropped for it" in r.getMessage() for r in caplog.records)

    def comes_again():
        publisher.publish("t", b"again")
        while sub.poll(1):
            if sub.recv_multipart() == [b"t", b"again"]:
                return True

    eventually(comes_again)


def test_what_is_for_nobody_is_counted_and_said(stranger, bridge, make_publisher, caplog):
    publisher = make_publisher()
    made = bridge(
        publisher.endpoint, "zmq+pub://127.0.0.1:0?bind=1",
        config=BridgeConfig(stall_timeout=0.05), start="earliest",
    )  # fmt: skip
    publisher.publish_many("t", [b"early", b"early"])
    eventually(lambda: made.stats().without_subscriber == 2)
    assert made.stats().passed_on == 0
    assert any("nobody has subscribed" in r.getMessage() for r in caplog.records)
    sub = stranger(zmq.SUB, place_of(made.target), connects=True)

    def comes():
        publisher.publish("t", b"now")
        return sub.poll(1)

    eventually(comes)
    assert sub.recv_multipart() == [b"t", b"now"]
    sub.close()

    def is_noticed():
        before = made.stats().without_subscriber
        publisher.publish("t", b"late")
        eventually(lambda: made.stats().received == publisher.stats().published)
        return made.stats().without_subscriber > before

    eventually(is_noticed)
    stats = eventually(
        lambda: (now := made.stats()).received == now.passed_on + now.without_subscriber and now
    )
    assert stats.received == publisher.stats().published


def test_a_plain_push_fills_the_queue_and_waits_where_it_is_full(stranger, bridge, make_puller):
    push, place = stranger(zmq.PUSH, hwm=10)
    config = BridgeConfig(queue_messages=10)
    made = bridge(f"zmq+pull://{place}", LOOPBACK, config=config)
    payload = bytes(20_000)
    sent = 0
    push.set(zmq.SNDTIMEO, 300)
    while sent < 10_000:
        try:
            push.send_multipart([b"%d" % sent, payload])
            sent += 1
        except zmq.Again:
            if made.stats().ours.pushed == 1000:
                break
    assert 1000 <= sent < 10_000
    puller = make_puller(made.endpoint)
    for number in range(sent):
        with puller.receive(DEADLINE_S) as job:
            assert job.value == [b"%d" % number, payload]
    eventually(lambda: made.stats().ours.done == sent)


def test_jobs_reach_plain_pulls(stranger, bridge, make_pusher):
    pusher = make_pusher()
    made = bridge(pusher.endpoint, "zmq+push://127.0.0.1:0?bind=1")
    for number in range(100):
        pusher.push(b"%d" % number)
    assert pusher.stats().done == 0  # nobody is there to take them
    pulls = [stranger(zmq.PULL, place_of(made.target), connects=True) for _ in range(2)]
    got = []
    while len(got) < 100:
        got += [pull.recv() for pull in pulls if pull.poll(10)]
    assert sorted(map(int, got)) == [*range(100)]
    eventually(lambda: pusher.stats().done == 100)
    pusher.push({"no": "bytes"})
    (letter,) = eventually(pusher.dead_letters)
    assert "neither bytes, text nor a list of them but dict" in letter.reason
    assert made.stats().refused == 1


def test_jobs_that_were_not_passed_on_are_given_back(bridge, make_pusher, make_puller):
    pusher = make_pusher()
    made = bridge(pusher.endpoint, "zmq+push://127.0.0.1:0?bind=1")
    pusher.push(b"job")
    eventually(lambda: made.stats().received)
    made.close()
    assert made.stats().unsent == 1
    with make_puller(pusher.endpoint).receive(DEADLINE_S) as job:
        assert (job.value, job.last_reason) == (b"job", "the bridge was closed")


def test_both_ends_may_be_plain_over_ipc(stranger, bridge, tmp_path):
    pub, place = stranger(zmq.XPUB, f"ipc://{tmp_path}/in")
    made = bridge(
        f"zmq+sub+ipc://{place}", f"zmq+push+ipc://{tmp_path}/out?bind=1", topic_at="none"
    )
    pull = stranger(zmq.PULL, f"ipc://{tmp_path}/out", connects=True)
    pub.recv()
    pub.send_multipart([b"a", b"b"])
    assert pull.recv_multipart() == [b"a", b"b"]
    assert made.stats().ours is None


def test_a_sub_fills_a_queue_with_the_topic_as_a_header(stranger, bridge, make_puller):
    pub, place = stranger(zmq.XPUB)
    made = bridge(f"zmq+sub://{place}", f"queue+{LOOPBACK}")
    pub.recv()
    pub.send_multipart([b"t", b"1"])
    with make_puller(made.endpoint).receive(DEADLINE_S) as job:
        assert (job.value, job.headers) == (b"1", {"topic": "t"})


def test_what_is_too_large_is_refused_and_the_rest_goes_on(
    stranger, bridge, make_subscriber, caplog
):
    push, place = stranger(zmq.PUSH)
    made = bridge(f"zmq+pull://{place}", f"stream+{LOOPBACK}", topic="jobs")
    for value in (b"0", bytes(3 * 2**20), b"1", bytes(3 * 2**20), b"2"):
        push.send(value)
    subscriber = make_subscriber(made.endpoint, start="earliest")
    assert values_of(subscriber, 3) == [b"0", b"1", b"2"]
    eventually(lambda: made.stats().passed_on == 3 and made.stats().refused == 2)
    assert any(
        "topic 'jobs': a message cannot be passed on" in r.getMessage() for r in caplog.records
    )


def test_a_cursor_goes_on_where_the_bridge_was(stranger, make_publisher, tmp_path):
    publisher = make_publisher()
    pull, place = stranger(zmq.PULL)
    options = {"start": "earliest", "cursor": str(tmp_path / "cursor")}
    got = []
    for start in (0, 50):
        publisher.publish_many("t", [b"%d" % number for number in range(start, start + 50)])
        ends = (f"stream+{publisher.endpoint}", f"zmq+push://{place}")
        with p2pmsg.Bridge(*ends, **options):
            got += [int(pull.recv()) for _ in range(50)]
    assert got == [*range(100)]


CHILD = """
import sys, p2pmsg
with p2pmsg.Bridge(sys.argv[1], sys.argv[2], log=sys.argv[3], sequence_at="0:8",
                   topic_at="none") as bridge:
    print(bridge.endpoint, flush=True)
    sys.stdin.read()
"""


def test_a_bridge_that_is_killed_and_restarted_keeps_what_it_had_taken(
    stranger, tmp_path, make_subscriber
):
    pub, place = stranger(zmq.XPUB)
    stream = f"ipc://{tmp_path}/stream"
    sent = 0
    subscriber = None
    for _ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, f"zmq+sub://{place}", stream, str(tmp_path / "log")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert child.stdout.readline().decode().strip() == stream
            assert pub.recv() == b"\1"
            if subscriber is None:
                subscriber = make_subscriber(stream, start="earliest")
            for _ in range(2000):
                pub.send(sent.to_bytes(8, "big"))
                sent += 1
            while int.from_bytes(values_of(subscriber, 1)[0], "big") < sent - 2000:
                pass  # until some of it has come
            os.kill(child.pid, signal.SIGKILL)
        finally:
            child.kill()
            child.communicate()
        assert pub.recv() == b"\0"
    with p2pmsg.Bridge(f"zmq+sub://{place}", stream, log=str(tmp_path / "log")) as last:
        assert pub.recv() == b"\1"
        count = last.stats().ours.streams["zmq"][1]
        with p2pmsg.Subscriber(stream, start="earliest") as reader:
            messages = [reader.receive(DEADLINE_S) for _ in range(count)]
    assert [message.sequence for message in messages] == [*range(count)]
    numbers = [int.from_bytes(message.value, "big") for message in messages]
    assert numbers == sorted(set(numbers))  # each once, in order; a PUB's own losses are gaps
    assert numbers[0] == 0
    assert numbers[-1] >= 2000


def test_what_has_come_already_is_passed_on_at_close(stranger, tmp_path):
    push, place = stranger(zmq.PUSH)
    with p2pmsg.Bridge(f"zmq+pull://{place}", LOOPBACK, log=str(tmp_path / "log")) as made:
        for number in range(1000):
            push.send(b"%d" % number)
        eventually(lambda: made.stats().received)
    stats = made.stats()
    assert stats.received == stats.passed_on == 1000
    assert repr(made).endswith(" closed>")
    with p2pmsg.Pusher(LOOPBACK, log=str(tmp_path / "log")) as pusher:
        assert pusher.stats().restored == 1000
        pusher.close(timeout=0.0)


@pytest.mark.parametrize(
    ("ends", "options", "error", "words"),
    [
        (("zmq+pub://a:1", LOOPBACK), {}, ConfigError, "source must be a socket that"),
        ((LOOPBACK, "zmq+sub://a:1"), {}, ConfigError, "target must be a socket that"),
        (("tcp://a:1", LOOPBACK), {}, ConfigError, "Relay"),
        (("zmq+pull://a:1", LOOPBACK), {"topics": ["a"]}, ConfigError, "topics"),
        (("zmq+sub://a:1", "zmq+pub://a:1"), {"topics": ["a"], "topic_at": "none"}, ConfigError,
         "topics"),
        (("tcp://a:1", "zmq+pub://a:1"), {"log": "x"}, ConfigError, "log"),
        (("zmq+sub://a:1", LOOPBACK), {"start": 1}, ConfigError, "start"),
        (("tcp://a:1", "zmq+pub://a:1"), {"sequence_at": "0:4"}, ConfigError, "sequence_at"),
        (("zmq+sub://a:1", LOOPBACK), {"topic_at": "key"}, ConfigError, "topic_at"),
        (("zmq+sub://a:1", LOOPBACK), {"codec": "xml"}, ConfigError, "codec"),
        (("zmq+sub://a:1", LOOPBACK), {"topic": ""}, p2pmsg.MessageError, "topic"),
        (("zmq+sub://a:1", LOOPBACK), {"config": BridgeConfig(single_parts=True)}, ConfigError,
         "single_parts"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named(ends, options, error, words):
    with pytest.raises(error, match=words):
        p2pmsg.Bridge(*ends, **options)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynng", None)
    monkeypatch.delitem(sys.modules, "transports.sp_plain", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'p2pmsg\[nng\]'"):
        p2pmsg.Bridge("sp+sub://127.0.0.1:1", LOOPBACK)
