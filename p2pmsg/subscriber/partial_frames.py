"""Frames that are on their way, and take long: large ones over a slow network.

A frame is seen when all of it is there. One of 10 MB takes 8 s over a link of 10 Mbit/s, in which
its connection would look silent, be made again, and the frame begin again at its first byte, for
ever. So who owns the sockets asks here for which of them it matters whether bytes come, and says
when the last one came.
"""

from typing import TYPE_CHECKING, Final

from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore

_ASKED_NS: Final = 100_000_000
"""An answer that takes longer is looked for; after 200 ms another route would be asked."""


def silent_lines(core: "SubscriberCore", now_ns: int) -> list[int]:
    """Return the lines over which no frame has come for half of `publisher_timeout`.

    Not those over which malformed ones came since: such bytes are no sign of the publisher.
    """
    since_ns = now_ns - to_ns(core.config.publisher_timeout) // 2
    found: list[int] = []
    for at, line in enumerate(core.lines):
        if line.last_heard_ns != line.heard_before_ns:
            line.heard_before_ns, line.invalid_before = line.last_heard_ns, line.invalid
        if line.since_ns < since_ns and line.invalid == line.invalid_before:
            found.append(at)
    return found


def awaited_answers(core: "SubscriberCore", now_ns: int) -> set[int]:
    """Return from which sessions, and relays, answers are due: the keys of their connections."""
    since_ns = now_ns - _ASKED_NS
    found = {
        route.key
        for peer in (core.peers.values() if len(core.gaps) else ())
        for route in peer.routes
        if route.asked_ns is not None and route.asked_ns < since_ns
    }
    return found | {
        key
        for key, relay in core.relays.upstreams.items()
        if relay.asked_ns is not None and relay.asked_ns < since_ns
    }


def on_line(core: "SubscriberCore", line: int, came_ns: int) -> None:
    """Note that the last byte came over a line then: it is not silent."""
    connection = core.lines[line]
    if came_ns <= connection.last_heard_ns:
        return
    connection.excused_ns = max(connection.excused_ns, came_ns)
    for peer in core.peers.values():
        if peer.session == connection.session or any(route.line == line for route in peer.relayed):
            peer.last_heard_ns = max(peer.last_heard_ns, came_ns)


def on_answer(core: "SubscriberCore", key: int, came_ns: int) -> None:
    """Note that the last byte came over a recovery channel then: its answers are on their way."""
    for peer in core.peers.values():
        for route in peer.routes:
            if route.key != key or route.asked_ns is None:
                continue
            route.asked_ns = max(route.asked_ns, came_ns)
            route.repaired_ns = max(route.repaired_ns, came_ns)
            peer.answered_ns = max(peer.answered_ns, came_ns)
    relay = core.relays.upstreams.get(key)
    if relay is not None and relay.asked_ns is not None:
        relay.asked_ns = max(relay.asked_ns, came_ns)
