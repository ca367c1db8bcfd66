"""HTTP without a server: bodies, and fan-out with resume."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.errors import LossReport
from p2pmsg.http.asgi import RejectedError, json_of, value_of
from p2pmsg.http.encoding import encode_batch
from p2pmsg.http.fanout import STREAMS_MAX, Fanout, Member
from p2pmsg.http.resume import ID_BYTES_MAX, READ_MAX, Resume, read_positions
from p2pmsg.http.upstream import range_of
from p2pmsg.message import MessageBatch
from recovery import Loss, LossReason


def of(kind, body, *errors):
    return value_of({"content-type": kind}, body, *errors)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"a": "NaN", "b": NaN}', "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1" * 400 + ".0", f"{'1' * 40}… is larger than a float can be"),
        ("{", "Expecting property name"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "recursion"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_json_does_not_have_is_refused_at_its_place(body, said, encoding):
    if body or encoding == "utf-8":
        with pytest.raises(RejectedError, match=re.escape(said)) as refused:
            of("application/json; charset=utf-8", body.encode(encoding))
        assert str(refused.value).startswith("the body is no application/json: ")
        assert (refused.value.status, refused.value.why) == (400, "body")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
        max_leaves=20,
    )
)  # fmt: skip
def test_other_json_is_read_as_it_was(value):
    for encoding in ("utf-8", "utf-16"):
        for is_ascii in (True, False):
            body = json.dumps(value, ensure_ascii=is_ascii).encode(encoding, "surrogatepass")
            assert json_of(body) == value


@pytest.mark.parametrize(
    "charset", ["nonsense", "zlib", "hex", "rot13", "punycode", "unicode_escape", "../x", "é" * 300]
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_a_charset_that_is_not_known_is_named(charset, errors):
    with pytest.raises(RejectedError, match=f"the charset '{charset[:40]}.* is not known") as no:
        of(f"text/plain; charset={charset}", b"61", errors)
    assert (no.value.status, no.value.why) == (415, "charset")


def test_bytes_that_a_charset_does_not_have_are_refused_or_replaced():
    for kind, body in (("text/plain", b"a\xff"), ("text/plain; charset=ascii", b"a\xe9")):
        with pytest.raises(RejectedError, match="the body is no text/plain: ") as refused:
            of(kind, body)
        assert refused.value.status == 400
        assert of(kind, body, "replace") == "a\ufffd"


BUFFER_BYTES = 64 * 1024


STREAMS = [(1, "a"), (2, "a"), (3, "b/1"), (4, "b/2")]


CHOICES = [("a",), ("a", "b*"), ("*",)]


def batch_of(key, start, count):
    return MessageBatch(key[1], key[0], "p", start, 0, list(range(start, start + count)))


class Client:
    """A browser: what it has got of each stream, and its `Last-Event-ID`."""

    def __init__(self, topics):
        self.topics = topics
        self.last_id = None
        self.place = {}
        self.first = {}
        self.view = self.member = None

    def connect(self, fanout):
        begins = self.last_id in (None, fanout.beginning)
        self.member = Member(resumed=not begins)
        self.view = fanout.enter(self.topics, "json", self.member)
        if self.last_id is None:
            self.view.join(self.member)
            self.read(f"id: {self.view.event_id()}\n\n".encode())
            return
        begun = fanout.begun if begins else {}
        resume = Resume(read_positions(self.last_id, self.topics), begun)
        for _ in range(1000):
            step = resume.step(fanout.missed(self.view, resume.positions), {})
            if step.is_complete:
                self.view.join(self.member)
                return
            assert not step.rewound
            assert not step.unknown
            wanted = range_of(resume.positions, self.topics, "json", step.read)
            count = wanted.stop - wanted.start
            assert 0 < count <= READ_MAX
            batch = batch_of(wanted.key, wanted.start, count)
            self.read(encode_batch(batch, "json", wanted.before, wanted.after)[0])
            resume.advance(wanted.key, wanted.stop)
        pytest.fail("it never joins")

    def take(self, bytes_max):
        """Read some of what is there; a client that is cut off leaves."""
        if not self.member.reason:
            self.read(self.view.take(self.member, bytes_max))

    def leave(self, fanout):
        fanout.leave(self.view, self.member)
        self.view = self.member = None

    def read(self, data):
        for block in data.decode().split("\n\n")[:-1]:
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            self.last_id = lines["id"]
            positions = read_positions(self.last_id, self.topics)
            if "data" in lines:
                found = json.loads(lines["data"])
                key = int(found["session"], 16), found["topic"]
                start = found.get("sequence", found.get("start"))
                assert self.place.get(key, start) == start, "not the next one"
                self.first.setdefault(key, start)
                self.place[key] = found.get("stop", start + 1)
            for key, following in self.place.items():  # a session that was followed may be left out
                assert positions.get(key, following) == following
            assert len(positions) >= len({topic for _, topic in self.place})
            self.place = {**positions, **self.place}


step = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from(STREAMS), st.integers(1, 300)),
    st.tuples(st.just("lose"), st.sampled_from(STREAMS), st.integers(1, 300)),
    st.tuples(st.just("take"), st.integers(0, 3), st.sampled_from([1, 5_000, 10**6])),
    st.tuples(st.just("turn"), st.integers(0, 3), st.just(0)),
)


@settings(max_examples=150)
@given(st.lists(step, max_size=60))
def test_each_gets_all_once_and_in_order_over_reconnections(steps):
    fanout = Fanout(BUFFER_BYTES)
    heads = dict.fromkeys(STREAMS, 0)
    clients = [Client(CHOICES[number % 3]) for number in range(4)]
    for what, which, count in steps:
        if what in ("publish", "lose"):
            start = heads[which]
            heads[which] = stop = start + count
            if what == "publish":
                fanout.take(batch_of(which, start, count))
            else:
                loss = Loss(start, stop, LossReason.EVICTED)
                fanout.lose(LossReport(which[1], which[0], "p", loss))
            continue
        client = clients[which]
        if what == "turn" and client.member is not None:
            client.leave(fanout)
        elif what == "turn":
            client.connect(fanout)
        elif client.member is not None:
            client.take(count)
    for client in clients:  # in the end each has what came after its first connection
        for _ in range(2000):
            if client.last_id is None:
                break
            if client.member is None or client.member.reason:
                if client.member is not None:
                    client.leave(fanout)
                client.connect(fanout)
            if client.member.place == client.view.end and not client.member.reason:
                break
            client.take(10**6)
        wanted = {
            key: head
            for key, head in heads.items()
            if head and client.last_id is not None and client.view.wants(key[1])
        }
        assert {key: at for key, at in client.place.items() if at} == wanted


def test_ids_stay_short_though_sessions_follow_one_another():
    fanout = Fanout(BUFFER_BYTES)
    client = Client(("*",))
    client.connect(fanout)
    for session in range(500):
        fanout.take(batch_of((session + 1, "a"), 0, 1))
        client.take(10**6)
        assert len(client.last_id) <= ID_BYTES_MAX
    assert not client.member.reason


def test_more_topics_than_an_id_can_name_are_refused_by_a_reason():
    fanout = Fanout(BUFFER_BYTES)
    client = Client(("*",))
    client.connect(fanout)
    for number in range(500):
        fanout.take(batch_of((1, f"topic/{number}"), 0, 1))
        client.take(10**6)
    assert client.member.reason == "too many streams"


def test_streams_that_are_remembered_have_a_bound():
    fanout = Fanout(BUFFER_BYTES)
    for number in range(STREAMS_MAX + 10):
        fanout.take(batch_of((1, f"{number}"), 0, 1))
    assert len(fanout.following) == STREAMS_MAX


@pytest.mark.parametrize(
    "text",
    ["", "1", "00000000000000aa", "00000000000000aa:-2", "00000000000000aa:1:x", "x" * 7000,
     "00000000000000aa:9223372036854775807", "00000000000000AA:1", "00000000000000aa:1,"],
)  # fmt: skip
def test_ids_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"place|limit|above"):
        read_positions(text, ("a",))


KEY = (1, "a")


def test_who_waited_too_long_follows_the_stream_from_where_it_was_first_found():
    resume = Resume({KEY: 100})
    resume.step({KEY: 50}, {})
    resume.step({KEY: 55}, {})
    step = resume.step({KEY: 60}, {}, is_late=True)
    assert (step.rewound, step.read) == ({KEY: (50, 100)}, (KEY, 50, 60))
    assert resume.step({KEY: 60}, {}, is_late=True).rewound == {}


def test_a_publisher_that_went_back_meanwhile_needs_no_question():
    resume = Resume({KEY: 100})
    step = resume.step({KEY: 60}, {KEY: 50})
    assert (step.rewound, step.read, step.ahead) == ({KEY: (50, 100)}, (KEY, 50, 60), {})
