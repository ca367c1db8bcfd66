"""Which endpoint has which session: what is known of each, and which one is asked. Pure.

A publisher's endpoint has one session, a relay's all that the relay serves. A session may be at
several endpoints; it is read once, at its *home*, where it was read before. Its messages are
fetched from an endpoint that is reachable and keeps them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import p2pmsg

NO_TOPICS: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class PeerView:
    """What is known of one endpoint: its sessions, and the last heads of those that ended."""

    sessions: Mapping[int, p2pmsg.reader.Heads] = field(default_factory=dict)
    """Empty: it has not answered yet, or it is a relay that has none."""
    former: tuple[p2pmsg.reader.Heads, ...] = ()
    born: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By session, topics that began while it was watched: they are read from 0."""
    reachable: bool = True
    is_relay: bool = False
    denied: Mapping[str, p2pmsg.errors.AccessDeniedError] = field(default_factory=dict)
    """By topic: what there is no right to here, whether it exists or not."""

    def of_session(self, session: int) -> p2pmsg.reader.Heads | None:
        """Return the last heads of a session that is or was here."""
        found = self.sessions.get(session)
        if found is None:
            found = next((heads for heads in self.former if heads.session == session), None)
        return found

    def has_ended(self, session: int) -> bool:
        """Whether other sessions are here now."""
        return bool(self.sessions) and session not in self.sessions


@dataclass(frozen=True, slots=True)
class SessionLocation:
    """Where a session can be asked for ranges; sure if it is known to be there now."""

    endpoint: str
    heads: p2pmsg.reader.Heads
    is_sure: bool


class SessionDirectory:
    """All endpoints' views, looked up by session."""

    def __init__(self, views: Mapping[str, PeerView]) -> None:
        self.views = views
        self._by_session: dict[int, list[SessionLocation]] = {}
        for endpoint in sorted(views):
            view = views[endpoint]
            for session, heads in view.sessions.items():
                location = SessionLocation(endpoint, heads, view.reachable)
                self._by_session.setdefault(session, []).append(location)

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
        view = self.views.get(home, PeerView())
        if view.has_ended(session):
            return None
        unknown = p2pmsg.reader.Heads(
            publisher="", session=session, recovery_endpoint="", streams={}
        )
        return SessionLocation(home, view.of_session(session) or unknown, is_sure=False)

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
        """Return the endpoints that give no answer now, or have given none yet."""
        return [
            endpoint
            for endpoint, view in self.views.items()
            if not view.reachable or not (view.sessions or view.is_relay or view.denied)
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
            for heads in (*view.sessions.values(), *view.former):
                if heads.session in sessions and heads.publisher:
                    found.add(heads.publisher)
        return found


def _earliest(heads: p2pmsg.reader.Heads, topic: str) -> int:
    stream = heads.streams.get(topic)
    return 0 if stream is None else stream.earliest
