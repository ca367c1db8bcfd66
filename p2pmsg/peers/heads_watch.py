"""Following the heads of many publishers and relays."""

import selectors
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import transports
from p2pmsg import control
from p2pmsg.checks import checked
from p2pmsg.driver.lifecycle import check_process
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Verb, Wait
from p2pmsg.errors import AccessDeniedError, ConfigError, SecurityError
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.network import Network
from p2pmsg.peers.range_channel import RangeChannel
from p2pmsg.peers.settings import check_endpoints
from p2pmsg.ranges.heads import EndpointHeads, check_patterns
from p2pmsg.ranges.place import MS, Place
from p2pmsg.ranges.place_heads import PlaceHeads, heartbeat_prefixes
from p2pmsg.security.use import curve_client
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

R = TypeVar("R")
_ASKS_A_SECOND: Final = 1000
"""All publishers together are asked so often at most: a tenth of a core."""
_QUIET_ASKS_A_SECOND: Final = 200
"""And those who have nothing new: heartbeats report them anyway."""
_CEILING_NS: Final = 1000 * MS
_AGAIN_NS: Final = 250 * MS
"""How long it rests where a socket could not be made."""


class _Followed:
    """One endpoint: what is known of it, its sockets, and which of them the selector has."""

    __slots__ = ("channel", "fds", "heads")

    def __init__(self, heads: PlaceHeads, channel: RangeChannel) -> None:
        self.heads, self.channel = heads, channel
        self.fds: tuple[int, ...] = ()


class HeadsWatchPeer(Peer):
    """Many places; a selector says to which of them something has come.

    Attributes:
        version: counts how often anything changed of what its methods return.

    """

    thread_name = "p2pmsg-heads"
    kind = "heads watch"
    name = "the heads watch"

    def __init__(
        self, endpoints: Iterable[str], topics: list[str] | None, refresh_ns: int,
        time_ns: int | None, security: "Security | None", network: Network,
    ) -> None:  # fmt: skip
        self.now_ns = network.now_ns
        self._network = network
        self._security = security
        self._topics = topics
        self._refresh_ns = refresh_ns
        self._time_ns = time_ns
        self._followed: dict[str, _Followed] = {}
        self._due_ns = 0
        self.version = 0
        self.follow(endpoints)
        check_process()
        self._selector = selectors.DefaultSelector()
        self._fds = frozenset({self._selector.fileno()})

    # ------------------------------------------------------------------ for the driver

    def turn(self, now_ns: int) -> None:
        """Ask those who are due, and take what has come."""
        try:
            self._renew(now_ns)
            self._step(now_ns)
        except transports.ClosedError:
            raise
        except (transports.TransportError, SecurityError) as error:  # no descriptor, mostly
            _log.warning("it is tried again: %s", error)
            self._due_ns = now_ns + _AGAIN_NS

    def fds(self) -> frozenset[int]:
        """Return the selector's."""
        return self._fds

    def next_deadline_ns(self) -> int:
        """Return when somebody is to be asked."""
        return self._due_ns

    def resync(self) -> None:
        """Connect again, and ask all; what is known stays."""
        for each in self._followed.values():
            self._watch(each, ())
            each.channel.close()
            each.heads.resync(self.now_ns())
        self._due_ns = 0

    def shut(self) -> None:
        """Close the sockets."""
        self.closed_why = self.closed_why or CLOSED
        for endpoint in list(self._followed):
            self._forget(endpoint)
        self._selector.close()

    # ---------------------------------------------------------------- what never waits

    def follow(self, endpoints: Iterable[str]) -> None:
        """Follow these from now on."""
        wanted = {str(endpoint): check_endpoints(str(endpoint))[0] for endpoint in endpoints}
        for endpoint, at in wanted.items():
            if self._security is not None and at.is_datagram:
                raise ConfigError("endpoint", "tcp:// or ipc:// with security", endpoint)
            curve_client(self._security, at)
        self._wanted, self.places = wanted, ", ".join(wanted)
        self._due_ns = 0
        self.version += 1

    def heads(self) -> dict[str, EndpointHeads]:
        """Return what is known, by endpoint."""
        self.check_open()
        followed = self._followed
        known = {endpoint: one.heads.view(one.channel.found) for endpoint, one in followed.items()}
        return {endpoint: known.get(endpoint, EndpointHeads()) for endpoint in self._wanted}

    def count(self) -> int:
        """Return the version."""
        return self.version

    # --------------------------------------------------------------------------- verbs

    def wait_until_asked(self, timeout: float) -> Verb[bool]:
        """Wait until every publisher has answered once."""
        is_there: bool = yield Wait(self._all_answered, self.now_ns() + to_ns(timeout))
        for one in self._followed.values():
            for errors in one.heads.denied.values():
                first = next(iter(errors.values()))
                raise AccessDeniedError(first.verb, first.topic, first.reason)
        return is_there and not self.closed_why

    def _all_answered(self) -> bool:
        followed = self._followed
        return self.is_closed or all(
            endpoint in followed
            and (followed[endpoint].heads.has_answered or bool(followed[endpoint].heads.denied))
            for endpoint in self._wanted
        )

    # ------------------------------------------------------------------------ in a turn

    def _renew(self, now_ns: int) -> None:
        """Follow those that are wanted; those that stay are kept connected."""
        if self._wanted.keys() == self._followed.keys():
            return
        for endpoint in [each for each in self._followed if each not in self._wanted]:
            self._forget(endpoint)
        for endpoint, at in self._wanted.items():
            if endpoint not in self._followed:
                place, topics = Place(at), self._topics
                place.listen(now_ns)
                probe: control.Probe | None
                if self._time_ns is not None:  # which no heartbeat says
                    probe = control.Probe(0, topics or ["*"], "time", self._time_ns)
                else:
                    probe = None if topics is None else control.Probe(0, topics, "latest")
                heads = PlaceHeads(place, probe, follows=True, now_ns=now_ns)
                prefixes = heartbeat_prefixes(topics if self._time_ns is None else None)
                channel = RangeChannel(
                    place, self._network, security=self._security, prefixes=prefixes
                )
                self._followed[endpoint] = _Followed(heads, channel)

    def _forget(self, endpoint: str) -> None:
        one = self._followed[endpoint]
        self._watch(one, ())
        one.channel.close()
        del self._followed[endpoint]

    def _step(self, now_ns: int) -> None:
        session_count = sum(one.heads.session_count for one in self._followed.values())
        floor_ns = max(self._refresh_ns, session_count * 1000 * MS // _ASKS_A_SECOND)
        quiet_ns = session_count * 1000 * MS // _QUIET_ASKS_A_SECOND
        ceiling_ns = max(floor_ns, min(_CEILING_NS, quiet_ns))
        readable = {key.data for key, _ in self._selector.select(0)}
        due_ns, is_new = now_ns + _CEILING_NS, False
        for endpoint, one in self._followed.items():
            heads, channel = one.heads, one.channel
            is_due = now_ns >= heads.due_ns
            if is_due:
                was_reachable = heads.reachable
                heads.ask(now_ns, floor_ns, ceiling_ns)
                is_new |= heads.reachable != was_reachable
            if is_due or endpoint in readable or now_ns >= channel.next_deadline_ns(now_ns):
                frames = channel.turn(now_ns)
                self._watch(one, channel.fds, endpoint)
                is_new |= heads.take(frames, now_ns, floor_ns)
            due_ns = min(due_ns, heads.due_ns, channel.next_deadline_ns(now_ns))
        self._due_ns = due_ns
        self.version += is_new

    def _watch(self, one: _Followed, fds: tuple[int, ...], endpoint: str = "") -> None:
        """Have the selector look at the sockets of `one`; it looks at those it had before."""
        if one.fds == fds:
            return
        for fd in one.fds:
            with suppress(KeyError):  # an exception came between these lines
                self._selector.unregister(fd)
        one.fds = fds
        for fd in fds:
            self._selector.register(fd, selectors.EVENT_READ, endpoint)


class HeadsWatchBase(FaceBase):
    """What never waits; see the faces."""

    _closes_at_once = True
    _peer: HeadsWatchPeer

    @checked(refresh=0.001)
    def __init__(
        self,
        endpoints: Iterable[str],
        *,
        topics: Iterable[str] | None = None,
        refresh: float = 0.05,
        time_ns: int | None = None,
        security: "Security | None" = None,
    ) -> None:
        wanted = None if topics is None else check_patterns(sorted(topics))
        self._begin(HeadsWatchPeer, [*endpoints], wanted, to_ns(refresh), time_ns, security)

    @property
    def version(self) -> int:
        """Counts how often anything changed of what its methods return."""
        return self._read(self._peer.count)

    def heads(self) -> dict[str, EndpointHeads]:
        """Return what is known now, by endpoint.

        Raises:
            ClosedError: the watch is closed.

        """
        return self._read(self._peer.heads)

    def set_endpoints(self, endpoints: Iterable[str]) -> None:
        """Follow these from now on; those that stay are kept connected.

        Raises:
            ConfigError: one is no endpoint.
            AuthenticationError: no key is pinned for one.

        """
        self._driver.section.run(self._peer.follow, [*endpoints])
        self._driver.wake()
