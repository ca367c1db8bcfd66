"""A data path that is silent while the recovery channel answers: heads are asked for there."""

from itertools import pairwise

import pytest

from p2pmsg import control, wire
from p2pmsg.control import Welcome
from p2pmsg.wire import FLAG_CLOSING, Frame, Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber.test_group import SESSION as GROUP
from tests.unit.p2pmsg.subscriber.test_group import Member
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head

QUIET_MS = 5000  # the default of `publisher_timeout`


def answer(request, *heads, session=SESSION, incarnation=0, flags=0):
    body = control.Heads("feed", list(heads), incarnation=incarnation)
    return wire.control_frame(Kind.HEADS, session, body, sequence=request, flags=flags)


def questions(talk):
    """Take out the requests; return the ids and topics of those for heads."""
    found = [Frame(frame) for _, frame in talk.core.requests]
    talk.core.requests.clear()
    return [
        (frame.sequence, control.read_body(frame, control.Probe).topics)
        for frame in found
        if frame.kind == Kind.HEADS_REQUEST
    ]


def warnings(talk):
    found = [one.text for one in talk.core.commands if one.what == "warn"]
    talk.core.commands.clear()
    return found


def quiet_talk(**options):
    """A subscriber that has joined, has got message 0, and has heard nothing since."""
    talk = Talk(**options).join(head(0))
    talk.hear(data(0))
    talk.pass_ms(QUIET_MS + 300)
    ((request, topics),) = questions(talk)
    assert topics == ["*"]
    return talk, request


def test_it_is_said_once_a_minute_and_shown_while_it_lasts():
    talk, request = quiet_talk()
    assert not any("over the data path" in text for text in warnings(talk))
    talk.reply(answer(request, head(1)))
    talk.pass_ms(300)
    (text,) = warnings(talk)
    assert "publisher 'feed' answers at its recovery endpoint memory://r" in text
    said = 0
    for _ in range(240):
        talk.pass_ms(500)
        for request, _ in questions(talk):
            talk.reply(answer(request, head(1)))
        said += len([text for text in warnings(talk) if "over the data path" in text])
    assert said in (1, 2)
    assert talk.core.lines[0].one_way
    talk.hear(frames.heartbeat(1))
    talk.pass_ms(300)
    assert not talk.core.lines[0].one_way


def test_who_has_nothing_new_is_asked_ever_more_rarely():
    talk, request = quiet_talk()
    talk.reply(answer(request, head(1)))
    times = []
    for _ in range(1200):
        talk.pass_ms(100)
        for request, _ in questions(talk):
            times.append(talk.now_ns // MS)
            talk.reply(answer(request, head(1)))
    gaps = [after - before for before, after in pairwise(times)]
    assert all(first >= 3000 for first in gaps)
    assert gaps[-1] >= 29_000


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_member_of_a_group_asks_for_all(is_closing):
    member = Member()
    member.message(0)
    member.read()
    asked, flags = [], FLAG_CLOSING if is_closing else 0
    while not asked:
        member.now_ns = max(member.now_ns + 1, member.core.next_deadline_ns())
        member.core.handle_timer(now_ns=member.now_ns)
        asked = questions(member)
    assert member.now_ns > QUIET_MS * MS
    ((request, topics),) = asked
    assert topics == ["*"]
    reply = answer(request, head(3), session=GROUP, flags=flags)
    member.core.receive_reply(GROUP, reply, now_ns=member.now_ns)
    assert member.core.streams[0].receiver.head == 3
    assert member.core.peers[GROUP].closing == is_closing
    near, far = member.asked()
    assert (near, far) == ([], [(1, 3)])  # nothing that is sent to the group would come
    assert not member.core.joiner.is_connected(0, member.now_ns)
    member.core.check(member.now_ns)
    assert any("over the data path" in text for text in warnings(member))


def test_of_one_that_was_restarted_nothing_is_taken_before_its_echo():
    """Its log may have gone back: what answers a NACK then is another message."""
    talk = Talk()
    talk.hear(frames.welcome(incarnation=1))
    talk.hear(frames.echo(talk.probe().probe, head(0), incarnation=1))
    talk.hear(data(0))
    talk.hear(data(3))
    talk.hear(frames.heartbeat(4, incarnation=1))
    talk.read()
    talk.pass_ms(QUIET_MS + 300)
    for request, _ in questions(talk):
        talk.reply(answer(request, head(5), incarnation=2))
    talk.reply(data(1, 2))
    assert talk.read() == []
    talk.hear(frames.welcome(incarnation=2))
    now = control.Head("t", 0, 5, 5, began=1)
    talk.hear(frames.echo(talk.probe().probe, now, incarnation=2))
    assert talk.read() == [("t", 1, 3, "rewound"), ("t", 3, 1), ("t", 1, 4, "rewound")]


class Announced(Member):
    """A member of a group that has got message 0, and to which announcements come each 200 ms."""

    def __init__(self):
        super().__init__()
        self.message(0)
        self.read()

    def questions(self, seconds, *frames_made, following=1):
        """Pass time, give `frames_made` with each announcement; return when all was asked for."""
        asked = []
        announcement = wire.control_frame(Kind.WELCOME, GROUP, Welcome("p", "tcp://h:1", 1.0, 1))
        for _ in range(int(seconds * 5)):
            self.now_ns += 200 * MS
            self.give(announcement)
            self.now_ns += MS
            self.give(*frames_made)
            self.core.handle_timer(now_ns=self.now_ns)
            for request, topics in questions(self):
                assert topics == ["*"]
                asked.append(self.now_ns // MS)
                following += 0 if following == 1 else 1
                reply = answer(request, head(following), session=GROUP)
                self.core.receive_reply(GROUP, reply, now_ns=self.now_ns)
        return asked


def test_a_group_of_which_nothing_is_published_is_asked_ever_more_rarely():
    times = Announced().questions(240)
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 3000
    assert gaps[-1] >= 29_000
