"""A data path that is silent while the recovery channel answers: heads are asked for there."""

from itertools import pairwise

import pytest

from p2pmsg import control, wire
from p2pmsg.control import Welcome
from p2pmsg.subscriber import quiet
from p2pmsg.wire import FLAG_CLOSING, Frame, Kind
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION
from tests.unit.p2pmsg.subscriber.test_group import SESSION as GROUP
from tests.unit.p2pmsg.subscriber.test_group import Member
from tests.unit.p2pmsg.subscriber_talk import MS, Talk, data, head

QUIET_MS = 5000  # the default of `publisher_timeout`
QUESTION = Kind.HEADS_REQUEST.name


def answer(request, *heads, session=SESSION, life=0, flags=0):
    body = control.Heads("feed", list(heads), life=life)
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


def test_the_end_that_was_lost_is_asked_for_and_comes():
    talk, request = quiet_talk()
    talk.reply(answer(request, head(3), head(2, topic="new")))
    talk.pass_ms(1)

    wanted = [(body.topic, body.ranges) for _, body, _ in talk.asked(Kind.NACK)]
    assert wanted == [("t", [(1, 3)]), ("new", [(0, 2)])]
    for frame in (data(1, 2), data(0, 2, topic="new")):
        talk.reply(frame)
    assert talk.read() == [("t", 0, 1), ("t", 1, 2), ("new", 0, 2)]
    assert talk.core.invalid == {}


def test_it_is_said_once_a_minute_and_shown_while_it_lasts():
    talk, request = quiet_talk()
    assert not any("over the data path" in text for text in warnings(talk))
    talk.reply(answer(request, head(1)))
    (text,) = warnings(talk)
    assert "publisher 'feed' answers at its recovery endpoint memory://r" in text
    said = 0
    for _ in range(240):
        talk.pass_ms(500)
        for request, _ in questions(talk):
            talk.reply(answer(request, head(1)))
        said += len([text for text in warnings(talk) if "over the data path" in text])
    assert said in (1, 2)
    assert talk.core.lines[0].deaf
    talk.hear(frames.heartbeat(1))
    talk.pass_ms(300)
    assert not talk.core.lines[0].deaf


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


def test_what_is_missing_makes_the_next_question_come_soon():
    talk, request = quiet_talk()
    for _ in range(4):
        talk.reply(answer(request, head(1)))
        while not (asked := questions(talk)):
            talk.pass_ms(500)
        ((request, _),) = asked
    talk.reply(answer(request, head(2)))
    talk.pass_ms(600)
    talk.reply(data(1))
    talk.asked()
    talk.pass_ms(3_000)
    assert len(questions(talk)) == 1


def test_nobody_is_asked_while_anything_comes():
    talk = Talk().join(head(0))
    for _ in range(60):
        talk.hear(frames.heartbeat(0))
        talk.pass_ms(1000)
    assert questions(talk) == []


def test_no_answer_is_no_sign_of_life_and_nothing_is_said():
    talk, _ = quiet_talk()
    talk.pass_ms(90_000)
    asked = questions(talk)
    assert 1 <= len(asked) <= 6
    assert not any("over the data path" in text for text in warnings(talk))


def test_an_answer_that_comes_when_the_path_works_again_is_left():
    talk, request = quiet_talk()
    talk.hear(frames.heartbeat(1))
    talk.pass_ms(300)
    talk.reply(answer(request, head(9)))
    assert (talk.core.streams[0].receiver.head, talk.core.invalid) == (1, {})


def test_heads_of_another_life_are_left_to_its_echo():
    talk, request = quiet_talk()
    talk.core.peers[SESSION].life = 1
    talk.reply(answer(request, head(9), life=2))
    assert talk.core.streams[0].receiver.head == 1


def test_a_publisher_that_closes_hears_that_everything_has_come():
    talk, request = quiet_talk()
    talk.reply(answer(request, head(2), flags=FLAG_CLOSING))
    talk.pass_ms(30)
    joined = [body.complete for _, body, _ in talk.asked(Kind.JOINED)]
    assert True not in joined
    talk.reply(data(1))
    talk.pass_ms(30)
    joined = [body.complete for _, body, _ in talk.asked(Kind.JOINED)]
    assert joined == [True]


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_member_of_a_group_asks_whether_anybody_is_there_and_then_for_all(is_closing):
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
    assert topics == []
    reply = answer(request, session=GROUP, flags=flags)
    member.core.receive_reply(GROUP, reply, now_ns=member.now_ns)
    ((request, topics),) = questions(member)
    assert topics == ["*"]
    reply = answer(request, head(3), session=GROUP, flags=flags)
    member.core.receive_reply(GROUP, reply, now_ns=member.now_ns)
    assert member.core.streams[0].receiver.head == 3
    assert member.core.peers[GROUP].closing == is_closing
    near, far = member.asked()
    assert (near, far) == ([], [(1, 3)])  # nothing that is sent to the group would come
    assert not member.core.joiner.is_connected(0, member.now_ns)
    assert sum("over the data path" in text for text in warnings(member)) == 1


def test_questions_wait_for_longer_where_the_answer_is_long():
    talk = Talk().join(*(head(0, topic=f"t{n}") for n in range(5000)))
    talk.pass_ms(QUIET_MS + 300)
    ((request, _),) = questions(talk)
    talk.reply(answer(request, *(head(0, topic=f"t{n}") for n in range(5000))))
    talk.pass_ms((quiet.FIRST_WAIT_NS + 5000 * quiet.NS_PER_STREAM) // MS - 600)
    assert questions(talk) == []
    talk.pass_ms(1000)
    assert len(questions(talk)) == 1


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


def test_announcements_show_not_that_data_of_a_group_comes():
    member = Announced()
    first, *_ = member.questions(QUIET_MS / 1000 + 1, following=5)
    assert first > QUIET_MS
    receiver = member.core.streams[0].receiver
    assert receiver.head == 6
    assert member.core.joiner.is_connected(0, member.now_ns)
    assert warnings(member) == []


def test_while_there_is_more_each_time_that_a_group_is_asked_it_is_asked_again_soon():
    times = Announced().questions(60, following=5)
    assert all(after - before < 3500 for before, after in pairwise(times))


def test_a_group_of_which_nothing_is_published_is_asked_ever_more_rarely():
    times = Announced().questions(240)
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 3000
    assert gaps[-1] >= 29_000


def test_a_group_whose_heartbeats_come_is_not_asked():
    assert Announced().questions(120, frames.heartbeat(1, session=GROUP)) == []
