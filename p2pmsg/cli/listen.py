"""`p2pmsg listen`: print what a multicast carries: sessions, topics, rates, loss."""

import argparse
import json
import math
import select
import time
from typing import Any

from p2pmsg.cli.arguments import number, seconds
from p2pmsg.cli.command import UsageError, command, flag, note, one_line, option
from p2pmsg.cli.text import render_columns
from p2pmsg.errors import translated
from p2pmsg.listener import Listener, StreamView
from p2pmsg.toolkit import UdpReceiver, parse_endpoint

_TRAINS_PER_LOOK = 64
_TITLES = ("publisher", "session", "topic", "msg/s", "MB/s", "next", "missing", "repairs", "from")


@command(
    "listen",
    option("endpoint", "udp://GROUP:PORT or mold://GROUP:PORT, with ?interface=… where it matters",
           "ENDPOINT"),
    option("--interval", "print so often, in seconds (default: 1)", "S", number(0.01, 1e9),
           default=1.0),
    option("--seconds", "end after so many seconds (default: with Ctrl-C)", "S", seconds),
    flag("--json", "print one JSON object for each stream and interval"),
    ended_by=("seconds",),
)  # fmt: skip
def listen(arguments: argparse.Namespace) -> int:
    """Print what a multicast carries: its sessions, topics, rates and loss.

    It only listens: it joins no publisher, asks for no repair, and disturbs nobody. `missing`
    counts the messages that did not arrive here and were not seen to be repaired. At
    the end the rest of the last interval is printed, after Ctrl-C, too. What is sealed
    (`security=`) it counts, and cannot read.

    For example:
      p2pmsg listen 'udp://239.1.1.1:5000?interface=eth0'
      p2pmsg listen mold://233.54.12.111:26477 --interval 5
      p2pmsg listen udp://239.1.1.1:5000 --seconds 10 --json
    """
    with translated():
        endpoint = parse_endpoint(arguments.endpoint)
        if endpoint.scheme not in ("udp", "mold"):
            raise UsageError(f"take udp:// or mold:// here: {arguments.endpoint!r}")
        listener = Listener(mold=endpoint.scheme == "mold")
        receiver = UdpReceiver(endpoint)
        try:
            receiver.connect()
            _listen(receiver, listener, arguments)
        finally:
            receiver.close()
    return 0


def _listen(receiver: UdpReceiver, listener: Listener, arguments: argparse.Namespace) -> None:
    poll = select.poll()
    poll.register(receiver.socket, select.POLLIN)
    table = _Table(listener, receiver, as_json=arguments.json)
    end_s = math.inf if arguments.seconds is None else table.shown_s + arguments.seconds
    try:
        note("listen", f"listening to {arguments.endpoint}")
        while (now_s := time.monotonic()) < end_s:
            due_s = min(table.shown_s + arguments.interval, end_s)
            if now_s >= due_s:
                table.show(now_s)
            elif poll.poll(max(0.0, due_s - now_s) * 1000 + 1):
                for _ in range(_TRAINS_PER_LOOK):
                    received = receiver.receive()
                    if received is None:
                        break
                    listener.receive(*received)
    finally:
        table.show(time.monotonic())


class _Table:
    """Prints what was heard since the last time.

    Attributes:
        shown_s: when that was; at first, when it began.

    """

    def __init__(self, listener: Listener, receiver: UdpReceiver, *, as_json: bool) -> None:
        self.shown_s = time.monotonic()
        self._listener = listener
        self._receiver = receiver
        self._as_json = as_json
        self._before: dict[tuple[str, str], tuple[int, int]] = {}

    def show(self, now_s: float) -> None:
        """Print it."""
        seconds, self.shown_s = max(now_s - self.shown_s, 1e-9), now_s
        rows = []
        for key, view in sorted(self._listener.streams.items()):
            messages, size = self._before.get(key, (0, 0))
            rates = (view.messages - messages) / seconds, (view.bytes - size) / seconds
            self._before[key] = view.messages, view.bytes
            rows.append(_as_dict(view, *rates))
        lines = list(map(json.dumps, rows)) if self._as_json else self._lines(rows)
        if lines:
            print(*lines, sep="\n", flush=True)

    def _lines(self, rows: list[dict[str, Any]]) -> list[str]:
        table = map(_as_row, rows)
        lines = [render_columns(_TITLES, table, len(_TITLES))] if rows else []
        invalid = self._listener.invalid
        notes = [f"{count} invalid ({reason})" for reason, count in invalid.items()]
        if self._receiver.kernel_drops:
            notes.append(f"{self._receiver.kernel_drops} dropped here by the kernel")
        if notes:
            lines.append(f"datagrams: {', '.join(notes)}")
        return [*lines, ""] if lines else []


def _as_dict(view: StreamView, messages_s: float, bytes_s: float) -> dict[str, Any]:
    return {
        "publisher": view.publisher,
        "session": view.session,
        "topic": view.topic,
        "address": view.address,
        "messages_s": round(messages_s, 1),
        "bytes_s": round(bytes_s, 1),
        "messages": view.messages,
        "next": view.next,
        "missing": view.missing_count,
        "repairs": view.repairs,
    }


def _as_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        one_line(row["publisher"]) or "?",
        one_line(row["session"]),
        one_line(row["topic"]),
        f"{row['messages_s']:,.0f}",
        f"{row['bytes_s'] / 1e6:,.2f}",
        *(f"{row[name]:,}" for name in ("next", "missing", "repairs")),
        row["address"],
    )
