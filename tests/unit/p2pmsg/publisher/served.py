"""A session as `RequestHandler` and `HeartbeatSender` see it, made of a few dicts."""

from types import SimpleNamespace

from p2pmsg import control
from p2pmsg.wire import Frame, Kind
from recovery import Kept
from tests.unit.p2pmsg.frames import SESSION, data


def kept(start, count=1, *, topic="t"):
    """A frame of `count` messages; the value and the timestamp of each are its sequence."""
    values = list(range(start, start + count))
    frame = data(
        values, topic=topic, sequence=start, base_ns=start, columns=(list(range(count)), None, None)
    )
    return Kept(start, start + count, frame, start + count - 1)


class FakeServed:
    """What is kept and lost is set by the test."""

    def __init__(self, *buffer, log=(), heads=None, losses=(), unknown=(), **known):
        self.session, self.name, self.endpoint_hash = SESSION, "feed", 77
        self.incarnation = known.get("incarnation", 0)
        self.floor = known.get("floor", 0)
        self.has_log, self.closing = bool(log), False
        self.buffer, self.log, self.losses, self.unknown = buffer, log, losses, unknown
        frames = [*log, *buffer]
        default = (frames[0].start, frames[-1].stop) if frames else (0, 0)
        self.prefix = ""
        self.heads = {"t": default} if heads is None else heads
        self.reads = []

    @property
    def streams(self):
        """As much of each stream as answers need."""
        return {
            topic: SimpleNamespace(served=self, topic=topic, number=number, began=None)
            for number, topic in enumerate(self.heads)
        }

    def head(self, topic):
        return self.heads.get(topic, (0, 0))

    def answered_from(self, topic):
        return self.head(topic)[0]

    def frame_at(self, topic, start, stop):
        fitting = (one for one in self.buffer if one.stop > start and one.start < stop)
        return next(fitting, None) if topic == "t" else None

    def read(self, requester, topic, start):
        self.reads.append((requester, topic, start))
        return next((one for one in self.log if one.stop > start), None)

    def first_at(self, topic, timestamp_ns):
        frames = [*self.log, *self.buffer]
        return next((one for one in frames if one.timestamp_ns_max >= timestamp_ns), None)

    def lost(self, topic, start, stop):
        if (start, stop) in self.unknown:
            return [], []
        gone = [loss for loss in self.losses if start <= loss.start and loss.stop <= stop]
        for loss in gone:  # each test asks for one that ends where its range ends
            stop = loss.start
        return gone, [(start, stop)] if start < stop else []


def kinds(frames):
    """(kind, topic, sequence) of frames."""
    made = map(Frame, frames)
    return [(Kind(frame.kind).name, frame.topic, frame.sequence) for frame in made]


def answers(handler, requester, request, *, now_ns=0):
    """Return the replies to a request; a frame of the log is read as the shell reads it."""
    handler.receive(requester, request, now_ns=now_ns)
    found = []
    while (reply := handler.next_reply(now_ns=now_ns)) is not None:
        if reply.is_in_log and not handler.read(reply):
            handler.refuse(reply)
            continue
        handler.reply_sent(reply, now_ns=now_ns)
        found.append(reply.frame)
    return found


def refusals(replies):
    """(ranges, reason) of refusals."""
    bodies = [control.read_body(Frame(data), control.Refused) for data in replies]
    return [(body.ranges, body.reason) for body in bodies]


def run_steps(steps):
    """Make the calls of a part of a verb here; return its result."""
    try:
        request = next(steps)
        while True:
            try:
                result = request.call()
            except OSError as error:
                request = steps.throw(error)
            else:
                request = steps.send(result)
    except StopIteration as end:
        return end.value


def take_control(queue):
    """Take out all control frames."""
    frames = []
    while (frame := queue.next(data_waits=False)) is not None:
        frames.append(frame)
        queue.leave(frame)
    return frames


def take_sent(core):
    """Take out all frames for the data path."""
    frames = [*core.outbox, *take_control(core.control)]
    core.outbox.clear()
    return frames
