"""Each argument of each public constructor is refused by name; what is shown of peers."""

import asyncio
import contextlib
import inspect
import json
import math
import traceback
from types import SimpleNamespace

import pytest

import p2pmsg
from p2pmsg import (
    aio,
    app,
    bridge,
    config,
    http,
    metrics,
    moldudp64,
    queue,
    reader,
    security,
    statsd,
    testing,
    webhooks,
)
from p2pmsg import log as logs
from p2pmsg.aio import metrics as aio_metrics
from p2pmsg.aio import reader as aio_reader
from p2pmsg.errors import P2PError
from transports.curve import key_text

BIND, PEER = "tcp://127.0.0.1:0", "tcp://127.0.0.1:9"
WEB = webhooks.Endpoint("http://127.0.0.1:9/", allow=["127.0.0.1"])
PEERS = {
    "Publisher": [BIND], "Subscriber": [PEER], "Pusher": [BIND], "Puller": [PEER],
    "Requester": [PEER], "Responder": [BIND], "Relay": [PEER, BIND],
}  # fmt: skip
CASES = {
    **{name: (getattr(p2pmsg, name), given, {}) for name, given in PEERS.items()},
    **{f"aio.{name}": (getattr(aio, name), given, {}) for name, given in PEERS.items()},
    **{
        name: (getattr(config, name), [], {})
        for name in config.__all__
        if name.endswith("Config") and name != "CursorConfig"
    },
    "PusherConfig": (queue.PusherConfig, [], {}),
    "CursorConfig": (config.CursorConfig, ["cursor"], {}),
    "LogConfig": (logs.LogConfig, ["log"], {}),
    "QueueLogConfig": (queue.QueueLogConfig, [], {"directory": "jobs"}),
    "HeadsWatch": (reader.HeadsWatch, [[PEER]], {}),
    "RangeReader": (reader.RangeReader, [PEER], {}),
    "Bridge": (bridge.Bridge, ["zmq+sub+tcp://127.0.0.1:9", BIND], {}),
    "BridgeConfig": (bridge.BridgeConfig, [], {}),
    "Security": (security.Security, ["key", "known_peers"], {}),
    "MoldPublisher": (moldudp64.MoldPublisher, ["mold://239.1.2.3:5555"], {"session": "S"}),
    "Client": (metrics.Client, ["udp://127.0.0.1:9"], {}),
    "aio.Client": (aio_metrics.Client, [PEER], {}),
    "aio.HeadsWatch": (aio_reader.HeadsWatch, [[PEER]], {}),
    "aio.RangeReader": (aio_reader.RangeReader, [PEER], {}),
    "ExactTotals": (metrics.ExactTotals, [], {}),
    "Collector": (statsd.Collector, ["udp://127.0.0.1:0"], {}),
    "AggregateConfig": (statsd.AggregateConfig, [], {}),
    "ConsoleOutput": (statsd.ConsoleOutput, [], {}),
    "Dialect": (statsd.Dialect, [], {}),
    "GraphiteNames": (statsd.GraphiteNames, [], {}),
    "GraphiteOutput": (statsd.GraphiteOutput, ["127.0.0.1", 9], {}),
    "PrometheusOutput": (statsd.PrometheusOutput, ["127.0.0.1", 0], {}),
    "App": (app.App, [], {}),
    "app.DeadLetter": (app.DeadLetter, [], {"publish": PEER}),
    "app.Retry": (app.Retry, [], {}),
    "Endpoint": (webhooks.Endpoint, [WEB.url], {"allow": WEB.allow}),
    "Sender": (webhooks.Sender, [PEER], {"state": "state", "endpoints": [WEB]}),
    "receive": (webhooks.receive, [SimpleNamespace(publish=print, stats=dict)],
                {"secrets": "whsec_" + "MfKQ" * 8, "topic": "t"}),
    "Gateway": (http.Gateway, [PEER], {}),
    "GatewayConfig": (http.GatewayConfig, [], {}),
    "TcpProxy": (testing.TcpProxy, [PEER], {}),
    "VirtualNetwork": (testing.VirtualNetwork, [], {}),
}  # fmt: skip
ANYTHING = {"file", "resolver", "type", "types", "path", "key", "trust", "access", "state", "seen",
            "host", "listen", "then", "separator", "rate_max"}  # fmt: skip
"""Of any type, or with a limit of its own, or what the system refuses in its own words."""
HIDDEN = {"secret", "secrets", "tokens", "headers"}
"""Their values are not shown."""


class Thing:
    def __repr__(self):
        return "<Thing>"


WRONG = {
    "number": (math.nan, math.inf, -math.inf, -1, -1.5, 1e30, 2**70, True, "x", "", b"x", [], {}),
    "thing": (Thing(), [Thing()], {"x": Thing()}, b"x", -1, math.nan),
}


async def make(call, given):
    """Make it, and close it."""
    made = call(**given)
    with contextlib.suppress(TimeoutError):
        if inspect.isawaitable(ended := getattr(made, "close", lambda: None)()):
            await ended


def wrong_for(parameter):
    is_number = parameter.annotation in (int, float, int | None, float | None)
    takes_bytes = "bytes" in str(parameter.annotation)
    values = WRONG["number" if is_number else "thing"]
    return [value for value in values if not (takes_bytes and isinstance(value, bytes))]


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_refused_by_its_name_the_limit_and_the_value(name, tmp_path):
    call, positional, options = CASES[name]
    security.write_key_file(tmp_path / "key", security.new_keys())
    parameters = inspect.signature(call).parameters
    base = dict(zip(parameters, positional, strict=False)) | options

    async def try_all():
        for field, parameter in parameters.items():
            for value in () if field in ANYTHING else wrong_for(parameter):
                try:
                    await make(call, base | {field: value})
                except (P2PError, TypeError, ValueError) as error:
                    owner = getattr(call, "__module__", "")
                    assert isinstance(error, P2PError | TypeError) or owner.startswith("recovery")
                    text = str(error)
                    assert field in text, (field, value, text)
                    assert " must be " in text, (field, value, text)
                    hidden = field in HIDDEN
                    assert hidden or str(value) in text or repr(value)[:20] in text, (
                        field,
                        value,
                        text,
                    )
                else:
                    pytest.fail(f"{field}={value!r} is accepted")

    with contextlib.chdir(tmp_path):
        asyncio.run(try_all())


@pytest.mark.parametrize("empty", ["", []])
@pytest.mark.parametrize("name", [*PEERS, *(f"aio.{name}" for name in PEERS)])
def test_a_peer_without_an_endpoint_is_refused(name, empty):
    call, given, _ = CASES[name]
    with pytest.raises(p2pmsg.ConfigError, match=r"endpoint|scheme"):
        asyncio.run(make(lambda: call(empty, *given[1:]), {}))


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 2**26), ("1 kB", 1000), ("1.5GiB", 3 * 2**29), ("70000", 70_000)]
)
def test_a_size_may_be_a_text(text, size):
    assert p2pmsg.PublisherConfig(replay_bytes=text).replay_bytes == size
    assert p2pmsg.SubscriberConfig(receive_bytes="1MiB").receive_bytes == 2**20
    with p2pmsg.Publisher("inproc://sizes", replay_bytes=text) as publisher:
        assert publisher.stats().replay_bytes == 0
    with pytest.raises(p2pmsg.ConfigError, match=r"receive_bytes must be a number of bytes"):
        p2pmsg.SubscriberConfig(receive_bytes="1 MiBit")


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
