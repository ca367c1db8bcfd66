"""`p2pmsg serve`: streams to browsers as Server-Sent Events, and requests that publish."""

import argparse
import ipaddress
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import counted
from p2pmsg.toolkit import parse_endpoint

if TYPE_CHECKING:
    from p2pmsg.security import Security

_NAME = "http"
"""Who subscribes, and publishes, for people."""
_OTHERS_MAX = 64
"""Connections beyond those of event streams."""


@command(
    "serve",
    option("endpoints", "publishers, or relays", "ENDPOINT[,ENDPOINT…]", kinds.endpoints,
           nargs="?", default=[]),
    option("--listen", "where browsers connect (default: 127.0.0.1:8900; port 0 picks one)",
           "HOST:PORT", kinds.address, default=("127.0.0.1", 8900)),
    option("--topics", "what is served, and may be posted: topics, and prefixes that end in * "
           "(default: all)", "TOPIC", nargs="+"),
    option("--publish", "take POST requests, too, and publish them: where to bind the publisher",
           "ENDPOINT"),
    kinds.LOG,
    option("--token-file", "ask for one of these tokens, a line each: Authorization: Bearer TOKEN",
           "FILE", kinds.lines_file("token"), default=[]),
    flag("--query-token", "take ?token=TOKEN, too, as browsers' EventSource sends no headers; "
         "proxies write it into their logs"),
    flag("--insecure", "listen beyond this machine although no token is asked for"),
    option("--allow-host", "a name under which it is reached, besides localhost and addresses",
           "HOST", action="append", default=[]),
    option("--allow-origin", "a site whose pages may ask, too, such as https://app.example.com",
           "ORIGIN", action="append", default=[]),
    *kinds.CERTIFICATE,
    *SECURITY,
    ended_by=(),
)  # fmt: skip
def serve(arguments: argparse.Namespace) -> int:
    """Serve streams to browsers as Server-Sent Events, and publish what is posted.

    GET /topics/NAME is a topic as events, JSON or with ?format=base64; a browser that connects
    again gets what it missed, as far as it is kept, and hears what is lost. GET
    /topics?topic=A&topic=B* has several. POST /topics/NAME publishes, where --publish is given.
    http://127.0.0.1:8900/ shows a topic; /stats and /health answer. It runs until Ctrl-C or
    SIGTERM. --security is for the endpoints and --publish; browsers have tokens, and --cert.

    For example:
      p2pmsg serve tcp://127.0.0.1:5556
      p2pmsg serve tcp://127.0.0.1:5556 --listen 0.0.0.0:8900 --token-file tokens --topics 'public*'
      p2pmsg serve --publish tcp://127.0.0.1:5557 --log posted.log
    """
    from p2pmsg import Publisher
    from p2pmsg.config import PublisherConfig
    from p2pmsg.http import BODY_BYTES_MAX, Gateway, GatewayConfig, bind, make_server, run
    from p2pmsg.webhooks import message_bytes_of

    _check(arguments)
    security = security_of(arguments)
    with ExitStack() as stack:
        publisher, endpoints = None, list(arguments.endpoints)
        if arguments.publish is not None:
            bytes_max = message_bytes_of(BODY_BYTES_MAX)
            publisher = stack.enter_context(
                Publisher(
                    arguments.publish,
                    name=_NAME,
                    log=arguments.log,
                    security=security,
                    config=PublisherConfig(message_bytes_max=bytes_max),
                )
            )
            endpoints.append(_own(publisher.endpoint, security))
        app = Gateway(
            endpoints, arguments.topics, publisher=publisher, tokens=arguments.token_file,
            query_token=arguments.query_token, hosts=arguments.allow_host,
            origins=arguments.allow_origin, name=_NAME, security=security,
        )  # fmt: skip
        server = make_server(
            app, connections_max=GatewayConfig().connections_max + _OTHERS_MAX,
            cert=arguments.cert, key=arguments.cert_key,
        )  # fmt: skip
        with bind(*arguments.listen) as socket:
            try:
                note("serve", f"{kinds.url_of(socket, arguments)}/ serves {', '.join(endpoints)}")
                run(server, socket)
            finally:
                if app.failure is None:
                    _summarize(app)
    return 0


def _own(endpoint: str, security: "Security | None") -> str:
    """Return where our own publisher is subscribed to."""
    place = parse_endpoint(endpoint)
    if place.is_wildcard:
        place = place.with_host("::1" if place.is_ipv6 else "127.0.0.1")
    return str(place) if security is None else f"{place}?key={security.keys.public_text}"


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.endpoints and arguments.publish is None:
        raise UsageError("give an endpoint, or --publish")
    if arguments.log is not None and arguments.publish is None:
        raise UsageError("--log goes with --publish")
    kinds.require_certificate(arguments)
    if arguments.query_token and not arguments.token_file:
        raise UsageError("--query-token goes with --token-file")
    host = arguments.listen[0]
    if not (arguments.token_file or arguments.insecure or _is_loopback(host)):
        raise UsageError(
            f"--listen {host}: others could read and publish: give --token-file, or --insecure"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _summarize(app: Any) -> None:
    stats = app.stats()
    counts = {
        "event streams": stats.opened,
        "messages received": stats.messages,
        "lost": stats.lost,
        "published": stats.published,
        "cut off": stats.slow,
        "refused": sum(stats.rejected.values()),
    }
    note("serve", ", ".join(counted(counts, always=2)))
