"""Feeds of a subscriber's core, whose packets are played by hand."""

from p2pmsg import control
from p2pmsg.config import SubscriberConfig
from p2pmsg.mold import codec
from p2pmsg.mold.feed import Arrival, MoldFeed
from p2pmsg.mold.sessions import MoldSessions, session_id
from p2pmsg.start import parse_start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.wire import Frame, Kind
from tests.still import Still
from tests.unit.p2pmsg.subscriber_talk import Talk

MS = 1_000_000
NAME = b"S1".ljust(10)


class Cursor:
    """A cursor that knows where sessions go on."""

    def __init__(self, positions):
        self.positions = positions
        self.newcomers = []

    def contacted(self, line):
        return True

    def start_of(self, session, topic, of_new):
        return self.positions.get(session)

    def note(self, peer):
        pass

    def committed(self, stream):
        return None


class Feeds(Talk):
    """One feed over several lines."""

    def __init__(self, *, lines=1, can_ask=True, start="latest", cursor=None, **options):
        self.now_ns = 10**12
        self.core = SubscriberCore(
            topics=[],
            lines=lines,
            start=parse_start(start),
            subscriber=1,
            name="",
            config=SubscriberConfig(**options),
            rng=Still(1),
            now_ns=self.now_ns,
            cursor=cursor,
            datagram_lines=range(lines),
        )
        self.sessions = MoldSessions(can_ask=can_ask)
        self.feeds = [MoldFeed(self.core, line, "mold", self.sessions) for line in range(lines)]

    def hear(self, data, *, line=0):
        self.feeds[line].receive(data, Arrival(self.now_ns, 1, False))

    def messages(self, start, stop, *, line=0, name=NAME, incarnation=b""):
        """Hear messages whose values are their sequences."""
        values = [incarnation + b"%d" % number for number in range(start, stop)]
        self.hear(codec.packet(name, start, values), line=line)

    def heartbeat(self, following, *, line=0, name=NAME):
        self.hear(codec.heartbeat(name, following), line=line)

    def end(self, following, *, line=0, name=NAME):
        self.hear(codec.end_of_session(name, following), line=line)

    def answer(self, start, stop, *, line=0, name=NAME, incarnation=b""):
        """Let a request server answer: with messages whose values are their sequences."""
        values = [incarnation + b"%d" % number for number in range(start, stop)]
        packet = codec.read_packet(codec.packet(name, start, values))
        frame = self.feeds[line].answer(session_id(name), packet, wall_ns=1)
        self.core.receive_reply(session_id(name), frame, now_ns=self.now_ns)

    def asked(self):
        """Take out the ranges that were asked for."""
        found = []
        while self.core.requests:
            _, data = self.core.requests.popleft()
            frame = Frame(data)
            if frame.kind == Kind.NACK:
                found += control.read_body(frame, control.Nack).ranges
        return found

    def taken(self):
        """Take out what is handed on: values, and losses as (start, stop, reason)."""
        found = []
        while (taken := self.core.ready.take()) is not None:
            _, loss, _, _, messages = taken
            found += [message.value for message in messages]
            if loss is not None:
                found.append((loss.start, loss.stop, loss.reason.value))
        return found

    def endings(self):
        found = []
        while (ending := self.core.pop_ending()) is not None:
            found.append((ending.stream.peer.name, ending.stop, ending.announced))
        return found

    @property
    def stream(self):
        return self.core.streams[-1]
