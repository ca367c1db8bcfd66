"""A puller's connections to one pusher: a DEALER for the recovery channel, a PULL for jobs."""

import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.control import decoded
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.queue.access import DENIED_NS, PusherAccess
from p2pmsg.queue.pipeline import frames
from p2pmsg.queue.pipeline.taking import Intake, Taken
from p2pmsg.security.key_watch import KeyWatch
from p2pmsg.security.use import server_of
from p2pmsg.trouble import Rarely
from p2pmsg.unanswered import Unanswered
from p2pmsg.wire import FLAG_CLOSING, Frame, FrameError, Kind, control_frame
from transports.own_log import own_log as _log
from transports.zmq_plain import ZmqPlainSocket

if TYPE_CHECKING:
    from p2pmsg.security.access_rules import AccessRules

_FRAME_BYTES_MAX: Final = 16 * 2**20
_HELD_BYTES_MAX: Final = 64 * 2**20
"""So much is read before the application takes it; pushers deal a tenth of it."""
_FRAMES_PER_READ: Final = 64
_QUEUE_FRAMES: Final = 1000
_MS: Final = 1_000_000
_LOOK_NS: Final = 100 * _MS
"""How often it is looked what became of the connections."""
_COMING_NS: Final = 2000 * _MS
"""A connection over which no byte came for so long brings nothing just now. What was lost on a slow
network TCP sends again after 200 ms, then 400, then 800."""
_SAY_NS: Final = 5_000_000
_SIGN_NS: Final = 100_000_000
_OF_SHARE: Final = (Kind.PIPE_JOBS, Kind.PIPE_HEAD, Kind.PIPE_GONE)
_HELLO_NS: Final = 500_000_000
_SILENT_NS: Final = 5_000_000_000


class Link:
    """What a puller has of one pusher.

    Attributes:
        endpoint: the pusher's. session: its id. share: the id of its share; None: none yet.
        client: the recovery channel.
        lost: frames that a pusher sent, and that did not come before it died.
        invalid: frames that could not be read. late: those of shares that it does not have.
        dropped: the last share whose jobs are others' now.
        access: what is denied by the pusher, or to it.

    """

    def __init__(
        self,
        place: transports.Endpoint,
        puller: int,
        name: str,
        curve: "transports.CurveClient | None" = None,
        access_rules: "AccessRules | None" = None,
    ) -> None:
        self.endpoint = str(place)
        self._pusher = ""
        self.access = PusherAccess()
        self._unanswered = Unanswered(
            "pusher", [place], now_ns=time.monotonic_ns(), usual="ROUTER", says_at_once=False,
            has_keys=curve is not None,
        )  # fmt: skip
        self._host = place.host
        self._puller = puller
        self._name = name
        self.client = transports.ZmqQueueClient(
            place, context=zmq_context(), frame_bytes_max=_FRAME_BYTES_MAX,
            curve=curve,
        )  # fmt: skip
        self.access.use(access_rules, partial(server_of, self.client))
        try:
            self.client.watch_end()
            self.client.connect()
        except BaseException:
            self.client.close()
            raise
        self._pull: ZmqPlainSocket | None = None
        self._pulls_left: list[ZmqPlainSocket] = []
        self._intake: Intake | None = None
        self.session = 0
        self._up_to = 0
        self._logged = (0, 0)
        self._logged_ns = self._hello_ns = -(2**62)
        self._last_heard_ns: int | None = None
        self._check_due_ns_ = 0
        self._left_over: deque[Taken] = deque()
        self.lost = self.invalid = self.late = 0
        self._duplicates = 0
        self._lost_logged = Rarely()
        self.dropped: int | None = None

    @property
    def share(self) -> int | None:
        """The id of its share."""
        return None if self._intake is None else self._intake.share

    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when there is something to read."""
        return (self.client.fd,) if self._pull is None else (self.client.fd, self._pull.fileno())

    def close_left(self) -> None:
        """Close connections of shares that are gone, now that nobody watches them any more."""
        while self._pulls_left:
            self._pulls_left.pop().close()

    @property
    def has_ready(self) -> bool:
        """Whether there is a frame to take."""
        return bool(self._left_over) or (self._intake is not None and bool(self._intake.ready))

    @property
    def jobs_ready(self) -> int:
        """How many jobs there are in frames that were not begun."""
        ready = [*self._left_over, *(() if self._intake is None else self._intake.ready)]
        return sum(Frame(taken.frame).count for taken in ready)

    @property
    def duplicates(self) -> int:
        """Frames that came twice."""
        return self._duplicates + (0 if self._intake is None else self._intake.duplicates)

    @property
    def is_busy(self) -> bool:
        """Whether something is missing, or not confirmed."""
        intake = self._intake
        return intake is None or self._up_to < intake.head

    def first(self) -> Taken | None:
        """Return the next frame; None where there is none."""
        if self._left_over:
            return self._left_over[0]
        return None if self._intake is None else self._intake.first()

    def drop(self, taken: Taken) -> None:
        """Take the next frame out, if it is this one still."""
        if self._left_over and self._left_over[0] is taken:
            self._left_over.popleft()
        elif self._intake is not None and self._intake.first() is taken:
            self._intake.take()

    def finish(self, taken: Taken) -> None:
        """Note that all jobs of a frame are done."""
        if self._intake is not None and taken.share == self._intake.share:
            self._up_to = taken.number + 1

    def check(self, keys: KeyWatch) -> None:
        """Check the handshake of the connection for jobs, and have raised what is denied."""
        if self._pull is not None:
            self._pull.check()
        self.report_denied(keys)

    def report_closed(self, keys: KeyWatch) -> None:
        """Have raised that the pusher needs keys, where there are none."""
        if closed := self._unanswered.take_closed():
            _log.warning("%s: %s", *closed[0])
            keys.note(closed)

    def report_denied(self, keys: KeyWatch) -> None:
        """Have raised what is denied."""
        denied, is_here = self.access.take_unreported(), self._intake is not None
        keys.on_access(self.client.endpoint, denied, allowed=is_here)

    def check_access_rules(self, now_ns: int) -> None:
        """Give the share back where its pusher may not push; called when rights have changed."""
        if self._intake is not None and not self.access.may_push(self._pusher):
            self.leave(0)
            self._refuse_pusher(now_ns)
        elif self._intake is None:
            self._hello_ns = -(2**62)

    def _refuse_pusher(self, now_ns: int) -> None:
        self.access.on_ours(self._pusher, now_ns=now_ns)
        self._drop_denied(now_ns)

    def _drop_denied(self, now_ns: int) -> None:
        """Drop the share: it is others' now, and no confirmation of it counts."""
        if self._intake is not None:
            self._lose_share(self._intake, self.session)
        self._hello_ns = now_ns

    def read(self, now_ns: int) -> None:
        """Take what has come."""
        if self._last_heard_ns is None:
            self._last_heard_ns = now_ns
        if now_ns >= self._check_due_ns_:
            self._check_due_ns_ = now_ns + _LOOK_NS
            if self.client.was_ended_here():
                self.client.reconnect()
            if self._pull is not None:
                self._pull.check()
        while (data := self.client.receive()) is not None:
            self._last_heard_ns = now_ns
            try:
                self._take_control(Frame(data), now_ns)
            except FrameError:
                self.invalid += 1
        while self._pull is not None and self._intake is not None:
            if self._intake.bytes > _HELD_BYTES_MAX:
                break
            messages, _, has_more = self._pull.receive_singles(_FRAMES_PER_READ)
            for message in messages:
                try:
                    frame = Frame(message if type(message) is bytes else b"")
                    self._take_jobs(frame, self._intake, now_ns)
                except FrameError:
                    self.invalid += 1
            if not has_more:
                break
        if now_ns >= self._unanswered.next_ns:
            answered = self._intake is not None or self.access.denial is not None
            self._unanswered.check([answered], [self.invalid], now_ns)
        if now_ns - self._last_heard_ns > _SILENT_NS // 2:
            # A large job takes long over a slow network, and then nothing else comes through.
            self._last_heard_ns = max(self._last_heard_ns, self._last_byte_ns(now_ns))
        if now_ns - self._last_heard_ns > _SILENT_NS:
            self._last_heard_ns = now_ns
            what = 'with acknowledge="batch" ' if self._intake is None else ""
            found = self._unanswered.found[0]
            _log.warning(
                "no pusher %sanswers at %s%s", what, self.endpoint, f": {found}" if found else ""
            )
            self.client.reconnect()

    def _last_byte_ns(self, now_ns: int) -> int:
        """Return when the last byte came over either connection, as far as is known."""
        both = [each for each in (self.client, self._pull) if each is not None]
        return max(each.last_byte_ns(now_ns) or 0 for each in both)

    def say(self, part: int, *, now_ns: int) -> None:
        """Send a state where one is due: something is done or missing, or as a sign of life."""
        intake = self._intake
        if intake is None:
            if now_ns - self._hello_ns > (_HELLO_NS if self.access.denial is None else DENIED_NS):
                self._hello_ns = now_ns
                hello = frames.Hello(self._name)
                self.client.send(control_frame(Kind.PIPE_HELLO, self._puller, hello))
            return
        missing = [] if self._is_coming(intake, now_ns) else intake.missing(now_ns=now_ns)
        passed_ns = now_ns - self._logged_ns
        has_changed = (self._up_to, part) != self._logged
        if missing or passed_ns > _SIGN_NS or (has_changed and passed_ns > _SAY_NS):
            self._send_state(intake, part, missing, now_ns)

    def _is_coming(self, intake: Intake, now_ns: int) -> bool:
        """Whether what seems to be missing is on its way: it comes in order, and bytes come."""
        if self._pull is None or intake.next >= intake.head:
            return False
        came_ns = self._pull.last_byte_ns(now_ns)
        if intake.later or self._pull.connections > 1:
            return False  # what was on its way when it broke does not come
        return came_ns is not None and now_ns - came_ns < _COMING_NS

    def say_done(self, part: int, *, now_ns: int) -> None:
        """Send a state now, where something is done that was not confirmed."""
        if self._intake is not None and (self._up_to, part) != self._logged:
            self._send_state(self._intake, part, [], now_ns)

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it: what is missing is asked for."""
        if self._intake is not None:
            self._intake.resync()

    def leave(self, part: int) -> None:
        """Confirm what is done, and give back the rest."""
        if self._intake is not None:
            self._send_state(self._intake, part, [], 0, FLAG_CLOSING)

    def close(self) -> None:
        """Close; what is to be sent has half a second to leave."""
        self._close_pull()
        self.close_left()
        self.client.close(linger_ms=500)

    def _send_state(
        self, intake: Intake, part: int, missing: list[tuple[int, int]], now_ns: int,
        flags: int = 0,
    ) -> None:  # fmt: skip
        state = frames.State(part, missing)
        frame = control_frame(
            Kind.PIPE_STATE, intake.share, state, sequence=self._up_to, flags=flags
        )
        if self.client.send(frame):
            self._logged = self._up_to, part
            self._logged_ns = now_ns

    def _take_control(self, frame: Frame, now_ns: int) -> None:
        intake = self._intake
        if frame.kind == Kind.PIPE_WELCOME:
            welcome = decoded(frame, frames.decode_welcome)
            if intake is None:
                self._take_welcome(frame.session, welcome, now_ns)
            return
        if frame.kind == Kind.DENIED:
            self.access.on_theirs(decoded(frame, frames.decode_denied), now_ns=now_ns)
            self._drop_denied(now_ns)
            return
        if frame.kind not in _OF_SHARE:
            raise FrameError("kind")
        if intake is None or frame.session != intake.share:
            self.late += 1
        elif frame.kind == Kind.PIPE_JOBS:
            intake.receive(frame.sequence, frame.data, now_ns=now_ns)
        elif frame.kind == Kind.PIPE_HEAD:
            intake.on_head(frame.sequence, now_ns=now_ns)
        else:
            self._lose_share(intake, decoded(frame, frames.decode_gone).session)

    def _take_jobs(self, frame: Frame, intake: Intake, now_ns: int) -> None:
        if frame.kind != Kind.PIPE_JOBS:
            raise FrameError("kind")
        if frame.session == intake.share:
            intake.receive(frame.sequence, frame.data, now_ns=now_ns)
        else:
            self.late += 1

    def _take_welcome(self, session: int, welcome: frames.Welcome, now_ns: int) -> None:
        self._pusher = welcome.name
        if self.access.may_push(welcome.name):
            self.access.allow()
            self._join(session, welcome)
            return
        self._refuse_pusher(now_ns)
        state = control_frame(
            Kind.PIPE_STATE, welcome.share, frames.State(0, []), flags=FLAG_CLOSING
        )
        self.client.send(state)

    def _join(self, session: int, welcome: frames.Welcome) -> None:
        try:
            at = transports.parse_endpoint(welcome.endpoint).without_key()
            if at.scheme == "tcp":  # by the way that leads to the pusher: its name for it may not
                at = at.with_host(self._host)
            pull = ZmqPlainSocket(
                "pull", at, binds=False, context=zmq_context(),
                queue_messages=_QUEUE_FRAMES, message_bytes_max=_FRAME_BYTES_MAX,
                curve=self.client.curve,
            )  # fmt: skip
            pull.open()
        except transports.TransportError:
            raise FrameError("endpoint") from None
        self._pull = pull
        self.session = session
        self._intake = Intake(welcome.share)
        self._up_to = 0
        self._logged = (0, 0)

    def _lose_share(self, intake: Intake, session: int) -> None:
        """Handle that the share is gone: for others, or with the pusher that had it."""
        if session == self.session:
            self.dropped = intake.share
            self._duplicates += intake.duplicates
            if intake.next < intake.head and self._lost_logged.is_due():
                _log.warning(
                    "the pusher at %s has given our share to others: frames of it (%d) did not "
                    "come, although they were sent again",
                    self.endpoint, intake.head - intake.next - len(intake.later),
                )  # fmt: skip
        else:
            lost = intake.end()
            self._left_over.extend(intake.ready)
            self._duplicates += intake.duplicates
            if lost:
                self.lost += lost
                _log.error(
                    "the pusher at %s died with %d frames that it had sent and that did not come",
                    self.endpoint, lost,
                )  # fmt: skip
        self._intake = None
        self._close_pull()
        self._hello_ns = -(2**62)

    def _close_pull(self) -> None:
        if self._pull is not None:
            self._pulls_left.append(self._pull)
            self._pull = None
