"""`p2pmsg relay`: receive streams and serve them on."""

import argparse
from typing import TYPE_CHECKING

from p2pmsg import Relay
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import command, note, option
from p2pmsg.cli.program import repeat
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import counted

if TYPE_CHECKING:
    from p2pmsg.relay import RelayStats


@command(
    "relay",
    option("--from", "a publisher, or another relay; several separated by commas, or by repeating "
           "the option", "ENDPOINT", kinds.endpoints, dest="upstreams", action="extend",
           required=True),
    option("--listen", "where to bind: tcp://HOST:PORT (port 0 picks one) or ipc://PATH",
           "ENDPOINT", required=True),
    kinds.RECOVERY,
    kinds.SERVED_TOPICS,
    option("--name", "the relay's name (default: the endpoint)"),
    option("--log", "keep what is received in this log", "DIR"),
    kinds.STATS,
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def relay(arguments: argparse.Namespace) -> int:
    """Receive streams and serve them on.

    Subscribers of the relay get what the publishers publish, and what they missed, also when a
    publisher has ended. With --log the relay itself may end, too: started again with the
    same directory it serves what it has, and continues after it. It runs until Ctrl-C.

    For example:
      p2pmsg relay --from tcp://127.0.0.1:5556 --listen 'tcp://*:5557' --log relay.log
      p2pmsg relay --from tcp://a:5556,tcp://b:5556 --listen 'tcp://*:5557' --topics 'trades.*'
    """
    with Relay(
        arguments.upstreams,
        arguments.listen,
        name=arguments.name,
        topics=arguments.topics,
        recovery_endpoint=arguments.recovery,
        log=arguments.log,
        security=security_of(arguments),
    ) as running:
        note("relay", f"listening at {running.endpoint}")

        def report() -> None:
            note("relay", _summary(running.stats()))

        try:
            repeat(report, arguments.stats)
        finally:
            report()
    return 0


def _summary(stats: "RelayStats") -> str:
    log = stats.log
    counts = {
        "messages received": stats.received,
        "lost": stats.lost,
        f"streams of {len(stats.sessions):,} sessions": len(stats.streams),
        "repaired": sum(stats.repaired.values()),
        "subscribers": stats.subscribers,
        "bytes of log": 0 if log is None else log.bytes,
        "requests and subscriptions denied": stats.requests_denied + stats.subscriptions_refused,
        "topics denied to it, see the log": stats.denied,
    }
    parts = counted(counts, always=5)
    if log is not None and log.failed is not None:
        parts.append(f"the log failed: {log.failed}")
    if stats.refused:
        parts.append(f"refused as a loop: {', '.join(stats.refused)}")
    return "; ".join(parts)
