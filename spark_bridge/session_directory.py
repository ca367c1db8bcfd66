"""Which endpoint has which session: what is known of each, and which one is asked. Pure.

A publisher's endpoint has one session, a relay's all that the relay serves. A session may be at
several endpoints; it is read once, at its *home*, where it was read before. Its messages are
fetched from an endpoint that is reachable and keeps them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import p2pmsg


@dataclass(frozen=True, slots=True)
class SessionLocation:
    """Where a session can be asked for ranges; sure if it is known to be there now."""

    endpoint: str
    heads: p2pmsg.reader.Heads
    is_sure: bool


class SessionDirectory:
    """What is known of all endpoints, looked up by session.

    Args:
        views: by endpoint, as `HeadsWatch.heads()` has it.

    """

    def __init__(self, views: Mapping[str, p2pmsg.reader.EndpointHeads]) -> None:
        self.views = views
        self._by_session: dict[int, list[SessionLocation]] = {}
        for endpoint in sorted(views):
            view = views[endpoint]
            for session, heads in view.sessions.items():
                location = SessionLocation(endpoint, heads, view.reachable)
                self._by_session.setdefault(session, []).append(location)

    @property
    def sessions(self) -> Iterable[int]:
        """The sessions that any endpoint has."""
        return self._by_session.keys()

    def last_heads(self, endpoint: str, session: int) -> p2pmsg.reader.Heads | None:
        """Return the last known heads of a session that is or was at an endpoint."""
        view = self.views.get(endpoint)
        return None if view is None else view.sessions.get(session) or view.former.get(session)

    def has_ended(self, endpoint: str, session: int) -> bool:
        """Whether other sessions are at an endpoint now."""
        view = self.views.get(endpoint)
        return view is not None and bool(view.sessions) and session not in view.sessions

    def where(
        self, home: str, session: int, topic: str | None = None, start: int = 0
    ) -> SessionLocation | None:
        """Return the best location that has a session, where one is known.

        One that is reachable goes before one that is not, then one that keeps the messages of
        `topic` from `start` on, then home.
        """
        locations = self._by_session.get(session)
        if locations is None:
            return None
        if len(locations) == 1:
            return locations[0]
        return min(
            locations,
            key=lambda location: (
                not location.is_sure,
                topic is not None and _earliest(location.heads, topic) > start,
                location.endpoint != home,
            ),
        )

    def find(
        self, home: str, session: int, topic: str | None = None, start: int = 0
    ) -> SessionLocation | None:
        """Return where to fetch a session's messages; None where it has ended.

        More than `where`: a peer of which nothing is known may come back with the session.
        """
        location = self.where(home, session, topic, start)
        if location is not None:
            return location
        if self.has_ended(home, session):
            return None
        unknown = p2pmsg.reader.Heads(
            publisher="", session=session, recovery_endpoint="", streams={}
        )
        known = self.last_heads(home, session) or unknown
        return SessionLocation(home, known, is_sure=False)

    def homes(
        self, read_at: Mapping[int, str] | None = None
    ) -> Iterator[tuple[str, p2pmsg.reader.Heads]]:
        """Yield each session once, with its home, in the order of endpoints.

        Args:
            read_at: the endpoints of sessions that are being read. Others are read at their
                publisher rather than at a relay.

        """
        at = dict(read_at or {})
        for session, locations in self._by_session.items():
            if session not in at:
                endpoints = (location.endpoint for location in locations)
                at[session] = min(endpoints, key=lambda each: (self.views[each].is_relay, each))
        for endpoint in sorted(self.views):
            for session, heads in self.views[endpoint].sessions.items():
                if at[session] == endpoint:
                    yield endpoint, heads

    def away(self) -> list[str]:
        """Return the endpoints that give no answer now, or have not given all of it yet."""
        return [
            endpoint
            for endpoint, view in self.views.items()
            if not view.reachable
            or view.unanswered
            or not (view.sessions or view.is_relay or view.denied)
        ]

    def denied(self) -> dict[str, list[str]]:
        """Return the topics that peers deny, by endpoint."""
        return {
            endpoint: sorted(view.denied)
            for endpoint, view in sorted(self.views.items())
            if view.denied
        }

    def names(self, sessions: Mapping[int, str]) -> set[str]:
        """Return the names of the publishers of these sessions, as far as they are known."""
        found = set()
        for view in self.views.values():
            for heads in (*view.sessions.values(), *view.former.values()):
                if heads.session in sessions and heads.publisher:
                    found.add(heads.publisher)
        return found


def _earliest(heads: p2pmsg.reader.Heads, topic: str) -> int:
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.earliest
