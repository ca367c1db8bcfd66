"""Says of which publishers and relays one channel works and another one does not. No I/O.

Mostly a firewall, a container or a switch lets one port through and not the other::

    the data path  the recovery channel
    heard          has never answered    nothing is delivered: only answers say where streams stand
    silent         answers               what is missing is asked for there, some seconds late
    heard          answers               the same, where no repair comes by UDP in a group
"""

from typing import Final

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.rejoin import Rejoin, needs_data
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.session_table import SessionTable
from p2pmsg.subscriber.sessions import VAIN_MAX, Session
from p2pmsg.subscriber.states import State

FIRST_NS: Final = 5_000_000_000
"""How long an answer is waited for until it is said that none has come."""
HEARD_NS: Final = 2_000_000_000
"""Who was not heard for so long is silent, which is said elsewhere."""
AGAIN_NS: Final = 60_000_000_000


class OneWay:
    """Looks for such channels; see `Connection.one_way`."""

    def __init__(self, table: SessionTable, rejoin: Rejoin) -> None:
        self._table = table
        self._rejoin = rejoin
        self._due_ns = [0] * len(table.lines)

    def check(self, now_ns: int) -> None:
        """Say it of each line, at once and then once a minute."""
        table = self._table
        found = {at: self._unanswered(line, now_ns) for at, line in enumerate(table.lines)}
        for peer in table.peers.values():
            for route in () if peer.gone else peer.routes:
                at = route.line
                found[at] = found.get(at) or self._silent(peer, route, now_ns)
            if peer.group is not None and peer.group.sources:
                at, address = peer.group.place(table.lines)
                found[at] = found[at] or _not_by_udp(peer, address)
        for at, line in enumerate(table.lines):
            line.one_way = found[at]
            if line.one_way and now_ns >= self._due_ns[at]:
                self._due_ns[at] = now_ns + AGAIN_NS
                table.effects.warn(at, line.session or 0, line.one_way)

    def _unanswered(self, line: Connection, now_ns: int) -> str:
        """Say who is heard and has never answered."""
        if line.shared or now_ns - line.last_heard_ns > HEARD_NS:
            return ""
        if line.relay is not None:
            up = self._table.relays.upstreams.get(line.relay)
            if up is None or up.complete:
                return ""
            who, recovery, since_ns = f"relay {up.name!r}", up.recovery, up.met_ns
        else:
            peer = self._table.peers.get(line.session or 0)
            if peer is None or peer.probe is None or peer.answered_ns > peer.own.echo.since_ns:
                return ""
            if peer.state not in (State.MET, State.UNCONFIRMED):
                return ""
            since_ns = peer.own.echo.since_ns
            who, recovery = f"publisher {peer.name!r}", peer.own.recovery
        if now_ns - since_ns < FIRST_NS:
            return ""
        return (
            f"{who} is heard, but nothing of it is delivered: its recovery endpoint {recovery} has "
            f"not answered for {(now_ns - since_ns) / 1e9:.0f} s. Can it be reached from here (a "
            f"firewall, a container, a host name)? `recovery_endpoint` of the publisher says where "
            f"it is"
        )

    def _silent(self, peer: Session, route: Route, now_ns: int) -> str:
        """Say who answers and is not heard."""
        if route.silent is None or not route.silent.answers or not needs_data(peer, route):
            return ""
        what, name, recovery = "publisher", peer.name, peer.own.recovery
        upstream = self._table.relays.upstreams.get(route.key)
        if route is not peer.own and upstream is not None:
            what, name, recovery = "relay", upstream.name, upstream.recovery
        silent_ns = now_ns - self._rejoin.last_heard_ns(peer, route)
        return (
            f"{what} {name!r} answers at its recovery endpoint {recovery}, but nothing of "
            f"it has come over the data path for {silent_ns / 1e9:.0f} s: what is missing is asked "
            f"for there, some seconds late. Does anything drop the data path (a firewall, a switch "
            f"that forgot this member of a group)?"
        )


def _not_by_udp(peer: Session, address: object) -> str:
    """Say who of a group is heard, and repairs nothing by UDP."""
    if peer.gone or peer.group is None or peer.group.vain < VAIN_MAX or peer.own.repaired_ns < 0:
        return ""
    place = str(address)
    if isinstance(address, tuple):
        host, port = address[:2]
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return (
        f"no repair of publisher {peer.name!r} comes by UDP: {VAIN_MAX} times in a row what was "
        f"missing was asked for at {place} in vain, and then repaired over its recovery "
        f"endpoint {peer.own.recovery}. It is asked for there at once from now on, and by UDP "
        f"again after a minute. Does a firewall or a NAT drop UDP from here to {place}, where its "
        f"datagrams come from, or the network large datagrams (datagram_bytes)?"
    )
