"""`p2pmsg hook`: streams to webhooks, and webhooks into a stream."""

import argparse
import os
from contextlib import ExitStack
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, option
from p2pmsg.cli.program import repeat
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import counted
from p2pmsg.webhooks import FORMATS, ORDERS, OUT_SCHEMES, SCHEMES

_BODY_BYTES_MAX = 2**20
SECRET = option(
    "--secret", "what requests are signed with; several while one is replaced. Other users of this "
    "machine see it here: take --secret-file, or the environment", "SECRET", action="append",
    default=[],
)  # fmt: skip
SECRET_FILE = option(
    "--secret-file", "a file with a secret a line", "FILE", kinds.lines_file("secret"), default=[]
)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError("must be 'Name: value'")
    return name.strip(), value.strip()


@command(
    "hook out",
    option("endpoints", "publishers, or relays with a log", "ENDPOINT[,ENDPOINT…]",
           kinds.endpoints),
    option("urls", "where to post", "URL", nargs="+"),
    option("--state", "a folder for cursors and dead letters", "DIR", required=True),
    kinds.SERVED_TOPICS,
    SECRET,
    SECRET_FILE,
    option("--order", "keep the order of each stream, or each key, or none (default: stream)",
           choices=ORDERS, default="stream"),
    option("--format", "(default: standard)", choices=FORMATS, default="standard"),
    option("--scheme", "how requests are signed: as Standard Webhooks (default), or as GitHub's",
           choices=OUT_SCHEMES, default="standard"),
    option("--allow", "private networks to which requests may go, such as 127.0.0.0/8 (default: "
           "none)", "CIDR", nargs="+", default=()),
    option("--header", "send this, too, such as 'Authorization: Bearer …'", "'NAME: VALUE'",
           _header, action="append", default=[]),
    option("--start", "where a new URL begins: latest (default), earliest, a sequence or an ISO "
           "time", "WHERE", kinds.start, default="latest"),
    flag("--resume", "send again to URLs that have answered 410"),
    kinds.STATS,
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def out(arguments: argparse.Namespace) -> int:
    r"""Post the messages of streams to URLs: each at least once, and in order.

    A URL has a cursor, so that a receiver may be away for as long as the publisher's log keeps the
    messages; started again, it goes on where it was. A message has the same id in each attempt.
    What is refused for 75 hours becomes a dead letter (`p2pmsg hook dead-letters`). It runs until
    Ctrl-C or SIGTERM.

    For example:
      p2pmsg hook out tcp://127.0.0.1:5556 https://shop.example.com/hooks --state hooks \
        --secret-file hook.secret --topics 'orders*'
      p2pmsg hook out tcp://127.0.0.1:5556 http://127.0.0.1:8080/ --state hooks \
        --format cloudevents --order key --allow 127.0.0.0/8
    """
    from p2pmsg.webhooks import Endpoint, Sender

    secrets = [*arguments.secret, *arguments.secret_file]
    endpoints = [
        Endpoint(
            url,
            secret=secrets,
            topics=arguments.topics,
            order=arguments.order,
            format=arguments.format,
            scheme=arguments.scheme,
            headers=dict(arguments.header),
            allow=arguments.allow,
        )
        for url in arguments.urls
    ]
    with Sender(
        arguments.endpoints, state=arguments.state, endpoints=endpoints, start=arguments.start,
        security=security_of(arguments),
    ) as sender:  # fmt: skip
        try:
            for endpoint in endpoints:
                if arguments.resume:
                    sender.resume(endpoint.name)
                note("hook out", f"{endpoint.place} as {endpoint.name}")
            repeat(lambda: _summarize(sender), arguments.stats, sender.wait)
        finally:
            sender.close()
            _summarize(sender)
    return 0


def _summarize(sender: Any) -> None:
    for stats in sender.stats().endpoints.values():
        counts = {
            "messages received": stats.received,
            "delivered": stats.delivered,
            "requests": stats.requests,
            "failed": stats.failures,
            "waiting": stats.waiting,
            "dead letters": stats.dead_letters,
            "lost": stats.lost,
        }
        parts = counted(counts, always=len(counts))
        if stats.stopped is not None:
            parts.append("stopped by 410")
        elif stats.held_s:
            parts.append(f"paused by Retry-After for {stats.held_s:,.0f} s: {stats.reason}")
        elif stats.is_open:
            parts.append(f"down: {stats.reason}")
        note("hook out", f"{stats.name}: {', '.join(parts)}")


@command(
    "hook in",
    option("--listen", "where requests come (default: 127.0.0.1:8080; port 0 picks one)",
           "HOST:PORT", kinds.address, default=("127.0.0.1", 8080)),
    option("--publish", "where to bind the publisher: tcp://HOST:PORT or ipc://PATH", "ENDPOINT",
           required=True),
    option("--topic", "under which it is published; {type} stands for the event's type (default: "
           "hooks)", "TOPIC", default="hooks"),
    option("--scheme", "who signs (default: standard)", choices=SCHEMES, default="standard"),
    SECRET,
    SECRET_FILE,
    option("--log", "keep what is published in this log, and the ids that were taken next to it: "
           "without it, what was answered is lost if this process dies", "DIR"),
    *kinds.CERTIFICATE,
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def in_(arguments: argparse.Namespace) -> int:
    r"""Publish the webhooks that are posted here.

    A request is answered with 204 when it is in the log. Its signature is checked, and each id is
    taken once. /health and /metrics answer, too. It runs until Ctrl-C or SIGTERM.

    For example:
      p2pmsg hook in --listen 0.0.0.0:8080 --publish 'tcp://*:5556' --log hooks.log \
        --secret-file hook.secret
      p2pmsg hook in --scheme github --publish tcp://127.0.0.1:5556 --topic 'github.{type}' \
        --secret-file github.secret --log github.log
    """
    from p2pmsg import Publisher
    from p2pmsg.config import PublisherConfig
    from p2pmsg.http import bind, make_server, run
    from p2pmsg.webhooks import message_bytes_of, receive

    secrets = [*arguments.secret, *arguments.secret_file]
    if not secrets:
        raise UsageError("give --secret-file, or --secret")
    kinds.require_certificate(arguments)
    seen = None if arguments.log is None else f"{os.path.normpath(arguments.log)}.seen"
    with ExitStack() as stack:
        publisher = stack.enter_context(
            Publisher(
                arguments.publish,
                log=arguments.log,
                security=security_of(arguments),
                config=PublisherConfig(message_bytes_max=message_bytes_of(_BODY_BYTES_MAX)),
            )
        )
        app = receive(
            publisher,
            secrets=secrets,
            topic=arguments.topic,
            scheme=arguments.scheme,
            seen=seen,
            body_bytes_max=_BODY_BYTES_MAX,
        )
        stack.callback(app.close)
        server = make_server(app, cert=arguments.cert, key=arguments.cert_key)
        socket = stack.enter_context(bind(*arguments.listen))
        try:
            place = kinds.url_of(socket, arguments)
            note("hook in", f"{place}, published at {publisher.endpoint}")
            run(server, socket)
        finally:
            note("hook in", f"{app.published:,} published, {app.duplicates:,} came again, "
                 f"{sum(app.rejected.values()):,} refused")  # fmt: skip
    return 0
