"""`p2pmsg hook`: streams to webhooks, webhooks into a stream, and what could not be delivered."""

import argparse
import os
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import CommandGroup, UsageError, command, flag, note, one_line, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import render_columns, time_text
from p2pmsg.cli.waiting import Waiting, unanswered
from p2pmsg.errors import P2PError
from p2pmsg.json_text import json_value, to_json
from p2pmsg.webhooks.formats import FORMATS
from p2pmsg.webhooks.letters import Letter, Letters, folders
from p2pmsg.webhooks.rules import ORDERS
from p2pmsg.webhooks.schemes import SCHEMES
from p2pmsg.webhooks.signatures import OUT_SCHEMES

_Refused = argparse.ArgumentTypeError
_REASON_CHARACTERS = 60


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise _Refused("must be 'Name: value'")
    return name.strip(), value.strip()


SECRET = option(
    "--secret", "what requests are signed with; several while one is replaced. Other users of this "
    "machine see it here: take --secret-file, or the environment", "SECRET", action="append",
    default=[],
)  # fmt: skip
SECRET_FILE = option(
    "--secret-file", "a file with a secret a line", "FILE", kinds.lines_file("secret"), default=[]
)


@command(
    "hook out",
    option("endpoints", "publishers, or relays with a log", "ENDPOINT[,ENDPOINT…]",
           kinds.connect_endpoints),
    option("urls", "where to post", "URL", nargs="+"),
    option("--state", "a folder for cursors and dead letters", "DIR", required=True),
    option("--topics", "topics, and prefixes that end in *, separated by commas (default: all)",
           "TOPIC,…"),
    SECRET,
    SECRET_FILE,
    option("--order", "keep the order of each stream, or each key, or none (default: stream)",
           choices=ORDERS, default="stream"),
    option("--concurrency", "requests under way at once, for each URL (default: 8)", "N",
           kinds.count(1, 10_000), default=8),
    option("--format", "(default: standard)", choices=FORMATS, default="standard"),
    option("--scheme", "how requests are signed: as Standard Webhooks (default), or as GitHub's",
           choices=OUT_SCHEMES, default="standard"),
    option("--timeout", "how long a request may take (default: 20)", "S", kinds.seconds,
           default=20.0),
    option("--rate", "requests a second at most, for each URL (default: as many as there are)", "N",
           kinds.rate),
    option("--allow", "private networks to which requests may go, such as 127.0.0.0/8, separated "
           "by commas (default: none)", "CIDR,…"),
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
        --topics 'orders*' --secret-file hook.secret
      p2pmsg hook out tcp://127.0.0.1:5556 http://127.0.0.1:8080/ --state hooks \
        --allow 127.0.0.0/8 --format cloudevents --order key --concurrency 32
    """
    from p2pmsg.webhooks.endpoint import Endpoint
    from p2pmsg.webhooks.sender import Sender

    secrets = [*arguments.secret, *arguments.secret_file]
    endpoints = [
        Endpoint(
            url,
            secret=secrets,
            topics=_listed(arguments.topics),
            order=arguments.order,
            concurrency=arguments.concurrency,
            format=arguments.format,
            scheme=arguments.scheme,
            timeout=arguments.timeout,
            rate=arguments.rate,
            headers=dict(arguments.header),
            allow=_listed(arguments.allow) or (),
        )
        for url in arguments.urls
    ]
    with Sender(
        arguments.endpoints, state=arguments.state, endpoints=endpoints, start=arguments.start,
        security=security_of(arguments),
    ) as sender:  # fmt: skip
        for endpoint in endpoints:
            if arguments.resume:
                sender.resume(endpoint.name)
            note("hook out", f"{endpoint.place} as {endpoint.name}")
        try:
            _wait(sender, arguments.endpoints, arguments.stats)
        finally:
            sender.close()
            _summarize(sender)
    return 0


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _wait(sender: Any, publishers: list[str], every_s: float) -> None:
    def describe() -> str:
        found = [each.connected for each in sender.stats().endpoints.values()]
        return unanswered(publishers, min(len(publishers) if n is None else n for n in found))

    waiting = Waiting("hook out", describe, quiet=False)
    waiting.until(sender.wait, every_s, lambda: _summarize(sender))


def _summarize(sender: Any) -> None:
    for stats in sender.stats().endpoints.values():
        parts = [
            f"{stats.name}: {stats.received:,} messages received",
            f"{stats.delivered:,} delivered",
            f"{stats.requests:,} requests",
            f"{stats.failures:,} failed",
            f"{stats.waiting:,} waiting",
            f"{stats.dead_letters:,} dead letters",
            f"{stats.lost:,} lost",
        ]
        if stats.stopped is not None:
            parts.append("stopped by 410")
        elif stats.held_s:
            parts.append(f"paused by Retry-After for {stats.held_s:,.0f} s: {stats.reason}")
        elif stats.is_open:
            parts.append(f"down: {stats.reason}")
        note("hook out", ", ".join(parts))


@command(
    "hook in",
    option("--listen", "where requests come (default: 127.0.0.1:8080; port 0 picks one)",
           "HOST:PORT", kinds.address, default=("127.0.0.1", 8080)),
    option("--publish", "where to bind the publisher: tcp://HOST:PORT or ipc://PATH", "ENDPOINT",
           kinds.stream_endpoint, required=True),
    option("--topic", "under which it is published; {type} stands for the event's type (default: "
           "hooks)", "TOPIC", default="hooks"),
    option("--scheme", "who signs (default: standard)", choices=SCHEMES, default="standard"),
    SECRET,
    SECRET_FILE,
    option("--log", "keep what is published in this log: without it, what was answered is lost if "
           "this process dies", "DIR"),
    kinds.FSYNC,
    option("--seen", "a file for the ids that were taken (default: next to the log)", "FILE"),
    option("--body", "size of a body such as 1MiB (default); above it, subscribers may need a "
           "higher frame_bytes_max", "BYTES", kinds.byte_count,
           default=2**20),
    option("--rate", "requests a second at most (default: not limited)", "N",
           kinds.count(1, 10**9)),
    option("--client-rate", "the same for each client's address", "N", kinds.count(1, 10**9)),
    option("--origin", "who may post CloudEvents, for the OPTIONS handshake; * for all", "ORIGIN",
           action="append", default=[]),
    *kinds.CERTIFICATE,
    option("--name", "the publisher's name (default: the endpoint)"),
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
    from p2pmsg.config import PublisherConfig
    from p2pmsg.sync.publisher import Publisher
    from p2pmsg.webhooks.intake import receive
    from p2pmsg.webhooks.readying import message_bytes_of
    from p2pmsg.webhooks.serving import bind, make_server

    secrets = [*arguments.secret, *arguments.secret_file]
    if not secrets:
        raise UsageError("give --secret-file, or --secret")
    kinds.require_certificate(arguments)
    seen = arguments.seen
    if seen is None and arguments.log is not None:
        seen = os.path.join(os.path.dirname(os.path.abspath(arguments.log)),
                            f"{os.path.basename(arguments.log.rstrip('/'))}.seen")  # fmt: skip
    with ExitStack() as stack:
        publisher = stack.enter_context(
            Publisher(
                arguments.publish,
                name=arguments.name,
                log=kinds.log_config(arguments),
                security=security_of(arguments),
                config=PublisherConfig(message_bytes_max=message_bytes_of(arguments.body)),
            )
        )
        app = receive(
            publisher,
            secrets=secrets,
            topic=arguments.topic,
            scheme=arguments.scheme,
            seen=seen,
            body_bytes_max=arguments.body,
            rate=arguments.rate,
            client_rate=arguments.client_rate,
            origins=arguments.origin,
        )
        stack.callback(app.close)
        server = make_server(
            app, cert=arguments.cert, key=arguments.cert_key, rejected=app.rejected
        )
        socket = stack.enter_context(bind(*arguments.listen))
        host, port = socket.getsockname()[:2]
        scheme = "http" if arguments.cert is None else "https"
        shown = f"[{host}]" if ":" in host else host
        note("hook in", f"{scheme}://{shown}:{port}, published at {publisher.endpoint}")
        # Ctrl-C may come before the server's coroutine begins.
        warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
        try:
            server.run(sockets=[socket])
        finally:
            note("hook in", f"{app.published:,} published, {app.duplicates:,} came again, "
                 f"{sum(app.rejected.values()):,} refused")  # fmt: skip
    return 0


@command(
    "hook dead-letters",
    option("action", "what to do", "ls|show|retry|purge", choices=("ls", "show", "retry", "purge")),
    option("state", "the folder of `p2pmsg hook out --state`", "DIR", kinds.directory),
    option("ids", "which of them", "ID", nargs="*", default=[]),
    option("--endpoint", "only of this endpoint, by its name", "NAME"),
    flag("--all", "all of them"),
    flag("--parked", "list those that wait for their next attempt, too"),
    flag("--json", "a JSON object a line"),
)  # fmt: skip
def dead_letters(arguments: argparse.Namespace) -> int:
    """List, show, send again or remove messages that no attempt could deliver.

    The sender may run or not: one that runs takes up what is asked within a second, another at its
    next start.

    For example:
      p2pmsg hook dead-letters ls hooks
      p2pmsg hook dead-letters show hooks msg_caf309e21b63153c6f0493e9fc9b18e4
      p2pmsg hook dead-letters retry hooks --all

    Exit status 1: an id that was named is no dead letter.

    """
    action, chosen = arguments.action, set(arguments.ids)
    if chosen and arguments.all:
        raise UsageError("ids and --all exclude one another")
    if action in ("retry", "purge") and not (chosen or arguments.all):
        raise UsageError(f"{action} needs ids, or --all")
    found = [
        (folder, letter)
        for folder in folders(arguments.state)
        if arguments.endpoint in (None, folder.name)
        for letter in _letters(folder, arguments.parked and action in ("ls", "show"))
        if not chosen or letter.id in chosen
    ]
    if action in ("retry", "purge"):
        for folder in {folder for folder, _ in found}:
            ids = [letter.id for at, letter in found if at == folder]
            with closing(Letters(folder)) as letters:
                letters.ask(ids) if action == "retry" else letters.purge(ids)
        print(f"{len(found)} will be {'sent again' if action == 'retry' else 'removed'}")
    elif arguments.json:
        for folder, letter in found:
            print(to_json(_fields(folder, letter)))
    elif action == "show":
        print("\n\n".join(_page(folder, letter) for folder, letter in found))
    elif found:
        titles = ("id", "endpoint", "topic", "since", "reason", "sequence", "attempts")
        rows = [
            (letter.id, folder.name, one_line(letter.topic),
             time_text(letter.at_ns, "seconds"), one_line(letter.reason)[:_REASON_CHARACTERS],
             letter.sequence, letter.attempts)
            for folder, letter in found
        ]  # fmt: skip
        print(render_columns(titles, rows, 5))
    missing = len(chosen - {letter.id for _, letter in found})
    if missing:
        note("hook dead-letters", f"{missing} of these ids {'is' if missing == 1 else 'are'} none")
    return int(missing > 0)


def _letters(folder: Path, with_parked: bool) -> list[Letter]:
    try:
        with closing(Letters(folder)) as letters:
            return letters.all("dead") + (letters.all("parked") if with_parked else [])
    except OSError as error:
        raise P2PError(f"cannot read the letters of {folder.name}: {error}") from error


def _fields(folder: Path, letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "endpoint": folder.name,
        "why": letter.why,
        "topic": letter.topic,
        "session": f"{letter.session:016x}",
        "sequence": letter.sequence,
        "key": letter.key,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "since": time_text(letter.at_ns, "seconds"),
        "body": json_value(letter.body),
    }


def _page(folder: Path, letter: Letter) -> str:
    return "\n".join(
        f"{name}: {one_line(value if isinstance(value, str) else to_json(value))}"
        for name, value in _fields(folder, letter).items()
        if value is not None
    )


hook = CommandGroup(
    "hook",
    """\
Post streams to webhooks, publish webhooks, list dead letters.

For example:
  p2pmsg hook out tcp://127.0.0.1:5556 https://shop.example.com/hooks --state hooks
  p2pmsg hook in --publish tcp://127.0.0.1:5556 --secret-file hook.secret
  p2pmsg hook dead-letters ls hooks
""",
    (out, in_, dead_letters),
)
