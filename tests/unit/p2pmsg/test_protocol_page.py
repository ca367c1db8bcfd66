"""The frames that PROTOCOL.md shows byte for byte are those that the code makes and reads."""

import re
from pathlib import Path

import pytest

from p2pmsg import control, wire
from p2pmsg.queue import frames as queue
from p2pmsg.queue.rules import DeliveryBatch, JobRun
from p2pmsg.wire import Frame, Kind
from tests.unit.p2pmsg.frames import SESSION

PAGE = (Path(__file__).parents[3] / "p2pmsg" / "PROTOCOL.md").read_text()
PROBE, SUBSCRIBER, INCARNATION = 0x1112131415161718, 0x2122232425262728, 0x3132333435363738
RECOVERY = "tcp://127.0.0.1:5557"
BASE_NS = 10**18


def shown():
    """The frames of the page, in its order."""
    part = PAGE.partition("\n## Byte for byte\n")[2].partition("\n## ")[0]
    return [bytes.fromhex(block) for block in re.findall(r"```text\n(.*?)```", part, re.DOTALL)]


def test_control_frames_are_made_like_the_page():
    make = wire.control_frame
    joined = control.Joined(SUBSCRIBER, "reader")
    head = control.Head("prices", 0, 3, 0)
    expected = [
        make(
            Kind.HEARTBEAT, SESSION,
            control.Heartbeat(0, control.endpoint_hash_of(RECOVERY), INCARNATION),
            sequence=3, topic=b"prices",
        ),
        make(
            Kind.WELCOME, SESSION,
            control.Welcome("feed", RECOVERY, 1000.0, incarnation=INCARNATION),
        ),
        make(Kind.PROBE, SESSION, control.Probe(PROBE, ["prices"], "earliest")),
        make(Kind.ECHO, PROBE, control.Heads("feed", [head], incarnation=INCARNATION)),
        make(Kind.JOINED, SESSION, joined),
        make(Kind.NACK, SESSION, control.Nack("prices", [(0, 2)])),
        make(Kind.REFUSED, SESSION, control.Refused("prices", [(0, 2)], "evicted")),
        make(Kind.LEAVE, SESSION, joined),
    ]  # fmt: skip
    assert shown()[2:] == expected


DATA = [
    (0, ([b"hi"], None, None, None)),
    (1, ([{"bid": 1.5}, {"bid": 2}], [BASE_NS, BASE_NS + 5], ["EUR", None], None)),
]


@pytest.mark.parametrize("number", range(len(DATA)))
def test_data_of_the_page_is_what_a_publisher_sends_and_a_subscriber_reads(number):
    sequence, columns = DATA[number]
    data = shown()[number]
    values, timestamps, keys, headers = columns
    offsets = timestamps and [timestamp - BASE_NS for timestamp in timestamps]
    body = wire.encoder.encode([values, offsets, keys, headers])
    rest = wire.REST.pack(sequence, len(values), len(body), BASE_NS)
    assert data == wire.stream_prefix("prices", SESSION) + rest + body
    frame = Frame(data)
    assert (frame.topic, frame.kind, frame.sequence) == ("prices", Kind.DATA, sequence)
    assert wire.decode_columns(frame) == columns


def test_subscriptions_are_those_of_the_page():
    part = PAGE.partition("has three subscriptions:")[2].partition("\n## ")[0]
    rows = [bytes.fromhex("".join(re.findall("`([0-9a-f]+)`", line))) for line in part.split("\n")]
    prefixes = [
        *wire.topic_prefixes(["prices"]),
        wire.control_prefix(Kind.WELCOME),
        wire.control_prefix(Kind.ECHO, PROBE),
    ]
    assert [row for row in rows if row] == prefixes


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_every_kind_has_its_number_on_the_page(kind):
    table = PAGE.partition("\n## Kinds\n")[2].partition("\n## ")[0]
    numbers = {}
    for names, cells in re.findall(r"^\| ([A-Z_, …]+?) \| ([0-9, –]+) \|", table, re.MULTILINE):
        if "–" in cells:
            first, last = map(int, cells.split("–"))
            assert names == "JOBS … QUEUE_ANSWER"
            numbers |= {one.name: one.value for one in Kind if first <= one <= last}
        else:
            pairs = zip(names.split(", "), cells.split(", "), strict=True)
            numbers |= {name: int(number) for name, number in pairs}
    assert numbers[kind.name] == kind


def test_frames_of_jobs_by_the_batch_are_made_like_the_page():
    part = PAGE.partition("\n## Jobs by the batch\n")[2].partition("\n## ")[0]
    shown = [bytes.fromhex(block) for block in re.findall(r"```text\n(.*?)```", part, re.DOTALL)]
    make, place = wire.control_frame, "tcp://127.0.0.1:5561"
    batch = DeliveryBatch(16, JobRun(7, b"\xa1a\xa1b", [2, 4], 1000), None, 0, 2000)
    hello = queue.Hello("one", "", 0, 0, 64, 5, 0, [], [], 65_536, 2**24, by_batch=True)
    welcome = queue.QueueWelcome("jobs", 9, 0, 5000.0, 0.0, [], 5, place)
    report = queue.Report([(16, 18)])
    assert shown == [
        make(Kind.QUEUE_HELLO, SUBSCRIBER, hello, timestamp_ns=3000),
        make(Kind.QUEUE_WELCOME, SESSION, welcome, timestamp_ns=3000),
        queue.jobs_frame(SESSION, batch, 0),
        make(Kind.QUEUE_REPORT, SUBSCRIBER, report, sequence=1, timestamp_ns=4000),
        make(Kind.QUEUE_CONFIRM, SESSION, queue.Confirm(2), sequence=1),
    ]
    assert queue.read_jobs(Frame(shown[2])) == (["a", "b"], 7, None, 0, 2000)
