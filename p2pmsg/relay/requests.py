"""Answers requests at a relay: lists its sessions, and gives other requests to their session."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from p2pmsg import control, wire
from p2pmsg.publisher.forgotten import count_names
from p2pmsg.publisher.requests import REPLIES_MAX, KnownSubscriber, Reply, RequestHandler
from p2pmsg.publisher.session_access import AccessRules
from p2pmsg.relay.session import RelayedSession
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import SentFrames


class RelayRequests:
    """Answers all requests at a relay; the shell calls it as it calls a `RequestHandler`.

    Args:
        relay: the relay's id.
        sessions: those that it serves, by their ids; a view.
        list_sessions: returns a page of their list, from an index on, which says what it carries.
        topics: the topics and prefixes that the relay takes; none: all.
        frames: numbers what goes to each requester, whatever it is.

    Attributes:
        invalid: malformed or unexpected frames by reason, of all sessions.
        replies_dropped: lists of sessions that were dropped at the bound.

    """

    def __init__(
        self,
        relay: int,
        sessions: Mapping[int, RelayedSession],
        list_sessions: Callable[[int, list[str]], bytes],
        topics: Sequence[str] = (),
        *,
        frames: SentFrames,
    ) -> None:
        self._relay = relay
        self._sessions = sessions
        self._list_sessions = list_sessions
        self._frames = frames
        self._topics = list(topics)
        self._own: list[Reply] = []
        self._busy: dict[RequestHandler, None] = {}
        self._current: RequestHandler | None = None
        self.invalid: Counter[str] = Counter()
        self.replies_dropped = self._denied = 0
        self._access_rules: AccessRules | None = None

    def use_access_rules(self, access_rules: AccessRules) -> None:
        """List the sessions only for those who may have anything; see `RequestHandler`."""
        self._access_rules = access_rules

    def resync(self) -> None:
        """Go on after an exception at any line: what is lost of requests is asked for again."""
        self._current = None
        for served in self._sessions.values():
            served.requests.resync()
            self._busy[served.requests] = None

    def on_malformed(self, count: int) -> None:
        """Note how many requests have come so far that are of more than one part."""
        if count:
            self.invalid["parts"] = count

    def on_revoked(self) -> None:
        """Count a request of a user that is revoked."""
        self.invalid["revoked"] += 1

    def receive(
        self, requester: bytes, data: bytes, *, now_ns: int, user: str = "", wall_ns: int = 0
    ) -> None:
        """Take a request."""
        try:
            frame = Frame(data)
            if frame.kind == Kind.SESSIONS_REQUEST:
                if frame.session != self._relay:
                    raise FrameError("session")
                self._reply_sessions(requester, frame.sequence, user)
                return
            served = self._sessions.get(frame.session)
            if served is None:
                raise FrameError("session")
        except FrameError as error:
            self.invalid[str(error)] += 1
            return
        served.requests.receive(requester, data, now_ns=now_ns, user=user, wall_ns=wall_ns)
        self._busy[served.requests] = None

    def _reply_sessions(self, requester: bytes, at: int, user: str) -> None:
        if len(self._own) >= REPLIES_MAX:
            self.replies_dropped += 1
            return
        if self._access_rules is not None and not self._access_rules.has_any(user, "subscribe"):
            why = self._access_rules.why(user, "subscribe", "*")
            body = control.Denied("subscribe", ["*"], why)
            self._denied += 1
            denied = wire.control_frame(Kind.DENIED, self._relay, body)
            self._own.append(Reply(requester, denied))
            return
        self._own.append(Reply(requester, self._list_sessions(at, self._carries(user))))

    def _carries(self, user: str) -> list[str]:
        """Return what is said to a user of what is taken: all of it, or nothing."""
        topics, access_rules = self._topics, self._access_rules
        if len(topics) > control.CARRIES_MAX:
            return []
        if access_rules is not None and not all(
            access_rules.may(user, "subscribe", one) for one in topics
        ):
            return []
        return topics

    def next_reply(self, *, now_ns: int) -> Reply | None:
        """Return what to send next, or None; sessions take turns."""
        self._current = None
        if self._own:
            return self._own[0]
        for _ in range(len(self._busy)):
            handler = next(iter(self._busy))
            del self._busy[handler]
            reply = handler.next_reply(now_ns=now_ns)
            if reply is not None or handler.next_deadline_ns(now_ns=now_ns) is not None:
                self._busy[handler] = None
            if reply is not None:
                self._current = handler
                return reply
        return None

    def read(self, reply: Reply) -> bool:
        """As `RequestHandler.read`."""
        return self._current is not None and self._current.read(reply)

    def refuse(self, reply: Reply) -> None:
        """As `RequestHandler.refuse`."""
        if self._current is not None:
            self._current.refuse(reply)

    def reply_sent(self, reply: Reply, *, now_ns: int) -> None:
        """As `RequestHandler.reply_sent`."""
        if self._current is None:
            self._own.pop(0)
            self._frames.note(reply.requester)
        else:
            self._current.reply_sent(reply, now_ns=now_ns)

    def reply_blocked(self, reply: Reply, *, now_ns: int) -> None:
        """As `RequestHandler.reply_blocked`."""
        if self._current is None:
            self._own.pop(0)
            self.replies_dropped += 1
        else:
            self._current.reply_blocked(reply, now_ns=now_ns)

    def requester_gone(self, reply: Reply, *, now_ns: int) -> None:
        """As `RequestHandler.requester_gone`."""
        if self._current is None:
            self._own.pop(0)
        else:
            self._current.requester_gone(reply, now_ns=now_ns)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """As `RequestHandler.next_deadline_ns`."""
        if self._own:
            return now_ns
        deadlines = [handler.next_deadline_ns(now_ns=now_ns) for handler in self._busy]
        return min((due_ns for due_ns in deadlines if due_ns is not None), default=None)

    def expire(self, *, now_ns: int) -> None:
        """Forget subscribers that have not been heard of."""
        for served in list(self._sessions.values()):
            served.requests.expire(now_ns=now_ns)

    def forget(self, handler: RequestHandler) -> None:
        """Forget the request handler of a session that is served no more."""
        self._busy.pop(handler, None)

    def forget_completions(self) -> None:
        """Wait for every subscriber to say again that it has everything."""
        for served in list(self._sessions.values()):
            served.requests.forget_completions()

    @property
    def subscribers(self) -> dict[int, KnownSubscriber]:
        """Those who confirmed for any session, by their ids."""
        found: dict[int, KnownSubscriber] = {}
        for served in list(self._sessions.values()):
            found.update(served.requests.subscribers)
        return found

    @property
    def denied(self) -> int:
        """How many requests were denied, as a whole or in part."""
        return self._denied + sum(each.requests.denied for each in list(self._sessions.values()))

    @property
    def incomplete(self) -> int:
        """How many subscribers have not said that they have everything."""
        incomplete: set[int] = set()
        for served in list(self._sessions.values()):
            known = list(served.requests.subscribers.items())
            incomplete.update(subscriber for subscriber, it in known if not it.complete)
        return len(incomplete)

    @property
    def undelivered(self) -> int:
        """How many have not said so, those who were forgotten included."""
        return self.incomplete + sum(self.forgotten_names.values())

    @property
    def forgotten_names(self) -> dict[str, int]:
        """Of each name, how many were forgotten, and are there for no session any more."""
        subscribers, names, others = self.subscribers, dict[int, str](), 0
        for served in list(self._sessions.values()):
            names.update(served.requests.forgotten.names)
            others = max(others, served.requests.forgotten.others)
        return count_names((name for one, name in names.items() if one not in subscribers), others)

    @property
    def messages_repaired(self) -> dict[str, int]:
        """Messages that were asked for and sent again, by the source that had them."""
        total = {"buffer": 0, "log": 0}
        for served in list(self._sessions.values()):
            for source, count in served.requests.messages_repaired.items():
                total[source] += count
        return total

    @property
    def frames_invalid(self) -> dict[str, int]:
        """Malformed or unexpected requests by reason, those of all sessions included."""
        total = Counter(self.invalid)
        for served in list(self._sessions.values()):
            total.update(served.requests.invalid)
        return dict(total)
