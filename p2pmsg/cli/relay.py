"""`p2pmsg relay`: receive streams and serve them on."""

import argparse
import sys
import threading
import time
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.arguments import UsageError
from p2pmsg.cli.log_access import MissingExtraError
from p2pmsg.errors import ConfigError
from p2pmsg.publisher.log import import_log
from p2pmsg.relay.stats import RelayStats
from p2pmsg.sync.relay import Relay

_TICK_S = 0.2
_DESCRIPTION = """\
Receive streams and serve them on.

Subscribers of the relay get what the publishers publish, and what they missed, also when a
publisher has gone for good. With --log it survives its own end, too: started again with the same
directory it serves what it has, and goes on behind it. It runs until Ctrl-C.

examples:
  p2pmsg relay --from tcp://127.0.0.1:5556 --listen 'tcp://*:5557' --log var/relay
  p2pmsg relay --from tcp://a:5556,tcp://b:5556 --listen 'tcp://*:5557' --topics 'trades.*'
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "relay", _DESCRIPTION, run)
    parser.set_defaults(ends=())
    parser.add_argument(
        "--from", dest="upstreams", metavar="ENDPOINT", type=kinds.connect_endpoints,
        action="append", required=True,
        help="a publisher, or another relay; several by commas, or by repeating the option",
    )  # fmt: skip
    parser.add_argument(
        "--listen", metavar="ENDPOINT", type=kinds.bind_endpoint, required=True,
        help="where to bind: tcp://HOST:PORT (port 0 picks one) or ipc://PATH",
    )  # fmt: skip
    parser.add_argument(
        "--recovery", metavar="ENDPOINT", type=kinds.bind_endpoint,
        help="where repairs are asked for (default: the same host, any free port)",
    )  # fmt: skip
    parser.add_argument(
        "--topics", metavar="TOPIC", type=kinds.topic_or_prefix, nargs="+", default=None,
        help="what to relay: topics, and prefixes with a * behind them (default: all)",
    )  # fmt: skip
    parser.add_argument("--name", help="the relay's name (default: the endpoint)")
    parser.add_argument("--log", metavar="DIR", help="keep what is received in a log there")
    parser.add_argument(
        "--retention", metavar="BYTES", type=kinds.byte_count,
        help="bound of the log such as 50GB (default 10GiB)",
    )  # fmt: skip
    parser.add_argument(
        "--retention-age", metavar="TIME", type=kinds.span,
        help="how old the log's segments become, such as 24h (default: age does not matter)",
    )  # fmt: skip
    parser.add_argument(
        "--fsync", choices=("never", "interval", "always"),
        help="when the log is forced to the disk (default: interval)",
    )  # fmt: skip
    parser.add_argument(
        "--replay", metavar="BYTES", type=kinds.byte_count,
        help="bound of the replay buffer such as 256MiB (default 64MiB)",
    )  # fmt: skip
    parser.add_argument(
        "--stats", metavar="S", type=kinds.seconds, default=0.0,
        help="say every so many seconds on standard error how it stands (default: never)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Relay until Ctrl-C."""
    upstreams = [endpoint for several in arguments.upstreams for endpoint in several]
    relay = Relay(
        upstreams,
        arguments.listen,
        name=arguments.name,
        topics=arguments.topics,
        replay_bytes=arguments.replay,
        recovery_endpoint=arguments.recovery,
        log=_log_config(arguments),
    )
    with relay:
        _note(f"listening at {relay.endpoint}")
        try:
            _wait(relay, arguments.stats)
        finally:
            stats = relay.stats()
            _note(f"{_summary(stats)}")
    return 0


def _log_config(arguments: argparse.Namespace) -> Any:
    given = {
        "retention_bytes": arguments.retention,
        "retention_age_s": arguments.retention_age,
        "fsync": arguments.fsync,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.log is None:
        if options:
            raise UsageError("--retention, --retention-age and --fsync go with --log")
        return None
    try:
        log = import_log()
    except ConfigError as error:
        raise MissingExtraError(str(error)) from error
    try:
        return log.LogConfig(arguments.log, **options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _wait(relay: Relay, every_s: float) -> None:
    never = threading.Event()
    said = time.monotonic()
    while True:
        never.wait(_TICK_S)
        if every_s and time.monotonic() - said >= every_s:
            said = time.monotonic()
            _note(_summary(relay.stats()))


def _summary(stats: RelayStats) -> str:
    parts = [
        f"{stats.received:,} messages received",
        f"{stats.lost:,} lost",
        f"{len(stats.streams):,} streams of {len(stats.sessions):,} sessions",
        f"{sum(stats.repaired.values()):,} repaired",
        f"{stats.subscribers:,} subscribers",
    ]
    if stats.log is not None:
        parts.append(f"{stats.log.bytes:,} bytes of log")
        if stats.log.failed is not None:
            parts.append(f"the log failed: {stats.log.failed}")
    if stats.refused:
        parts.append(f"refused as a loop: {', '.join(stats.refused)}")
    return "; ".join(parts)


def _note(text: str) -> None:
    print(f"p2pmsg relay: {text}", file=sys.stderr, flush=True)
