"""The HTTP gateway and webhooks with keys."""

import pytest

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")
pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")

from p2pmsg import Publisher
from p2pmsg.errors import ConfigError
from p2pmsg.http import Gateway
from p2pmsg.webhooks import Endpoint, Sender, channel
from tests.integration.commands import run_here
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.test_serve import Events, ask, serving, values
from tests.integration.test_serve_ahead import HERE
from tests.integration.webhooks import LOOPBACK as ALLOW
from tests.integration.webhooks import Receiver

PLACE = f"tcp://127.0.0.1:1?key={'A' * 43}"


def test_events_of_a_publisher_with_keys_also_those_that_were_missed(peers):
    security, own = peers.security("pub", "http"), peers.security("http")
    with Publisher(LOOPBACK, security=security) as publisher:
        place = peers.pinned(publisher.endpoint, "pub")
        with serving([place], security=own) as (port, _):
            eventually(lambda: ask(port, "GET", "/health")[0] == 200)
            with Events(port, "/topics/t").wait_ready() as events:
                publisher.publish("t", 0)
                assert values(events.messages(1)) == [0]
                seen = events.last_id
            for number in range(1, 4):
                publisher.publish("t", number)
            publisher.flush()
            with Events(port, "/topics/t", last_id=seen) as events:  # by a range reader
                assert values(events.messages(3)) == [1, 2, 3]


@pytest.mark.internal
def test_webhooks_of_a_publisher_with_keys(peers, tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_AGAIN_S", 0.1)
    security, own = peers.security("pub"), peers.security("hook")
    with Publisher(LOOPBACK, security=security) as publisher, Receiver() as receiver:
        endpoint = Endpoint(receiver.url, allow=ALLOW, name="hook")
        place = peers.pinned(publisher.endpoint, "pub")
        publisher.publish("t", "value")
        with Sender(
            place, state=tmp_path / "hooks", endpoints=[endpoint], start="earliest", security=own
        ) as sender:
            failed = lambda: sender.stats().endpoints["hook"].error  # noqa: E731
            assert "does not admit our key" in eventually(failed)
            security.known.add("hook", peers.text("hook"))
            eventually(lambda: receiver.requests)
            assert receiver.requests[0].value["data"] == "value"


def test_what_pins_a_key_needs_security(tmp_path):
    endpoint = Endpoint("http://127.0.0.1:1/", allow=ALLOW, name="hook")
    with pytest.raises(ConfigError, match="security must be given where an endpoint pins"):
        Sender(PLACE, state=tmp_path / "hooks", endpoints=[endpoint])
    with pytest.raises(ConfigError, match="security must be a Security"):
        Gateway(PLACE, security=True)


def test_a_gateway_that_cannot_start_says_so_without_a_traceback(peers):
    peers.security("own")
    ended = run_here("serve", "tcp://127.0.0.1:1", *HERE, *peers.options("own"))
    assert ended.returncode == 1
    assert b"no key is pinned" in ended.stderr
    assert b"Traceback" not in ended.stderr
