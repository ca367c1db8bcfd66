"""A subscriber's core with a publisher played by hand."""

from p2pmsg import control
from p2pmsg.config import SubscriberConfig
from p2pmsg.start import parse_start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.sessions import Session
from p2pmsg.wire import Frame, Kind
from recovery import Delivery
from tests.still import Still
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.frames import SESSION

MS = 1_000_000


class Talk:
    """Plays publisher and application to a core."""

    def __init__(
        self,
        *,
        start="latest",
        topics=(),
        lines=1,
        cursor=None,
        on_gap="wait",
        **options,
    ):
        self.now_ns = 0
        self.core = SubscriberCore(
            topics=list(topics),
            lines=lines,
            start=parse_start(start),
            subscriber=42,
            name="s",
            config=SubscriberConfig(**options),
            rng=Still(1),
            now_ns=0,
            cursor=cursor,
            policy=GapPolicy(on_gap),
        )

    def record_newcomers(self):
        """Have the cursor record who was joined."""
        for write in self.core.recording():
            write()

    def hear(self, data, *, line=0, shed=False):
        self.core.receive_frame(line, data, now_ns=self.now_ns, shed=shed)

    def reply(self, data, *, session=SESSION):
        self.core.receive_reply(session, data, now_ns=self.now_ns)

    def pass_ms(self, ms):
        """Let time pass, doing what is due when it is due."""
        end_ns = self.now_ns + int(ms * MS)
        while (due_ns := self.core.next_deadline_ns()) <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.core.handle_timer(now_ns=self.now_ns)
            if self.core.next_deadline_ns() <= self.now_ns:
                self.now_ns += 1
        self.now_ns = end_ns

    def asked(self, kind=None):
        """Take out the requests: (kind, body or None, session)."""
        found = []
        bodies = {
            Kind.PROBE: control.Probe,
            Kind.JOINED: control.Joined,
            Kind.LEAVE: control.Joined,
            Kind.NACK: control.Nack,
        }
        while self.core.requests:
            session, data = self.core.requests.popleft()
            frame = Frame(data)
            body_kind = bodies.get(Kind(frame.kind))
            body = None if body_kind is None else control.read_body(frame, body_kind)
            if kind is None or frame.kind == kind:
                found.append((Kind(frame.kind).name, body, session))
        return found

    def commanded(self):
        """Take out the commands: (what, line, session)."""
        found = [(c.what, c.line, c.session) for c in self.core.commands]
        self.core.commands.clear()
        return found

    def probe(self):
        """Return the newest probe that was sent, taking out all requests."""
        return self.asked(Kind.PROBE)[-1][1]

    def join(self, *heads, session=SESSION, line=0, name="feed"):
        """Be welcomed, and echo the probe with these heads."""
        self.hear(frames.welcome(session, name=name), line=line)
        self.hear(frames.echo(self.probe().probe, *heads), line=line)
        assert self.core.peers[session].joined
        self.core.commands.clear()
        return self

    def read(self):
        """Take out what is ready: (topic, sequence, count), or a loss."""
        found = []
        while (taken := self.core.ready.pop()) is not None:
            stream, output = taken
            if isinstance(output, Delivery):
                found.append((stream.topic, output.sequence, output.count))
            else:
                found.append((stream.topic, output.start, output.stop, output.reason.value))
        return found


def session(number=SESSION):
    """A session without a core, not joined yet."""
    welcome = control.Welcome("feed", "tcp://127.0.0.1:1", -1.0)
    return Session(number, welcome, start=parse_start("latest"), now_ns=0)


def head(following, *, topic="t", earliest=0, start=None):
    return control.Head(topic, earliest, following, following if start is None else start)


def data(sequence, count=1, *, topic="t", session=SESSION, size=1):
    values = [b"x" * size] * count
    return frames.data(values, topic=topic, session=session, sequence=sequence)
