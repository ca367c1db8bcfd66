"""The sockets of a pipeline's pusher: a ROUTER for the recovery channel, a PUSH for each puller."""

import secrets
import time
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.control import Denied, decoded
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.queue.pipeline import frames
from p2pmsg.queue.pipeline.dealing import FAILURES_MAX, Dealer, Share
from p2pmsg.queue.pull_access import access_of
from p2pmsg.security.use import curve_server
from p2pmsg.wire import FLAG_CLOSING, Frame, FrameError, Kind, control_frame
from transports.own_log import own_log as _log
from transports.zmq_plain import ZmqPlainSocket

if TYPE_CHECKING:
    from p2pmsg.queue.pull_access import PullAccess
    from p2pmsg.security.settings import Security

GRACE_NS: Final = 200_000_000
"""How long a puller whose connection broke has to come back before its share is dealt to others: a
connection is made again within some 50 ms."""
PULLERS_MAX: Final = 256
"""How many pullers there may be; each has a socket of its own. Others wait until one leaves."""
_FRAMES_PER_TURN: Final = 1000
_LOOK_EVERY: Final = 16
"""Frames between two looks at the time."""
_TURN_NS: Final = 2_000_000
"""How long a turn goes on where there is always more."""
_AGAIN_BYTES_MAX: Final = 4 * 2**20
"""What one request for missing frames is answered with at most; the rest is asked for again."""
_QUEUE_FRAMES: Final = 100_000
"""More frames than a share may have; that is the bound."""
_PROBE_NS: Final = 10_000_000
_PROBE_FOR_NS: Final = 300_000_000
_BUSY_NS: Final = 5_000_000
_IDLE_NS: Final = 100_000_000


class Shares:
    """Takes what pullers say, and sends them what the dealer deals.

    Attributes:
        retransmitted: frames sent again. refused: states of shares that are gone.
        invalid: frames that could not be read.
        access_rules: what pullers may have; None: everything.

    """

    def __init__(
        self,
        server: transports.ZmqQueueServer,
        dealer: Dealer,
        ack_timeout: float,
        session: int,
        security: "Security | None",
        name: str,
    ) -> None:
        self._security = security
        self._name = name
        self.access_rules, self._watch = access_of(security, name, server)
        self._server = server
        self._dealer = dealer
        self._ack_timeout = ack_timeout
        self._session = session
        self._sockets: dict[int, ZmqPlainSocket] = {}
        self._pullers: dict[int, int] = {}
        self._broke_ns: dict[int, int] = {}
        self._made = 0
        self._probe_ns = self._probe_until_ns = 0
        self._logged_queue = False
        self.retransmitted = self.refused = self.invalid = 0

    @property
    def endpoint(self) -> str:
        """Where pullers connect to."""
        return self._server.endpoint

    def work(self, now_ns: int) -> int:
        """Read, deal, and give up pullers that are gone; return how long nothing is due, in ns."""
        if self._watch is not None and self._watch.poll():
            self._watch.end_revoked()
            self._check_access_rules(now_ns)
        has_more = self._read(now_ns)
        self._check(now_ns)
        dealer = self._dealer
        if dealer.waiting or dealer.aside:
            for share, number, piece in dealer.deal(self._can_take, now_ns=now_ns):
                frame = frames.jobs_frame(share.id, number, piece)
                self._sockets[share.id].send([frame])  # what does not go will be asked for
        if has_more:
            return 0
        if now_ns < self._probe_until_ns:
            return _PROBE_NS
        return _BUSY_NS if dealer.waiting and dealer.shares else _IDLE_NS

    def resync(self) -> None:
        """Put all right after an exception: close sockets of shares that there are not."""
        for number in self._sockets.keys() - self._dealer.shares.keys():
            self._sockets.pop(number).close()
        for share in self._dealer.shares.keys() - self._sockets.keys():
            self._dealer.give_up(self._dealer.shares[share], now_ns=time.monotonic_ns())
        self._pullers = {share.puller: share.id for share in self._dealer.shares.values()}

    def close(self) -> None:
        """Close all sockets; what is queued has half a second to leave."""
        for socket in self._sockets.values():
            socket.close(linger_ms=500)
        self._server.close(linger_ms=500)

    def _can_take(self, share: Share) -> bool:
        return self._sockets[share.id].wait_for_space(0)

    def _read(self, now_ns: int) -> bool:
        """Handle what has come; whether there may be more."""
        for count in range(_FRAMES_PER_TURN):
            if count % _LOOK_EVERY == 0 and time.monotonic_ns() - now_ns > _TURN_NS:
                return True
            request = self._server.receive()
            if request is None:
                return False
            identity, data = request
            try:
                frame = Frame(data)
                if self.access_rules is not None and self._is_denied(
                    self.access_rules, identity, now_ns
                ):
                    continue
                if frame.kind == Kind.PIPE_STATE:
                    self._take_state(identity, frame, now_ns)
                elif frame.kind == Kind.PIPE_HELLO:
                    self._take_hello(identity, frame, now_ns)
                else:
                    self._refuse_kind(frame)
            except FrameError:
                self.invalid += 1
        return True

    def _is_denied(self, access_rules: "PullAccess", identity: bytes, now_ns: int) -> bool:
        """Whether the user of the frame that came last may have nothing; it learns that."""
        user = self._server.user
        if access_rules.may_pull(user):
            return False
        self._deny(access_rules, identity, user, now_ns)
        return True

    def _deny(self, access_rules: "PullAccess", identity: bytes, user: str, now_ns: int) -> None:
        body = Denied("pull", [self._name], access_rules.deny(user, "pull", now_ns=now_ns))
        self._reply(identity, control_frame(Kind.DENIED, self._session, body))

    def _check_access_rules(self, now_ns: int) -> None:
        """Deal to others what those have who may not pull any more; called when rights changed."""
        access_rules = self.access_rules
        for share in list(self._dealer.shares.values()):
            if access_rules is not None and not access_rules.may_pull(share.user):
                self._deny(access_rules, share.identity, share.user, now_ns)
                self._give_up(share, "has no right to pull any more", now_ns)

    def _refuse_kind(self, frame: Frame) -> None:
        if frame.kind == Kind.QUEUE_HELLO and not self._logged_queue:
            self._logged_queue = True
            _log.warning(
                'a puller of a work queue has connected to %s, and gets nothing: it needs '
                'acknowledge="batch"', self.endpoint,
            )  # fmt: skip
        raise FrameError("kind")

    def _take_hello(self, identity: bytes, frame: Frame, now_ns: int) -> None:
        hello = decoded(frame, frames.decode_hello)
        known = self._pullers.get(frame.session)
        share = None if known is None else self._dealer.shares.get(known)
        if share is not None and share.user != self._server.user:
            raise FrameError("puller")  # it is another's
        if share is None:
            if len(self._dealer.shares) >= PULLERS_MAX:
                self.invalid += 1
                return
            share = self._open(identity, hello.name, frame.session, now_ns)
            if share is None:
                return
            self._pullers[frame.session] = share.id
        share.identity = identity
        share.last_heard_ns = now_ns
        welcome = frames.Welcome(share.id, self._sockets[share.id].endpoint, self._name)
        self._reply(identity, control_frame(Kind.PIPE_WELCOME, self._session, welcome))

    def _open(self, identity: bytes, name: str, puller: int, now_ns: int) -> Share | None:
        """Bind a PUSH socket for a puller; None where the system has none."""
        self._made += 1
        at = self._server.bound_to
        if at.scheme == "tcp":
            at = at.with_port(0)
        else:
            at = transports.parse_endpoint(f"{self._server.endpoint}.{self._made}")
        try:
            socket = ZmqPlainSocket(
                "push", at, binds=True, context=zmq_context(),
                queue_messages=_QUEUE_FRAMES, message_bytes_max=64 * 1024,
                curve=self._curve_of(self._server.user),
            )  # fmt: skip
        except transports.TransportError as error:
            _log.warning("no socket can be bound for the puller %r: %s", name, error)
            return None
        number, user = secrets.randbits(63), self._server.user
        share = Share(number, identity, name, now_ns, user, puller)
        self._sockets[share.id] = socket
        self._dealer.add(share)
        return share

    def _curve_of(self, user: str) -> "transports.CurveServer | None":
        """Return what a share's socket needs: with keys, nobody else may connect to it."""
        curve = curve_server(self._security)
        if curve is None:
            return None
        admits, why = curve.admits, curve.why
        return transports.CurveServer(
            curve.keys,
            lambda public: user if admits(public) == user else None,
            lambda public: why(public) if admits(public) is None else "another puller has it",
        )

    def _take_state(self, identity: bytes, frame: Frame, now_ns: int) -> None:
        state = decoded(frame, frames.decode_state)
        share = self._dealer.shares.get(frame.session)
        if share is None or share.user != self._server.user:
            self.refused += 1
            self._say_gone(identity, frame.session)
            return
        if not self._dealer.confirm(share, frame.sequence, state.part):
            return
        share.identity = identity
        share.last_heard_ns = now_ns
        self._broke_ns.pop(share.id, None)
        if frame.flags & FLAG_CLOSING:
            self._give_up(share, "left", now_ns)
            return
        if state.missing:
            self._send_again(share, state.missing)
            if share.unconfirmed is not None:
                self._give_up(share, "", now_ns)
                self._say_gone(identity, share.id)
                return
        self._reply(identity, control_frame(Kind.PIPE_HEAD, share.id, sequence=share.next))

    def _say_gone(self, identity: bytes, share: int) -> None:
        self._reply(identity, control_frame(Kind.PIPE_GONE, share, frames.Gone(self._session)))

    def _send_again(self, share: Share, ranges: list[tuple[int, int]]) -> None:
        for number, piece in self._dealer.again(share, ranges, _AGAIN_BYTES_MAX):
            self.retransmitted += 1
            self._reply(share.identity, frames.jobs_frame(share.id, number, piece))

    def _check(self, now_ns: int) -> None:
        """Give up pullers that are gone."""
        if self._server.broke():
            self._probe_until_ns = now_ns + _PROBE_FOR_NS
        shares = list(self._dealer.shares.values())
        if now_ns < self._probe_until_ns and now_ns >= self._probe_ns:
            self._probe_ns = now_ns + _PROBE_NS
            for share in shares:
                head = control_frame(Kind.PIPE_HEAD, share.id, sequence=share.next)
                if not self._reply(share.identity, head):
                    self._broke_ns.setdefault(share.id, now_ns)
        for share in shares:
            broke_ns = self._broke_ns.get(share.id)
            if broke_ns is not None and now_ns - broke_ns >= GRACE_NS:
                self._dealer.on_gone(share)
                self._give_up(share, "is gone", now_ns)
            elif now_ns - share.last_heard_ns > self._ack_timeout * 1e9:
                self._give_up(share, f"was silent for {self._ack_timeout} s", now_ns)

    def _give_up(self, share: Share, why: str, now_ns: int) -> None:
        jobs = self._dealer.give_up(share, now_ns=now_ns)
        self._sockets.pop(share.id).close()
        self._broke_ns.pop(share.id, None)
        for puller, number in list(self._pullers.items()):
            if number == share.id:
                del self._pullers[puller]
        while self._dealer.given_up:
            piece = self._dealer.given_up.popleft()
            _log.error(
                "job %d (%s bytes in a frame) is given up, since its puller's connection ended "
                "each time that it came, %d times alone, last that of %r",
                piece.first, f"{len(piece.body):,}", FAILURES_MAX, share.name,
            )  # fmt: skip
        if jobs and why:
            noun = "job" if jobs == 1 else "jobs"
            goes = f"{'goes' if jobs == 1 else 'go'} to others"
            if not self._dealer.shares:
                goes = f"{'waits' if jobs == 1 else 'wait'} for another one"
            _log.warning("the puller %r %s: its %d %s %s", share.name, why, jobs, noun, goes)

    def _reply(self, identity: bytes, frame: bytes) -> bool:
        """Send on the recovery channel; False where the puller is not reached."""
        return bool(self._server.reply(identity, frame))
