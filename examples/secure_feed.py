"""Encrypted streams with rights by topic: each subscriber gets what its key may have, and no more.

`python examples/secure_feed.py` makes four keys, lets the peers know one another (there is no
authority that signs anything), and writes two access files:

- the publisher gives everything to the relay, and `trades` to the subscriber `bars`;
- the relay gives `quotes`, and nothing else, to the subscriber `screen`.

Both subscribers ask for all three topics. What they may not have never leaves, and an error says
so. A program without a key is refused. The same files may be made by `p2pmsg key new` and
`p2pmsg trust add`; see the guide's page about security.
"""

import ctrl_c

import tempfile
from pathlib import Path

from arguments import none

import p2pmsg
from p2pmsg.errors import AccessDeniedError, AuthenticationError
from p2pmsg.security import KnownPeers, new_keys

TOPICS = ["trades", "quotes", "positions"]
PUBLISHER_ACCESS = """
[[rule]]
who = ["relay"]
subscribe = ["*"]

[[rule]]
who = ["bars"]
subscribe = ["trades"]
"""
RELAY_ACCESS = """
[[rule]]
who = ["publisher"]
publish = ["*"]

[[rule]]
who = ["screen"]
subscribe = ["quotes"]
"""
KEYS = {name: new_keys() for name in ("publisher", "relay", "bars", "screen")}


def security(folder: Path, name: str, access: str | None = None) -> p2pmsg.Security:
    """Return what the peer `name` is given: its key, the keys of the others, its access file."""
    known = KnownPeers(folder / f"{name}.known_peers")
    for other, keys in KEYS.items():
        if other != name:
            known.add(other, keys.public_text)
    access_rules = None
    if access is not None:
        access_rules = folder / f"{name}.access.toml"
        access_rules.write_text(access)
    return p2pmsg.Security(KEYS[name], known.path, access_rules)


def pinned(endpoint: str, name: str) -> str:
    """Return an endpoint that only who holds the key of `name` can serve."""
    return f"{endpoint}?key={KEYS[name].public_text}"


def read(subscriber: p2pmsg.Subscriber) -> tuple[list[str], list[str]]:
    """Return the topics that came, and those that were denied."""
    found: list[str] = []
    denied: list[str] = []
    while len(set(found)) + len(denied) < len(TOPICS):
        try:
            found.append(subscriber.receive(timeout=10).topic)
        except AccessDeniedError as error:
            denied.append(error.topic)
    return sorted(set(found)), sorted(denied)


def main() -> None:
    """Publish, relay, and read as three peers: two with keys, and one without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            p2pmsg.Publisher(
                "tcp://127.0.0.1:0", security=security(folder, "publisher", PUBLISHER_ACCESS)
            ) as publisher,
            p2pmsg.Relay(
                pinned(publisher.endpoint, "publisher"),
                "tcp://127.0.0.1:0",
                security=security(folder, "relay", RELAY_ACCESS),
            ) as relay,
        ):
            for topic in TOPICS:
                publisher.publish(topic, {"of": topic})
            relay.wait_for_streams(timeout=10)
            for reader, server, endpoint in (
                ("bars", "publisher", publisher.endpoint),
                ("screen", "relay", relay.endpoint),
            ):
                with p2pmsg.Subscriber(
                    pinned(endpoint, server),
                    topics=TOPICS,
                    start="earliest",
                    security=security(folder, reader),
                ) as subscriber:
                    found, denied = read(subscriber)
                    print(f"{reader} got {found} from the {server}, and may not have {denied}")
            unknown = p2pmsg.Security(new_keys(), folder / "nobody")
            with p2pmsg.Subscriber(
                pinned(publisher.endpoint, "publisher"), security=unknown
            ) as refused:
                try:
                    refused.receive(timeout=10)
                except AuthenticationError as error:
                    print(f"an unknown program: {type(error).__name__}")


if __name__ == "__main__":
    none(__doc__)
    ctrl_c.run(main)
