"""A subscriber's core whose publisher has gone back: its log came back shorter."""

from p2pmsg import control
from p2pmsg.subscriber_cursor import CursorDesk
from p2pmsg.wire import Kind
from recovery import CursorConfig, CursorFile, MemoryCursorStore, Rewound
from tests.unit.p2pmsg.frames import SESSION, echo, welcome
from tests.unit.p2pmsg.subscriber import Talk, data, head


def began(at, following, *, topic="t", start=None):
    return control.Head(topic, 0, following, following if start is None else start, at)


def received(count):
    talk = Talk(start="earliest").join(head(0))
    talk.hear(data(0, count))
    assert talk.read() == [("t", 0, count)]
    return talk


def reconnected(talk, *heads):
    talk.hear(welcome())
    talk.hear(echo(talk.probe().probe, *heads))


def test_a_stream_begins_again_where_the_publishers_life_began():
    talk = received(10)
    reconnected(talk, began(4, 6))
    assert talk.read() == [("t", 4, 10, "rewound")]
    talk.pass_ms(1)
    assert [body.ranges for _, body, _ in talk.asked(Kind.NACK)] == [[(4, 6)]]
    talk.reply(data(4, 2))
    talk.hear(data(6))
    assert talk.read() == [("t", 4, 2), ("t", 6, 1)]
    assert talk.core.streams_rewound == 1
    former, now = talk.core.streams
    assert (former.ledger(0).delivered, former.ledger(0).lost) == (10, 0)
    assert (now.ledger(0).start, now.ledger(0).delivered) == (4, 3)
    assert all(stream.ledger(0).balanced for stream in (former, now))


def test_a_publisher_that_does_not_say_where_it_began_is_followed_from_its_head():
    talk = received(10)
    reconnected(talk, head(6))
    talk.hear(data(6))
    assert talk.read() == [("t", 6, 10, "rewound"), ("t", 6, 1)]


def test_what_was_still_missing_is_lost_before_the_new_messages_come():
    talk = received(3)
    talk.hear(data(8, 2))
    reconnected(talk, began(5, 5))
    talk.hear(data(5))
    assert talk.read() == [
        ("t", 3, 8, "rewound"), ("t", 8, 2), ("t", 5, 10, "rewound"), ("t", 5, 1),
    ]  # fmt: skip
    assert [stream.ledger(0).lost for stream in talk.core.streams] == [5, 0]


def test_a_topic_that_the_publisher_does_not_know_any_more_has_gone_back_to_its_beginning():
    talk = received(10)
    reconnected(talk)
    talk.hear(data(0, 2))
    assert talk.read() == [("t", 0, 10, "rewound"), ("t", 0, 2)]


def test_an_echo_that_data_has_overtaken_is_no_publisher_that_went_back():
    talk = received(3)
    talk.hear(welcome())
    number = talk.probe().probe
    talk.hear(data(3, 4))
    talk.hear(echo(number, began(0, 5)))
    assert talk.read() == [("t", 3, 4)]
    assert talk.core.streams_rewound == 0


def test_a_stream_that_was_opened_after_the_probe_is_no_publisher_that_went_back():
    talk = received(3)
    talk.hear(welcome())
    number = talk.probe().probe
    talk.hear(data(0, 2, topic="u"))
    talk.hear(echo(number, began(0, 3)))
    assert talk.read() == [("u", 0, 2)]
    assert talk.core.streams_rewound == 0


def test_who_starts_at_a_sequence_that_is_yet_to_come_says_nothing():
    talk = Talk(start=50).join(head(3, start=50))
    reconnected(talk, began(0, 4, start=50))
    assert talk.read() == []
    assert talk.core.streams_rewound == 0


def cursor(store):
    return CursorDesk(CursorFile(store, CursorConfig("c")), ["memory://p"], [])


def test_a_cursor_beyond_the_head_is_set_back_and_the_new_messages_come():
    store = MemoryCursorStore("c")
    desk = cursor(store)
    talk = Talk(start="earliest", cursor=desk).join(head(0))
    desk.record(talk.core)
    talk.hear(data(0, 10))
    (stream,) = talk.core.streams
    talk.read()
    desk.commit([(stream, 10)], durable=True)
    store.kill()

    desk = cursor(store)
    talk = Talk(start="earliest", cursor=desk)
    reconnected(talk, began(4, 6, start=0))
    desk.record(talk.core)
    assert talk.read() == [("t", 4, 10, "rewound")]
    talk.hear(data(4, 2))
    assert talk.read() == [("t", 4, 2)]
    (stream,) = talk.core.streams
    desk.commit([(stream, 6)], durable=True)
    store.kill()
    assert cursor(store).known(SESSION) == {"t": 6}


def test_the_commits_of_a_stream_that_has_ended_do_not_pass_the_new_messages():
    store = MemoryCursorStore("c")
    desk = cursor(store)
    talk = Talk(start="earliest", cursor=desk).join(head(0))
    desk.record(talk.core)
    talk.hear(data(0, 10))
    (stream,) = talk.core.streams
    reconnected(talk, began(4, 4))
    desk.record(talk.core)
    desk.commit([(stream, 10)], durable=True)
    store.kill()
    assert cursor(store).known(SESSION).get("t", 0) <= 4


def test_being_rewound_counts_no_loss():
    assert Rewound(4, 10, "rewound").count == 0
