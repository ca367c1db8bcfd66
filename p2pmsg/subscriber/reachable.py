"""Says who is heard over the data path, and does not answer over the recovery channel.

Nothing of such a publisher is delivered: only its answer says where its streams stand. Mostly a
firewall, or a container, lets the one port through and not the other.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.relays import RelayConnection
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.states import State

FIRST_NS: Final = 5_000_000_000
"""How long an answer is waited for until it is said that none has come."""
HEARD_NS: Final = 2_000_000_000
"""Who was not heard for so long is silent, which is said elsewhere."""
AGAIN_NS: Final = 60_000_000_000


class Reached:
    """Looks for publishers and relays that are heard, and have never answered."""

    def __init__(
        self,
        lines: Sequence[Connection],
        peers: Mapping[int, Session],
        relays: Mapping[int, RelayConnection],
        effects: Effects,
    ) -> None:
        self._lines = lines
        self._peers = peers
        self._relays = relays
        self._effects = effects
        self._due_ns = [0] * len(lines)

    def check(self, now_ns: int) -> None:
        """Say who does not answer: after 5 s, and then once a minute; see `Connection.one_way`."""
        for index, line in enumerate(self._lines):
            line.one_way = self._who(line, now_ns)
            if line.one_way and now_ns >= self._due_ns[index]:
                self._due_ns[index] = now_ns + AGAIN_NS
                self._effects.warn(index, line.session or 0, line.one_way)

    def _who(self, line: Connection, now_ns: int) -> str:
        if line.shared or now_ns - line.last_heard_ns > HEARD_NS:
            return ""
        if line.relay is not None:
            up = self._relays.get(line.relay)
            if up is None or up.complete or now_ns - up.met_ns < FIRST_NS:
                return ""
            return _text(f"relay {up.name!r}", up.recovery, now_ns - up.met_ns)
        peer = None if line.session is None else self._peers.get(line.session)
        if peer is None or peer.probe is None or peer.state not in (State.MET, State.UNCONFIRMED):
            return ""
        since_ns = max(peer.own.met_ns, peer.answered_ns)
        if peer.answered_ns > peer.handshake.began_ns or now_ns - since_ns < FIRST_NS:
            return ""
        return _text(f"publisher {peer.name!r}", peer.own.recovery, now_ns - since_ns)


def _text(who: str, recovery: str, waited_ns: int) -> str:
    return (
        f"{who} is heard, but nothing of it is delivered: its recovery endpoint {recovery} has not "
        f"answered for {waited_ns / 1e9:.0f} s. Can it be reached from here (a firewall, a "
        f"container, a host name)? `recovery_endpoint` of the publisher says where it is"
    )
