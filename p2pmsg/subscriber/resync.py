"""Putting a subscriber's state machine right, after an exception cut one of its methods short.

The thread that waits in `receive` does the work, so Ctrl-C may come anywhere in it. Certain then
is what stands in `ready` or was taken from there: each is one step. What comes after it is asked
for again.
"""

from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.effects import Action, Command
from p2pmsg.subscriber.sessions import Stream
from recovery import Delivery, LossReason, Rewound


def resync(core: SubscriberCore, *, now_ns: int) -> None:
    """Rewind every stream to what was handed on; it may be called again, should it be cut short."""
    kept: dict[int, tuple[int, int]] = {}
    core.ready.recount()
    for stream, output in list(core.ready):
        delivered = stream.delivered_to or 0, stream.delivered_count
        before, messages = kept.get(id(stream), delivered)
        if isinstance(output, Delivery):
            stop = output.sequence + output.count
            kept[id(stream)] = (max(stop, before), messages + output.count)
        elif not isinstance(output, Rewound):
            kept[id(stream)] = (max(output.stop, before), messages)
    core.forget_last()
    core.table.effects.forget_received()
    core.gaps.clear()
    core.stream_table.count = len(core.streams)
    _resync_peers(core, now_ns)
    core.relays.ask_again(now_ns)
    for peer in core.peers.values():
        for route in peer.relayed:
            core.table.probe_route(peer, route, now_ns)
    for stream in core.streams:
        stream.peer.gaps = 0
    for stream in core.streams:
        position = stream.delivered_to, stream.delivered_count
        _rewind(stream, *kept.get(id(stream), position), now_ns)
        if stream.receiver.started or stream.peer.gone or not stream.peer.joined:
            pass
        else:
            # It was about to begin, as one that is younger than what the echo said.
            core.stream_table.begin(stream, now_ns=now_ns)
        core.stream_table.drain(stream)


def _resync_peers(core: SubscriberCore, now_ns: int) -> None:
    in_use = {line.session for line in core.lines}
    for session, peer in list(core.peers.items()):
        if peer.gone:
            continue
        if not peer.direct and (peer.relayed or peer.joined):
            continue  # where its last route went, it ends when that is due
        if peer.own.line < 0:  # it was about to be made
            del core.peers[session]
            for index, line in enumerate(core.lines):
                if line.session == session:
                    line.session = None
                core.commands.append(Command(Action.RECONNECT, index))
        elif (
            session not in in_use
            and peer.feedback is None  # a group's line has several
            and peer.own.recovery  # a feed's servers answer for its former sessions
        ):
            core.table.end(peer, now_ns)
        else:
            endpoint = peer.own.recovery
            core.commands.append(Command(Action.CONNECT, peer.own.line, session, endpoint))
            if peer.probe is not None:
                core.table.send_probe(peer, peer.own.line, now_ns)


def _rewind(stream: Stream, expected: int | None, handed: int, now_ns: int) -> None:
    receiver = stream.receiver
    receiver.rewind(receiver.start if expected is None else expected, handed, now_ns=now_ns)
    if stream.retired:
        receiver.give_up(LossReason.REWOUND)
    elif stream.peer.gone:
        receiver.give_up(LossReason.PUBLISHER_GONE)
