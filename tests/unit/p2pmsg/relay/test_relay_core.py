"""The relay's core (others' frames in, the same frames and answers out), and its metadata."""

import errno
import os

import pytest

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import RelayCore, newest_ns
from p2pmsg.relay.metadata import NAME, TABLES, WRITE_NS, RelayMetadata
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss, LossReason, RecoveryError
from recovery.log import LogConfig, MemoryStore
from recovery.memory_store import MemoryStoreFile
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.publisher.served import answers, refusals, take_sent

MS = 1_000_000
RELAY = 0xAA
WALL_NS = 1_700_000_000 * 10**9


class RelayTalk:
    """Plays upstream and subscribers to a relay's core."""

    def __init__(self, *, store=None, fsync="interval", topics=(), **options):
        self.now_ns = 0
        log = metadata = None
        relay = RELAY
        if store is not None:
            config = LogConfig("log", fsync=fsync)
            log = PublisherLog(config, session=RELAY, wall_ns=WALL_NS, store=store)
            metadata = RelayMetadata(store.open_store(NAME, TABLES))
            relay = log.session
        self.core = RelayCore(
            name="relay", relay=relay, recovery="memory://r", now_ns=0, log=log, metadata=metadata,
            config=PublisherConfig(**options), topics=topics,
        )  # fmt: skip

    def open(self, topic="t", *, session=SESSION, start=0, hops=1):
        self.core.open_session(session, "feed", hops)
        self.core.open_stream(session, topic, start, now_ns=self.now_ns)
        return self

    def give(self, sequence, count=1, *, session=SESSION, skip=0, taken=None, **options):
        values = [f"v{sequence + index}" for index in range(count)]
        frame = Frame(frames.data(values, session=session, sequence=sequence, **options))
        delivery = Delivery(frame, sequence + skip, skip, count - skip if taken is None else taken)
        good = self.core.take(session, delivery, now_ns=self.now_ns, wall_ns=WALL_NS)
        return frame.data if good else None

    def lose(self, start, stop, reason="crash", *, session=SESSION):
        loss = Loss(start, stop, LossReason(reason))
        self.core.lose(session, "t", loss, now_ns=self.now_ns)

    def ask(self, request):
        return answers(self.core.requests, b"s", request, now_ns=self.now_ns)

    def write(self, metadata=None, now_ns=0):
        """Write the metadata, or other ones."""
        metadata = metadata or self.core.metadata
        assert metadata.is_due(now_ns=now_ns)
        metadata.store(metadata.take(self.core.sessions.values(), now_ns=now_ns))

    def sent(self):
        return take_sent(self.core)


def test_a_part_of_a_frame_becomes_a_frame():
    talk = RelayTalk().open(start=1)
    talk.give(0, 4, skip=1, taken=2, columns=([0, 1, 2, 3], ["a", "b", "c", "d"], None))
    frame = Frame(talk.sent()[0])
    assert (frame.sequence, frame.count, frame.session) == (1, 2, SESSION)
    assert wire.decode_columns(frame) == (["v1", "v2"], [1001, 1002], ["b", "c"], None)


def test_a_loss_before_all_that_is_kept_can_be_asked_for():
    talk = RelayTalk().open()
    talk.lose(0, 4, "crash")
    talk.give(4, 1)
    assert talk.core.sessions[SESSION].answered_from("t") == 0
    assert refusals(talk.ask(frames.nack((0, 4)))) == [([(0, 4)], "crash")]


@pytest.mark.parametrize(
    "request_",
    [frames.nack((2, 5)), frames.nack((0, 1), topic="other")],
    ids=["after the last", "of another topic"],
)
def test_what_is_not_here_yet_is_answered_so_that_another_is_asked(request_):
    """Without an answer its subscribers connected to it again, every two seconds."""
    talk = RelayTalk().open()
    talk.give(0, 2)
    assert refusals(talk.ask(request_)) == [([], "budget")]


def test_a_malformed_body_is_counted_and_not_sent():
    talk = RelayTalk().open()
    frame = Frame(frames.header(count=2, body=b"\x94\x92\xc1\xc1\xc0\xc0\xc0"))
    taken = talk.core.take(SESSION, Delivery(frame, 0, 0, 2), now_ns=0, wall_ns=WALL_NS)
    assert (taken, dict(talk.core.invalid), talk.sent()) == (False, {"body": 1}, [])


def test_sessions_are_listed_page_by_page():
    talk = RelayTalk()
    count = control.SESSIONS_PER_PAGE + 3
    for session in range(count):
        talk.core.open_session(session, f"p{session}", 1 + session % 3)
    talk.core.set_path([1, 2, RELAY, 1])
    found, at = [], 0
    for _ in range(3):
        (reply,) = talk.ask(wire.control_frame(Kind.SESSIONS_REQUEST, RELAY, sequence=at))
        frame = Frame(reply)
        body = control.read_body(frame, control.Sessions)
        assert (frame.session, frame.sequence, body.path) == (RELAY, at, [RELAY, 1, 2])
        found += body.sessions
        at = body.following
        if not at:
            break
    assert [(each.session, each.name, each.hops) for each in found] == [
        (session, f"p{session}", 1 + session % 3) for session in range(count)
    ]


REQUESTS = {
    "for a session that is unknown": (frames.nack((0, 1), session=99), "session"),
    "for the sessions of another relay": (
        wire.control_frame(Kind.SESSIONS_REQUEST, 99), "session",
    ),
    "not a frame": (b"\0p2", "truncated"),
    "data": (frames.data([b"x"]), "kind"),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "reason"), REQUESTS.values(), ids=REQUESTS)
def test_requests_that_are_dropped(request_, reason):
    talk = RelayTalk().open()
    assert talk.ask(request_) == []
    assert talk.core.requests.invalid == {reason: 1}


def test_a_subscriber_is_forgotten_once_it_is_silent_for_every_session():
    talk = RelayTalk(subscriber_timeout=1.0).open().open(session=7)
    for session in (SESSION, 7):
        talk.core.take(
            session, Delivery(Frame(frames.data([b"v"], session=session)), 0, 0, 1),
            now_ns=0, wall_ns=WALL_NS,
        )  # fmt: skip
        talk.ask(frames.joined(1, "one", session=session))
    talk.now_ns = 700 * MS
    talk.ask(frames.joined(1, "one", session=7))
    talk.core.requests.expire(now_ns=1001 * MS)
    assert (talk.core.requests.known.undelivered(), talk.core.requests.known.forgotten_names()) == (
        1,
        {},
    )

    talk.core.requests.expire(now_ns=1701 * MS)
    assert (talk.core.requests.known.undelivered(), talk.core.requests.known.incomplete()) == (1, 0)
    assert talk.core.requests.known.forgotten_names() == {"one": 1}


def test_sessions_that_ended_are_forgotten_when_nothing_is_kept():
    talk = RelayTalk().open().open(session=7)
    talk.give(0)
    for served in talk.core.sessions.values():
        served.is_live = False
    talk.core.handle_timer(now_ns=0)
    assert list(talk.core.sessions) == [SESSION]
    assert talk.core.next(7, "t") is None


@pytest.fixture
def store():
    return MemoryStore()


class TestWithALog:
    def restart(self, talk, store, **options):
        talk.write()
        store.kill()
        return RelayTalk(store=store, **options)

    def test_passes_losses_on_after_a_restart(self, store):
        talk = RelayTalk(store=store).open()
        talk.give(0)
        talk.lose(1, 4, "crash")
        talk.give(4)
        again = self.restart(talk, store)
        assert refusals(again.ask(frames.nack((1, 4)))) == [([(1, 4)], "crash")]

    def test_lets_nothing_go_before_it_is_on_the_disk(self, store):
        talk = RelayTalk(store=store, fsync="always").open()
        data = talk.give(0, 3)
        assert (talk.sent(), talk.core.sessions[SESSION].head("t")) == ([], (0, 0))
        talk.core.frames_synced(1)
        assert (talk.sent(), talk.core.sessions[SESSION].head("t")) == ([data], (0, 3))


class TestWithALogThatWasCut:
    def restart(self, talk, store, byte_count=30):
        """Kill it, and shorten what it had written last."""
        talk.write()
        store.kill()
        name = max(name for name in store.names() if name.endswith(".log"))
        data = store.read(name)
        store.write(name, data[: len(data) - byte_count])
        return RelayTalk(store=store)

    def cut(self, store):
        """Return a relay that had [0, 5), and whose log has [0, 3)."""
        talk = RelayTalk(store=store).open()
        sent = talk.give(0, 3)
        talk.give(3, 2)
        return sent, self.restart(talk, store)

    def test_what_is_gone_is_reported_and_neither_had_nor_lost(self, store):
        sent, again = self.cut(store)
        assert again.core.sessions[SESSION].heads() == {"t": (0, 5)}
        assert again.core.next(SESSION, "t") == 3
        replies = again.ask(frames.nack((0, 5)))
        assert replies == [sent]
        assert refusals(again.ask(frames.nack((3, 5)))) == [([], "budget")]

    @pytest.mark.parametrize(("cut", "found"), [
        (0, [([(5, 9)], "publisher_gone")]),
        (30, [([(3, 9)], "crash")]),
    ])  # fmt: skip
    def test_what_was_lost_after_the_last_message_of_the_log_keeps_its_reason(
        self, store, cut, found
    ):
        talk = RelayTalk(store=store).open()
        talk.give(0, 3)
        talk.give(3, 2)
        talk.lose(5, 9, "publisher_gone")
        again = self.restart(talk, store, cut)
        assert again.core.sessions[SESSION].heads() == {"t": (0, 9)}
        assert bool(again.core.cut) == bool(cut)
        again.core.give_up(SESSION, "t", now_ns=0)
        ((start, stop),), _ = found[0]
        assert refusals(again.ask(frames.nack((start, stop)))) == found

    def test_a_loss_within_a_stream_is_a_loss_without_the_metadata_too(self, store):
        talk = RelayTalk(store=store).open()
        talk.give(0)
        talk.write()
        talk.lose(1, 4, "timeout")
        talk.give(4)
        store.kill()
        again = RelayTalk(store=store)
        assert again.core.sessions[SESSION].heads() == {"t": (0, 5)}
        assert refusals(again.ask(frames.nack((1, 4)))) == [([(1, 4)], "evicted")]


def test_metadata_that_cannot_be_written_is_written_later_and_says_so(caplog):
    file, talk = MemoryStoreFile("relay.sqlite"), RelayTalk().open()
    talk.give(0)
    talk.lose(1, 4)
    metadata = RelayMetadata(file.open(TABLES))
    metadata.on_change()
    file.failing["write"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for turn in range(20):
        talk.write(metadata, turn * 2 * WRITE_NS)
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    file.failing.clear()
    talk.write(metadata, 40 * WRITE_NS)
    assert "again" in caplog.records[-1].message
    assert not metadata.is_due(now_ns=80 * WRITE_NS)
    file.kill()
    again = RelayMetadata(file.open(TABLES))
    assert (again.sessions, again.heads) == ({SESSION: ("feed", 1)}, {(SESSION, "t"): 4})
    assert again.losses == {(SESSION, "t"): [Loss(1, 4, LossReason.CRASH)]}


@pytest.mark.parametrize(
    "row",
    [
        ("session", "zz", "feed", 1),
        ("session", "7", "feed", "many"),
        ("head", "7", "t", "x"),
        ("loss", 1, "7", "t", 1, 2, "no reason"),
    ],
)
def test_metadata_that_makes_no_sense_is_refused(row):
    file = MemoryStoreFile("relay.sqlite").open(TABLES)
    table, *values = row
    marks = ", ".join("?" for _ in values)
    file.write((f"INSERT INTO {table} VALUES ({marks})", [tuple(values)]), durable=True)
    with pytest.raises(RecoveryError, match="makes no sense"):
        RelayMetadata(file)


MALFORMED_BODIES = {
    "no msgpack": b"\x94\x91\xc1\xc0\xc0\xc0",
    "times that are none": b"\x94\x91\x01\x91\xa1x\xc0\xc0",
    "too many times": b"\x94\x91\x01\x92\x01\x02\xc0\xc0",
    "cut off": b"\x94\x91\x01\xc0",
}


@pytest.mark.parametrize("body", MALFORMED_BODIES.values(), ids=MALFORMED_BODIES)
def test_malformed_bodies_are_refused(body):
    with pytest.raises(FrameError):
        newest_ns(Frame(frames.header(body=body)))
