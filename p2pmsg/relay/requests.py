"""Answers requests at a relay: as a publisher does for each session, and with the list of these."""

from collections.abc import Callable, Mapping, Sequence

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.relay.session import RelayedSession
from p2pmsg.wire import Frame, FrameError, Kind


class RelayRequests(RequestHandler):
    """Answers all requests at a relay.

    Args:
        sessions, queue, config: as for `RequestHandler`.
        relay: the relay's id.
        list_sessions: returns a page of their list, from an index on, which says what it carries.
        topics: the topics and prefixes that the relay takes; none: all.

    """

    def __init__(
        self,
        sessions: Mapping[int, RelayedSession],
        queue: ControlQueue,
        config: PublisherConfig,
        relay: int,
        list_sessions: Callable[[int, list[str]], bytes],
        topics: Sequence[str],
    ) -> None:
        super().__init__(sessions, queue, config)
        self._relay, self._list_sessions = relay, list_sessions
        self._topics = list(topics) if len(topics) <= control.CARRIES_MAX else []

    def _receive_other(self, requester: bytes, frame: Frame) -> None:
        if frame.kind != Kind.SESSIONS_REQUEST:
            super()._receive_other(requester, frame)
        if frame.session != self._relay:
            raise FrameError("session")
        access, topics = self.access, self._topics
        if access is not None and not access.has_any(requester):
            access.denied_requests += 1
            body = control.Denied("subscribe", ["*"], access.why(requester, "*"))
            self.send(requester, wire.control_frame(Kind.DENIED, self._relay, body))
            return
        if access is not None and access.denied(requester, topics):
            topics = []  # it is said to a user what is taken, or nothing
        self.send(requester, self._list_sessions(frame.sequence, topics))
