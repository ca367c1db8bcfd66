"""MoldUDP64 on real sockets: a feed published, lost, asked for and received."""

import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

import p2pmsg
from p2pmsg.mold import codec
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.integration.inside import lose_requests
from tests.integration.mold import (
    SESSION,
    Group,
    itch_messages,
    make_feed,
    place,
    playing,
    reader_of,
)
from tests.integration.peers import ROOT, check_ledger, eventually, take
from tests.unit.p2pmsg.interrupts import interrupt_at

__all__ = ["make_feed", "place"]


def test_a_feed_has_its_own_sequences(make_feed, make_subscriber, place):
    feed = make_feed()
    subscriber = make_subscriber(reader_of(place, feed))
    eventually(lambda: subscriber.stats().publishers)
    assert feed.publish(b"first") == 1
    assert feed.publish_many([b"second", b"", b"fourth"]) == (2, 4)
    messages = take(subscriber, 4)
    assert [message.value for message in messages] == [b"first", b"second", b"", b"fourth"]
    assert [message.sequence for message in messages] == [1, 2, 3, 4]
    assert {(message.topic, message.publisher) for message in messages} == {("mold", "S1")}
    check_ledger(subscriber)


@pytest.mark.rounds(20, 800)
def test_ctrl_c_anywhere_uses_no_sequence_twice(
    make_feed, make_subscriber, place, rounds, tmp_path
):
    """What `publish` returned arrives; of the interrupted call what arrives is what was given."""
    feed = make_feed(log=tmp_path)
    subscriber = make_subscriber(reader_of(place, feed), start="earliest")
    ours, returned, count = str(ROOT / "p2pmsg"), {}, 0
    for step in range(0, 800, 800 // rounds):
        values = [b"%d/%d" % (step, number) for number in range(200)]
        interrupt_at(
            step,
            lambda values=values: feed.publish_many(values),
            lambda code: code.co_filename.startswith(ours),
        )
        returned[feed.publish(b"%d" % step)] = b"%d" % step
        count = max(returned)
    found = {message.sequence: message.value for message in take(subscriber, count)}
    assert len(found) == count
    assert returned.items() <= found.items()
    check_ledger(subscriber, lost=0)


def test_an_exchange_feed_is_complete_at_ten_percent_loss(make_feed, make_subscriber, place):
    messages = itch_messages()
    assert len(messages) in (1200, 12_012)  # ours, and that of ../shared/data
    feed = make_feed()
    subscriber = make_subscriber(reader_of(place, feed), start="earliest")
    lose_datagrams(subscriber, 0.1)
    lose_requests(feed, 0.1)  # requests are lost, too
    with playing(feed, messages):
        got = take(subscriber, len(messages))
    assert [message.value for message in got] == messages
    assert [message.sequence for message in got] == list(range(1, len(messages) + 1))
    stats = check_ledger(subscriber, lost=0)
    assert stats.lines[0].kernel_drops > 0
    assert sum(stats.repaired.values()) > 0
    assert feed.stats().messages_repaired > 0


def test_who_comes_late_gets_it_all_from_the_request_server(make_feed, make_subscriber, place):
    feed = make_feed()
    values = [b"%05d" % number for number in range(5000)]
    feed.publish_many(values)
    subscriber = make_subscriber(reader_of(place, feed), start="earliest")
    assert [message.value for message in take(subscriber, 5000)] == values


def test_what_no_server_has_is_reported_lost(make_feed, make_subscriber, place):
    feed = make_feed(replay_bytes=2000)
    feed.publish_many([bytes(100)] * 100)
    subscriber = make_subscriber(reader_of(place, feed), start="earliest", repair_timeout=0.3)
    rest = 1

    def has_all():
        nonlocal rest
        try:
            rest += len(subscriber.receive_many(timeout=0.05))
        except TimeoutError:
            pass
        stats = subscriber.stats()
        return stats.lost and not stats.outstanding

    eventually(has_all)
    stats = check_ledger(subscriber, published=100)
    assert {loss.reason for loss in stats.losses} == {"timeout"}


@pytest.fixture
def asker(opened):
    """Return a socket that asks request servers by hand."""
    made = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.settimeout(60)
    return made


def test_while_older_messages_are_looked_up_turns_and_calls_go_on(make_feed, asker):
    begun, over = threading.Event(), threading.Event()

    def history(start, stop):
        begun.set()
        assert over.wait(60)
        return [b"%d" % start]

    feed = make_feed(replay_bytes=0, history=history)
    feed.publish_many([b"1", b"2"])
    place = "127.0.0.1", feed.request_address[1]
    asker.sendto(codec.request(SESSION, 1, 1), place)
    assert begun.wait(60)
    asker.sendto(codec.request(SESSION, 2, 1), place)
    eventually(lambda: feed.stats().requests == 2)
    assert feed.publish(b"3") == 3
    over.set()
    found = [codec.read_packet(asker.recv(2048)) for _ in range(2)]
    assert [(each.sequence, each.messages) for each in found] == [(1, [b"1"]), (2, [b"2"])]


def test_a_history_that_raises_is_asked_again(make_feed, asker):
    raised = []

    def history(start, stop):
        if not raised:
            raised.append(start)
            raise RuntimeError("the store is away")
        return [b"%d" % start]

    feed = make_feed(replay_bytes=0, history=history)
    feed.publish(b"1")
    place = "127.0.0.1", feed.request_address[1]
    asker.sendto(codec.request(SESSION, 1, 1), place)
    eventually(lambda: feed.stats().unanswered == 1)
    asker.sendto(codec.request(SESSION, 1, 1), place)
    assert codec.read_packet(asker.recv(2048)).messages == [b"1"]


def test_the_next_session_follows_the_end_of_the_former(make_feed, make_subscriber, place):
    first = make_feed("MON")
    subscriber = make_subscriber(reader_of(place, first))
    eventually(lambda: subscriber.stats().publishers == ["MON"])
    first.publish(b"monday")
    assert subscriber.receive(60).value == b"monday"
    first.close(0.15)
    second = make_feed("TUE")
    second.publish(b"tuesday")
    message = subscriber.receive(60)
    assert (message.value, message.sequence, message.publisher) == (b"tuesday", 1, "TUE")
    assert subscriber.stats().publishers == ["TUE"]


def test_a_forged_session_and_garbage_are_counted(make_feed, make_subscriber, place, opened):
    feed = make_feed()
    subscriber = make_subscriber(reader_of(place, feed))
    eventually(lambda: subscriber.stats().publishers)
    stranger = p2pmsg.moldudp64.MoldPublisher(place, session="FORGED")
    opened.callback(stranger.close, 0.0)
    stranger.publish(b"not of this feed")
    Group(opened, place).give(b"too short")
    feed.publish(b"goes on")
    assert subscriber.receive(60).value == b"goes on"
    eventually(lambda: subscriber.stats().frames_invalid.get("session", 0) >= 1)
    assert subscriber.stats().frames_invalid["truncated"] == 1
    assert subscriber.stats().publishers == ["S1"]


def test_two_lines_of_a_feed_fill_in_for_one_another(make_feed, make_subscriber, place):
    feed = make_feed()
    where = reader_of(place, feed)
    subscriber = make_subscriber([where, where])
    eventually(lambda: subscriber.stats().publishers)
    time.sleep(0.1)
    lose_datagrams(subscriber, 0.2)
    values = [b"%05d" % number for number in range(2000)]
    for number, value in enumerate(values):
        feed.publish(value)
        if not number % 50:  # so that it is many trains, of which both lines lose some
            time.sleep(0.001)
    assert [message.value for message in take(subscriber, 2000)] == values
    lines = subscriber.stats().lines
    assert all(line.first and line.missing for line in lines), lines
    assert any(line.second for line in lines), lines  # one may be ahead all the time


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_wireshark_reads_what_we_send(tmp_path):
    """Its dissector of MoldUDP64, on a capture file that we write around our packets."""
    session = b"WIRE      "
    packets = [
        codec.packet(session, 1, [b"hello", b"", b"world!"]),
        codec.heartbeat(session, 4),
        codec.end_of_session(session, 4),
    ]
    path = tmp_path / "feed.pcap"
    path.write_bytes(capture(packets, 12_345))
    fields = ["session", "sequence", "count", "msglen", "msgseqnum"]
    known = [
        line.split("\t")[2]
        for line in run("tshark", "-G", "fields").splitlines()
        if "\tmoldudp64." in line
    ]
    names = {field: next((k for k in known if k.endswith(field)), None) for field in fields}
    wanted = [name for name in names.values() if name]
    text = run(
        "tshark", "-r", str(path), "-d", "udp.port==12345,moldudp64", "-T", "fields",
        *[part for name in wanted for part in ("-e", name)],
    )  # fmt: skip
    rows = [dict(zip(wanted, line.split("\t"), strict=True)) for line in text.splitlines()]
    assert len(rows) == 3
    assert {row["moldudp64.session"].strip() for row in rows} == {"WIRE"}
    assert [int(row["moldudp64.sequence"]) for row in rows] == [1, 4, 4]
    assert rows[0]["moldudp64.msglen"] == "5,0,6"
    counts = run("tshark", "-r", str(path), "-d", "udp.port==12345,moldudp64", "-V")
    assert "Malformed" not in counts
    assert counts.count("MoldUDP64") >= 3


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def capture(payloads, port):
    """Return a pcap file of UDP packets over raw IPv4."""
    pieces = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101)]
    for payload in payloads:
        udp = struct.pack("!HHHH", port, port, 8 + len(payload), 0) + payload
        head = struct.pack(
            "!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
            socket.inet_aton("127.0.0.1"), socket.inet_aton("239.1.1.1"),
        )  # fmt: skip
        pieces.append(struct.pack("<IIII", 0, 0, len(head + udp), len(head + udp)) + head + udp)
    return b"".join(pieces)
