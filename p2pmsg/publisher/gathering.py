"""When messages share a frame, and how long they wait for one another."""

from typing import TYPE_CHECKING, Final

from p2pmsg.config import LINGER_MIN
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.config import PublisherConfig
    from p2pmsg.publisher.batch import Batch
    from p2pmsg.publisher.served import PublisherStream

GATHER_AFTER: Final = 32
"""So many messages that are closer together than `gather_within` go out one by one before a stream
gathers. Those that a program sends together because it woke up late are no busy stream."""
_SHARE: Final = 20
"""A stream that is not busy waits for a twentieth of `linger` at least: 50 µs. Sending a frame and
receiving it takes a tenth of that at each end, so at any rate it leaves most of a core."""
_FRAMES: Final = 2
"""Where a frame takes long, on a slow machine or one whose cores others want, such a stream waits
for as long as so many take, and two thirds of the time are the program's. Sending more frames than
there is time for makes all of them late: at 200,000 messages a second, on two slow cores, by 40 ms.
"""
_BUSY_NS: Final = 1_000
"""A stream whose messages follow one another so closely is busy: what a frame more costs would
keep its publisher from publishing."""
_BUSY_SHARE: Final = 50
_BUSY_NS_MAX: Final = 3_000
"""On a slow machine a busy program's messages are further apart: a fiftieth of what a frame takes,
up to this."""
_PACE_NS_MAX: Final = 40_000
"""Messages further apart than this are not gathered, however long a frame takes, unless sending
them one by one takes longer than their program leaves between them."""
_QUICK_NS: Final = 50_000
"""With a short `linger` a stream that is not busy waits for as long as two frames take, up to this,
and on a slow machine for half of what a frame takes: at least a third of the time is the program's.
Waiting for less would make those wait longer that come next, until the frames before are made."""
_MOST_FRAMES: Final = 4
"""A short `linger` counts as so many frames: as long as the socket would make messages wait."""
_FRAME_NS_FIRST: Final = 10_000
_FRAME_NS_MAX: Final = 500_000
_FULL_NS: Final = 500_000
"""After a full frame, a pause in own time must be so long to be one."""
_SLOW_SEND_NS: Final = 200_000
"""Sending that takes longer is worth gathering for: a thousand subscribers make it 1 ms a frame."""
_MANY_CONNECTIONS: Final = 64
_FAN_OUT: Final = 32
"""So much longer than the caller, who only fills their queues, ZeroMQ's thread takes to send a
frame to many subscribers."""


class Gathering:
    """Decides which messages wait, by what is measured.

    How closely a program's messages follow one another is measured in *its own time*: the clock
    without what calls of `publish` took that did more than to add to a batch. A small frame costs a
    publisher about as much as a large one. Did that count as the program's pause, a program that
    publishes all the time would look slow while frames are small, and they would stay small.

    Attributes:
        inside_ns: how long such calls have taken, all together; the clock minus it is own time.
        sending_ns: the part of it in which frames were sent, or one of a single message was made.
            How far a stream is ahead of an even pace is measured by the clock minus that: a program
            that does not keep up because of its batches sends messages alone again.
        ahead_ns: so far a stream may be ahead of an even pace and still gather nothing.
        linger_ns: how long messages wait at most.
        alone_ns: after such a pause, in own time, a message does not wait.
        busy_until_ns: until then messages wait because sending is slow.

    """

    __slots__ = (
        "_alone",
        "_busy_ns",
        "_calls_ns",
        "_checked_ns",
        "_frame_ns",
        "_gather_ns",
        "_most_ns",
        "_pace_ns",
        "_pause_ns",
        "_send_ns",
        "_share_ns",
        "ahead_ns",
        "alone_ns",
        "busy_until_ns",
        "inside_ns",
        "linger_ns",
        "sending_ns",
    )  # fmt: skip

    def __init__(self, config: "PublisherConfig", gather_after: int = GATHER_AFTER) -> None:
        self._gather_ns = to_ns(config.gather_within)
        self.ahead_ns = gather_after * self._gather_ns
        self.linger_ns = to_ns(config.linger)
        self._checked_ns = to_ns(max(config.linger, LINGER_MIN))
        self._share_ns = self.linger_ns // _SHARE
        self.inside_ns = self.sending_ns = self.busy_until_ns = 0
        self._calls_ns = self._send_ns = self._frame_ns = 0
        self._alone: PublisherStream | None = None  # whose message went out by itself, and is small
        self._use_frame(0)

    def on_call(self, inside_ns: int, began_ns: int, ended_ns: int, *, made: bool) -> None:
        """Note what a call took that did more than to add to a batch.

        Args:
            inside_ns: `inside_ns` when it began.
            began_ns: when it began.
            ended_ns: when it ended.
            made: whether it made a frame of messages that came one by one, and sent it.

        """
        took_ns = ended_ns - began_ns
        self.inside_ns = inside_ns + took_ns
        self._calls_ns += took_ns
        if made:
            self._on_frame()

    def on_sent(self, began_ns: int, ended_ns: int, connections: int) -> None:
        """Note when frames were sent: after slow ones, messages are gathered for as long again.

        A frame costs as much as it has subscribers. To a thousand of them, one message a frame is
        some hundred a second; so at least half of the time is left for gathering, at most as long
        as four times `linger`. A single slow one may be a stall of the machine: the quicker of the
        last two counts.
        """
        took_ns = ended_ns - began_ns
        self.inside_ns += took_ns
        self.sending_ns += took_ns
        least_ns = min(took_ns, self._send_ns)
        self._send_ns = took_ns
        if connections >= _MANY_CONNECTIONS:
            least_ns *= _FAN_OUT
        if least_ns > _SLOW_SEND_NS:
            self.busy_until_ns = ended_ns + min(least_ns, 4 * self.linger_ns)

    def on_alone(self, began_ns: int, ended_ns: int, connections: int) -> None:
        """Note what a call took that made a frame of one message, and sent it.

        Where it took longer than messages are apart that are gathered, its stream counts as further
        ahead: of a program that was kept from running on a busy machine, 32 messages went out alone
        each time, which took as long as thousands do together.
        """
        self.on_sent(began_ns, ended_ns, connections)
        took_ns = ended_ns - began_ns
        self._calls_ns += took_ns
        stream = self._alone
        if stream is not None and 0 < self._pace_ns < took_ns:
            most_ns = ended_ns - self.sending_ns + self.ahead_ns + self._checked_ns
            stream.next_ns = min(stream.next_ns + took_ns - self._pace_ns, most_ns)
        self._on_frame()

    def on_made(self, stream: "PublisherStream", count: int, now_ns: int, since_ns: int) -> None:
        """Note when a frame was made, and how far the stream is ahead of an even pace.

        It is so by `linger` at most, or 0.1 ms, beyond what goes out one by one: after such a pause
        it is as one that has always been calm. `count` is 0 for a message that shares no frame
        because it is large: it says nothing of the others.
        """
        self._alone = stream if count == 1 else None
        stream.made_ns = now_ns - self.inside_ns
        next_ns = max(stream.next_ns, since_ns - self.sending_ns) + count * self._pace_ns
        stream.next_ns = min(next_ns, now_ns - self.sending_ns + self.ahead_ns + self._checked_ns)

    def on_filled(self, stream: "PublisherStream", batch: "Batch", now_ns: int) -> None:
        """Note that messages filled a frame: who publishes so is not idle, and will go on."""
        own_ns = now_ns - self.inside_ns
        if not self._is_calm(batch, own_ns):
            stream.made_ns = own_ns + _FULL_NS
            least_ns = now_ns - self.sending_ns + _FULL_NS + self.ahead_ns
            stream.next_ns = max(stream.next_ns, least_ns)

    def goes_alone(self, stream: "PublisherStream", batch: "Batch | None", now_ns: int) -> bool:
        """Whether a stream's next message waits for no company; `batch` is its last, if sealed now.

        A batch of a datagram's size is full, and yet its messages may have come further apart than
        those that are gathered. What comes next does not wait, or a stream of a message each
        100 µs, once it has gathered a few, would go on to do so.
        """
        if now_ns < self.busy_until_ns:
            return False
        own_ns = now_ns - self.inside_ns
        if own_ns - stream.made_ns >= self.alone_ns:
            return True
        if stream.next_ns <= now_ns - self.sending_ns + self.ahead_ns:
            return True
        return batch is not None and self._is_calm(batch, own_ns)

    def due_ns(self, batch: "Batch") -> int:
        """Return when an open batch has waited for long enough."""
        due_ns = batch.opened_ns + min(self.linger_ns, self._wait_ns(batch.count))
        if due_ns < self.busy_until_ns:
            return min(self.busy_until_ns, batch.opened_ns + self.linger_ns)
        return due_ns

    def goes_on(self, batch: "Batch", now_ns: int) -> bool:
        """Whether a batch at its `limit` has space, and its messages may wait on.

        While sending is slow they may wait for as long as `linger`.

        The thread that seals batches may wait for the interpreter, even for seconds, and looks but
        once a millisecond. So the thread that fills a batch checks it, too: when it has half of
        what the one before had (all of that, if it was about full), when that has doubled, and
        when it is about to have waited for long enough.
        """
        age_ns, own_ns = now_ns - batch.opened_ns, now_ns - self.inside_ns - batch.own_ns
        wait_ns = self._most_ns if now_ns < self.busy_until_ns else self._wait_ns(batch.count)
        left_ns = min(self._most_ns - age_ns, wait_ns - own_ns)
        return left_ns > 0 and batch.check_again(left_ns / own_ns if own_ns > left_ns else 1.0)

    def _is_calm(self, batch: "Batch", own_ns: int) -> bool:
        """Whether a batch's messages came further apart than those that are gathered."""
        return own_ns - batch.own_ns >= batch.count * self._pace_ns

    def _wait_ns(self, count: int) -> int:
        """Return how old a batch may grow with so many messages, in ns.

        A stream that is busy gathers for as long as `linger`, or until a frame is full; another
        one for a twentieth of that, or as long as making two frames takes; and a few messages,
        which come seldom closer than those that are gathered, for no longer than as many of them
        would take.
        """
        return max(count * self._busy_ns, min(self._pause_ns, count * self._pace_ns))

    def _on_frame(self) -> None:
        """Note what a frame and its batch took; a single slow one may be a stall of the machine."""
        took_ns, self._calls_ns = self._calls_ns, 0
        self._use_frame(min(took_ns, 2 * self._frame_ns + _FRAME_NS_FIRST, _FRAME_NS_MAX))

    def _use_frame(self, frame_ns: int) -> None:
        """Decide by what a frame takes from now on; of the last two, the quicker one."""
        quick_ns = min(frame_ns, self._frame_ns)
        self._frame_ns = frame_ns
        self._busy_ns = max(_BUSY_NS, min(quick_ns // _BUSY_SHARE, _BUSY_NS_MAX))
        self._pace_ns = self._gather_ns and max(self._gather_ns, min(quick_ns, _PACE_NS_MAX))
        self._pause_ns = max(
            self._share_ns,
            min(_FRAMES * quick_ns, self.linger_ns),
            frame_ns // 2,
            min(2 * frame_ns, _QUICK_NS),
        )
        self.alone_ns = max(self._pace_ns, self._pause_ns)
        self._most_ns = max(self._checked_ns, _MOST_FRAMES * frame_ns)
