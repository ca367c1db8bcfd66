"""`p2pmsg bridge`: pass messages on between p2pmsg and plain ZeroMQ programs."""

import argparse

from p2pmsg.bridge import Bridge, BridgeStats
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import OneOf, command, flag, note, option
from p2pmsg.cli.program import repeat
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import counted


@command(
    "bridge",
    option("--from", "where messages come from: zmq+sub://HOST:PORT, zmq+pull://HOST:PORT "
           "(connects; ?bind=1 binds; zmq+sub+ipc://PATH; sp+sub, sp+pull, sp+rep, sp+respondent "
           "of nanomsg and nng), or a stream, a queue or requests of p2pmsg",
           "ENDPOINT", dest="source", required=True),
    option("--to", "where they go: a stream or queue of p2pmsg (tcp://HOST:PORT, ipc://PATH), or "
           "zmq+pub://HOST:PORT, zmq+push://HOST:PORT, sp+pub, sp+push, sp+req, sp+surveyor",
           "ENDPOINT", dest="target", required=True),
    option("--topic", "the topic of messages that have none (default zmq)", "TOPIC", kinds.topic,
           default="zmq"),
    option("--topic-at", "where a plain message has its topic: part, the first one (default of "
           "zmq+sub and zmq+pub); prefix, up to a space (of sp+sub and sp+pub); none (of "
           "pull and push)",
           choices=("part", "prefix", "none")),
    kinds.SERVED_TOPICS,
    OneOf((
        flag("--json", "values are JSON in plain messages"),
        flag("--msgpack", "values are msgpack in plain messages"),
    )),
    option("--sequence-at", "where plain messages have a number, to count gaps: OFFSET:SIZE, "
           "OFFSET:SIZE:le, or with --json or --msgpack a field such as header.seq", "PLACE"),
    option("--log", "keep the stream, or the queue, in this log", "DIR"),
    option("--cursor", "from a stream: the file that keeps how far it was passed on", "FILE"),
    option("--start", "from a stream: latest (default), earliest, a sequence, or a time", "START",
           kinds.start),
    option("--name", "the bridge's name"),
    kinds.STATS,
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def bridge(arguments: argparse.Namespace) -> int:
    """Pass messages on between p2pmsg and plain ZeroMQ programs.

    A plain PUB becomes a stream: numbered, kept, repaired, with --log on the disk. A stream reaches
    plain SUBs. A plain PUSH fills a work queue, and jobs reach plain PULLs. What a plain PUB has
    dropped before it came here cannot be known: that the bridge is slower is said, and with
    --sequence-at gaps are counted. It runs until Ctrl-C.

    With --security the end that is p2pmsg's has keys, and a zmq+ end where it says so, by ?key=KEY
    (connects), ?curve=1 (connects, and the file of known peers has the key) or ?bind=1&curve=1.

    For example:
      p2pmsg bridge --from zmq+sub://127.0.0.1:5555 --to tcp://127.0.0.1:5556 --log zmq.log
      p2pmsg bridge --from tcp://127.0.0.1:5557 --to 'zmq+push://*:5558?bind=1'
    """
    running = Bridge(
        arguments.source, arguments.target, topic=arguments.topic, topic_at=arguments.topic_at,
        topics=arguments.topics, sequence_at=arguments.sequence_at, log=arguments.log,
        codec="json" if arguments.json else "msgpack" if arguments.msgpack else "bytes",
        cursor=arguments.cursor, start=arguments.start, name=arguments.name,
        security=security_of(arguments),
    )  # fmt: skip

    def report() -> None:
        note("bridge", _summary(running.stats()))

    try:
        with running:
            note("bridge", f"from {running.source} to {running.target}")
            repeat(report, arguments.stats)
    finally:
        report()
    return 0


def _summary(stats: BridgeStats) -> str:
    counts = {
        "messages received": stats.received,
        "passed on": stats.passed_on,
        "refused": stats.refused,
        "not sent": stats.unsent,
        "connections refused": stats.connections_refused,
        "dropped for a full subscriber": stats.dropped,
        "for nobody, since no subscriber was there": stats.without_subscriber,
        "without a topic": stats.without_topic,
        "not decoded": stats.undecoded,
        "lost before they came here": stats.missing,
        "without a number": stats.unnumbered,
    }
    parts = counted(counts, always=2)
    if stats.overruns:
        parts.append(f"the sender was faster {stats.overruns:,} times")
    return "; ".join(parts)
