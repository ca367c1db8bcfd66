"""What a person, a log and `json.dumps` see of each peer and its counters."""

import asyncio
import json
import traceback
from types import SimpleNamespace

import pytest

import p2pmsg
from p2pmsg import http, security, webhooks
from tests.unit.p2pmsg.test_arguments import CASES, PEERS
from transports.curve import key_text

TIMELESS = ("Subscriber", "Requester", "Responder", "aio.Subscriber")


@pytest.mark.parametrize(
    "name", [*PEERS, *(f"aio.{name}" for name in PEERS), "Collector", "Bridge"]
)
def test_a_peer_says_what_it_is_and_where_and_its_counters_are_json(name):
    call, given, _ = CASES[name]

    async def shown():
        peer = call(*given)
        text, stats = repr(peer), getattr(peer, "stats", dict)()
        ended = peer.close() if name in TIMELESS else peer.close(0)
        if asyncio.iscoroutine(ended):
            await ended
        return text, stats, repr(peer)

    text, stats, closed = asyncio.run(shown())
    assert text.startswith(f"<{call.__name__} ")
    assert "127.0.0.1" in text
    assert text.endswith("open>")
    assert closed.endswith("closed>")
    assert " object at 0x" not in f"{text}{stats}"
    if stats:
        assert json.loads(json.dumps(stats.to_dict())).keys() == stats.to_dict().keys()


@pytest.mark.parametrize("name", [*PEERS, "App", "Collector", "Bridge", "Gateway", "Security"])
def test_one_that_could_not_be_made_can_be_shown(name):
    kind = CASES[name][0]
    assert kind.__name__ in repr(object.__new__(kind))


S = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS"
BAD = {
    "a secret that is no base64": (webhooks.Endpoint, "secret", f"whsec_é{S}"),
    "a secret and none": (webhooks.Endpoint, "secret", [f"whsec_{S}", None]),
    "a private key of a wrong size": (webhooks.Endpoint, "secret", f"whsk_{S}"),
    "a secret, and headers": (webhooks.Endpoint, "headers", {"authorization": S, "a b": "c"}),
    "a header that is none": (webhooks.Endpoint, "headers", {"authorization": S, "a": None}),
    "a secret, and a keyword": (webhooks.Endpoint, "secrets", S),
    "what hooks are signed with": (webhooks.receive, "secrets", f"whsec_é{S}"),
    "and one that is none": (webhooks.receive, "secrets", [f"whsec_{S}", 5]),
    "a token with a space": (http.Gateway, "tokens", [f"{S} "]),
    "a token that is no list": (http.Gateway, "tokens", S),
    "a key pair": (security.KeyPair, "secret", S.encode()),
    "a secret key": (security.KeyPair.of_secret, "secret", S.encode()),
    "a key file": (security.write_key_file, "path", "/dev/null/key"),
}


@pytest.mark.parametrize(("call", "field", "value"), BAD.values(), ids=BAD)
def test_no_frame_of_an_error_shows_a_secret(call, field, value):
    pair = security.KeyPair.of_secret(b"k" * 32)
    given = {
        webhooks.Endpoint: {"url": f"http://a.example/{S}"},
        webhooks.receive: {"publisher": SimpleNamespace(publish=print), "topic": "t"},
        http.Gateway: {"endpoints": "tcp://127.0.0.1:9"},
        security.KeyPair: {"public": b"p" * 32},
        security.write_key_file: {"keys": pair},
    }.get(call, {})
    with pytest.raises((p2pmsg.P2PError, ValueError, TypeError, OSError)) as raised:
        call(**given, **{field: value})
    found = traceback.TracebackException.from_exception(raised.value, capture_locals=True)
    own = found.stack.pop(0)
    assert own.filename == __file__
    shown = "".join(found.format())
    assert S not in shown
    assert S not in str(raised.value)
    assert key_text(pair.secret) not in shown


def test_a_traceback_with_locals_of_a_bad_key_file_can_be_shown(tmp_path):
    key = tmp_path / "key"
    security.write_key_file(key, security.new_keys())
    key.write_text(key.read_text() + "more\n")
    with pytest.raises(p2pmsg.ConfigError) as raised:
        p2pmsg.Security(key, tmp_path / "known_peers")
    error = raised.value
    shown = "".join(
        traceback.TracebackException.from_exception(error, capture_locals=True).format()
    )
    assert "Security(" in shown
    assert key.read_text().split()[-2] not in shown
