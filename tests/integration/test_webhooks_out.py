"""Streams to webhooks over real HTTP: at least once, equal ids, order kept."""

import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
import threading

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")

from p2pmsg import LogConfig
from p2pmsg.cli import main
from p2pmsg.errors import ConfigError
from p2pmsg.webhooks import Endpoint, Sender, channel, delivery, letters
from p2pmsg.webhooks.client import Client
from p2pmsg.webhooks.delivery import Failure
from p2pmsg.webhooks.formats import Request
from p2pmsg.webhooks.signatures import content_of, is_signed, verifiers
from tests.endpoints import lasting_endpoint
from tests.integration.commands import command
from tests.integration.peers import eventually
from tests.integration.webhooks import LOOPBACK, SECRET, Receiver

FAST = (0, 0.05, 0.05, 0.05)


@pytest.fixture
def receiver():
    with Receiver() as made:
        yield made


@pytest.fixture
def publisher(make_publisher):
    return make_publisher()


@pytest.fixture
def sender(publisher, receiver, tmp_path, monkeypatch):
    """Make senders of the publisher to the receiver; all are closed in the end."""
    monkeypatch.setattr(channel, "_ASKED_S", 0.02)
    monkeypatch.setattr(delivery, "_PAUSE_S", 0.05)
    made = []

    def make(url=None, start="earliest", on_event=None, others=(), source=None, **settings):
        settings = {"allow": LOOPBACK, "retry": FAST, "name": "hook"} | settings
        endpoint = Endpoint(url or receiver.url, **settings)
        made.append(
            Sender(
                source or publisher.endpoint, state=tmp_path / "hooks",
                endpoints=[endpoint, *others], start=start, on_event=on_event,
            )
        )  # fmt: skip
        return made[-1]

    yield make
    for each in made:
        each.close()


def values(receiver):
    return [request.value["data"] for request in receiver.requests]


def test_a_stream_arrives_signed_and_in_order(publisher, receiver, sender):
    sender(secret=SECRET, topics=["orders*"])
    for n in range(50):
        publisher.publish("orders", n)
        publisher.publish("other", n)

    eventually(lambda: len(receiver.requests) == 50)
    assert values(receiver) == [*range(50)]
    for request in receiver.requests:
        stamp = request.headers["webhook-timestamp"]
        signed = content_of(request.id, stamp, request.body)
        assert is_signed(verifiers(SECRET), request.headers["webhook-signature"], signed)
    assert len({request.id for request in receiver.requests}) == 50


def test_what_failed_is_sent_again_with_the_same_id(publisher, receiver, sender):
    receiver.answer = lambda request: 500 if len(receiver.requests) < 3 else 200
    hook = sender()
    publisher.publish("t", 1)
    eventually(lambda: hook.stats().delivered == 1)
    assert len(receiver.requests) == 3
    assert len({request.id for request in receiver.requests}) == 1
    stats = hook.stats().endpoints["hook"]
    assert (stats.statuses, stats.failures) == ({500: 2, 200: 1}, 2)


def test_a_receiver_that_is_down_gets_everything_later(publisher, sender, tmp_path, caplog):
    port = int(lasting_endpoint().rpartition(":")[2])
    events = []
    retry = (0, 0.05, 300.0)
    hook = sender(f"http://127.0.0.1:{port}/hook", on_event=events.append, retry=retry)
    publisher.publish_many("t", [*range(30)])
    eventually(lambda: hook.stats().endpoints["hook"].is_open)
    eventually(lambda: "counts as down" in caplog.text)  # it is logged after it is so
    assert "the connection failed: Connection refused" in caplog.text
    with Receiver(port=port) as receiver:
        eventually(lambda: len(receiver.requests) == 30)
        assert values(receiver) == [*range(30)]
        eventually(lambda: [event.kind for event in events] == ["opened", "closed"])


def test_a_receiver_that_is_slow_holds_up_only_itself(publisher, receiver, sender):
    release = threading.Event()
    with Receiver(lambda request: release.wait(60) and 204) as slow:
        other = Endpoint(
            slow.url, allow=LOOPBACK, timeout=0.1, name="slow", retry=(0, 0.05, 300.0),
        )  # fmt: skip
        hook = sender(others=[other])
        publisher.publish_many("t", [*range(50)])
        eventually(lambda: len(receiver.requests) == 50)
        eventually(lambda: hook.stats().endpoints["slow"].failures >= 2)
        assert hook.stats().endpoints["slow"].delivered == 0
        assert "no answer within 0.1 s" in hook.stats().endpoints["slow"].reason
        release.set()
        eventually(lambda: hook.stats().endpoints["slow"].delivered == 50)


def test_redirects_are_failures_and_never_followed(publisher, receiver, sender):
    with Receiver() as target:
        receiver.answer = lambda request: (302, {"location": target.url})
        hook = sender(topics=["t"])
        publisher.publish("t", 1)
        eventually(lambda: hook.stats().endpoints["hook"].dead == 1)
        assert target.connections == 0
        assert hook.stats().endpoints["hook"].statuses == {302: 4}


def test_gone_stops_the_endpoint_also_after_a_restart(publisher, receiver, sender, caplog):
    receiver.answer = lambda request: 410
    events = []
    hook = sender(on_event=events.append)
    publisher.publish_many("t", [*range(5)])
    eventually(lambda: hook.stats().endpoints["hook"].stopped is not None)
    hook.close()
    assert "answered 410" in caplog.text
    receiver.answer = lambda request: 204

    again = sender(on_event=events.append)
    publisher.publish("t", 5)
    assert again.stats().endpoints["hook"].stopped is not None
    assert len(receiver.requests) == 1
    again.resume("hook")
    eventually(lambda: len(receiver.requests) == 7)
    assert values(receiver) == [0, *range(6)]
    assert [event.kind for event in events] == ["stopped"]


def test_dead_letters_are_listed_and_sent_again(publisher, receiver, sender, tmp_path, capsys):
    bad = threading.Event()
    receiver.answer = lambda request: (
        400 if request.value["data"] == 1 and not bad.is_set() else 200
    )
    events = []
    hook = sender(order="none", on_event=events.append)
    publisher.publish_many("t", [0, 1, 2])
    eventually(lambda: hook.stats().endpoints["hook"].dead_letters == 1)
    state = str(tmp_path / "hooks")
    assert main(["hook", "dead-letters", "ls", state, "--json"]) == 0
    letter = json.loads(capsys.readouterr().out)
    assert (letter["topic"], letter["sequence"], letter["attempts"]) == ("t", 1, 4)
    assert "answered 400" in letter["reason"]
    (dead,) = eventually(lambda: [event for event in events if event.kind == "dead"])
    assert dead.detail.id == letter["id"]

    bad.set()
    for action in ("ls", "show"):
        assert main(["hook", "dead-letters", action, state]) == 0
        assert letter["id"] in capsys.readouterr().out
    assert main(["hook", "dead-letters", "retry", state, letter["id"], "msg_x"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "1 will be sent again\n"
    assert "1 of these is no dead letter" in shown.err
    eventually(lambda: hook.stats().delivered == 3)
    assert {request.id for request in receiver.requests[-1:]} == {letter["id"]}
    eventually(lambda: hook.stats().endpoints["hook"].parked == 0)
    assert main(["hook", "dead-letters", "ls", state]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.internal
def test_where_no_letter_can_be_written_nothing_is_given_up(
    publisher, receiver, sender, monkeypatch, caplog
):
    monkeypatch.setattr(channel, "_AGAIN_S", 0.05)
    monkeypatch.setattr(letters, "_DEAD_MAX", 0)
    receiver.answer = lambda request: 400
    hook = sender(retry=(0,))
    publisher.publish_many("t", [0, 1])
    eventually(lambda: "more dead letters than 0" in caplog.text)
    assert hook.stats().endpoints["hook"].dead_letters == 0
    assert len(receiver.requests) == 1  # the stream waits for it
    monkeypatch.setattr(letters, "_DEAD_MAX", 2)
    eventually(lambda: hook.stats().endpoints["hook"].dead_letters == 2)


def test_parked_messages_outlive_the_sender(publisher, receiver, sender):
    receiver.answer = lambda request: 500 if request.value["data"] in (0, 1) else 200
    hook = sender(order="none", retry=(0, 60.0))
    publisher.publish_many("t", [*range(10)])
    eventually(lambda: hook.stats().delivered == 8 and hook.stats().endpoints["hook"].parked == 2)
    hook.close()
    receiver.answer = lambda request: 200
    receiver.requests.clear()

    again = sender(order="none")
    eventually(lambda: again.stats().delivered == 2)
    assert sorted(values(receiver)) == [0, 1]


def test_keys_keep_their_order_where_one_fails(publisher, receiver, sender):
    failing = {"k1": 5}

    def answer(request):
        left = failing.get(request.value["key"], 0)
        failing[request.value["key"]] = left - 1
        return 500 if left > 0 else 200

    receiver.answer = answer
    hook = sender(order="key", concurrency=4, retry=(0, *[0.02] * 9))
    for n in range(40):
        publisher.publish("t", n, key=f"k{n % 4}")
    eventually(lambda: hook.stats().delivered == 40)
    by_key = {}
    for request in receiver.requests:
        by_key.setdefault(request.value["key"], []).append(request.value["data"])
    for found in by_key.values():
        assert found == sorted(found)
        assert len(set(found)) == 10


def test_losses_are_reported(receiver, sender, make_publisher, caplog):
    publisher = make_publisher(replay_bytes=20_000)
    first = sender(source=publisher.endpoint)
    publisher.publish("t", 0)
    eventually(lambda: len(receiver.requests) == 1)
    eventually(lambda: first.stats().delivered == 1)
    first.close()
    for n in range(1, 200):
        publisher.publish("t", str(n) * 100)
        publisher.flush()
    events = []
    hook = sender(source=publisher.endpoint, on_event=events.append)
    eventually(lambda: hook.stats().delivered + hook.stats().endpoints["hook"].lost == 199)
    lost = hook.stats().endpoints["hook"].lost
    assert lost > 0
    eventually(  # it is called after they were counted
        lambda: sum(event.detail.count for event in events if event.kind == "lost") == lost
    )
    assert "lost" in caplog.text


@pytest.mark.internal
def test_a_full_window_leaves_the_stream_to_the_log(
    tmp_path, receiver, sender, make_publisher, monkeypatch
):
    """With nothing wanted the subscriber leaves; nothing is lost."""
    monkeypatch.setattr(channel, "_LEAVE_S", 0.1)
    publisher = make_publisher(log=LogConfig(tmp_path / "log"))
    release = threading.Event()
    receiver.answer = lambda request: 204 if release.is_set() else 503
    retry = (0, *[0.05] * 999)
    hook = sender(source=publisher.endpoint, retry=retry)
    publisher.publish_many("t", [*range(1500)])
    eventually(lambda: receiver.requests)
    eventually(lambda: publisher.stats().subscribers == 0)
    publisher.publish_many("t", [*range(1500, 1600)])
    release.set()
    eventually(lambda: hook.stats().delivered == 1600)
    first = list(dict.fromkeys(values(receiver)))
    assert first == [*range(1600)]


@pytest.fixture
def certificate(tmp_path):
    """Return the file of a certificate for 127.0.0.1, with its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="a certificate needs cryptography")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hooks")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    path = tmp_path / "hooks.pem"
    data = made.public_bytes(form[0]) + key.private_bytes(*form, serialization.NoEncryption())
    path.write_bytes(data)
    return path


def test_certificates_are_checked(publisher, sender, certificate, monkeypatch):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    with Receiver(tls=server) as receiver:
        hook = sender(receiver.url)
        publisher.publish("t", 1)
        eventually(lambda: "certificate" in hook.stats().endpoints["hook"].reason.lower())
        hook.close()
        assert receiver.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        again = sender(receiver.url)
        eventually(lambda: again.stats().delivered == 1)


class Names:
    """A resolver whose answers are given."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def resolve(self, host, port=0, family=socket.AF_INET):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        family = socket.AF_INET6 if ":" in answer else socket.AF_INET
        return [{"hostname": host, "host": answer, "port": port, "family": family, "proto": 0,
                 "flags": socket.AI_NUMERICHOST}]  # fmt: skip

    async def close(self):
        pass


FORBIDDEN_HOSTS = (
    "127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "017700000001", "[::1]",
    "[::ffff:127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[fe80::1]", "10.0.0.1",
    "192.168.1.1", "169.254.169.254", "224.0.0.1", "LOCALHOST", "127.0.0.1.",
)  # fmt: skip
"""Some of each kind; those of `unit/p2pmsg/webhooks/test_addresses.py` are all."""


def test_no_connection_is_made_to_forbidden_addresses():
    async def ask(host, port):
        names = None
        if host.lower() != "localhost":  # else it is a name, and names are checked when connecting
            with pytest.raises(ConfigError, match="url must be at a public address, or"):
                Endpoint(f"http://{host}:{port}/")
            names, host = Names(host.strip("[]")), "shop.example.com"
        client = Client(Endpoint(f"http://{host}:{port}/", timeout=5.0), names)
        try:
            return await client.post(Request({}, b"{}"), "msg_1")
        finally:
            await client.close()

    async def ask_all(port):
        return [await ask(host, port) for host in FORBIDDEN_HOSTS]

    with Receiver(host="0.0.0.0") as receiver:
        for host, result in zip(FORBIDDEN_HOSTS, asyncio.run(ask_all(receiver.port)), strict=True):
            assert isinstance(result, Failure), host
            assert result.status is None, host
        assert receiver.connections == 0


def test_a_name_that_is_bound_to_another_address_later_is_checked_again():
    async def ask(port):
        names = Names("127.0.0.2", "127.0.0.1", "127.0.0.2")
        endpoint = Endpoint(f"http://shop.example.com:{port}/", allow=["127.0.0.2/32"])
        client = Client(endpoint, names)
        try:
            return [await client.post(Request({}, b"{}"), "msg_1") for _ in range(3)]
        finally:
            await client.close()

    with Receiver(lambda request: (204, {"connection": "close"}), host="0.0.0.0") as receiver:
        first, second, third = asyncio.run(ask(receiver.port))
        assert (first, third) == (204, 204)
        assert "127.0.0.1 is no public address" in second.reason
        assert receiver.connections == 2


def test_a_batch_has_several_events(publisher, receiver, sender):
    hook = sender(format="cloudevents-batch")
    publisher.publish_many("t", [*range(350)])
    eventually(lambda: hook.stats().delivered == 350)
    batches = [request.value for request in receiver.requests]
    assert [event["data"] for batch in batches for event in batch] == [*range(350)]
    assert 1 < max(map(len, batches)) <= 100


def test_the_library_of_cloudevents_reads_all_modes(publisher, receiver, sender):
    pytest.importorskip("cloudevents", reason="needs cloudevents from PyPI")
    from cloudevents.core.bindings.http import HTTPMessage, from_http_event

    for form in ("cloudevents", "cloudevents-structured"):
        hook = sender(format=form, name=form)
        publisher.publish("t", {"a": "é%"}, key="köy")
        eventually(lambda hook=hook: hook.stats().delivered >= 1)
        request = receiver.requests[-1]
        event = from_http_event(HTTPMessage(headers=request.headers, body=request.body))
        assert event.get_data() == {"a": "é%"}
        assert event.get_type() == "t"
        assert event.get_id().startswith("msg_")
        assert event.get_extension("partitionkey") == "köy"
        hook.close()


def test_the_command_delivers_and_ends_well(publisher, receiver, tmp_path):
    arguments = ["--state", str(tmp_path / "s"), "--allow", "127.0.0.0/8", "--start", "earliest"]
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    publisher.publish("t", {"a": 1})
    with command(tmp_path, "hook", "out", publisher.endpoint, receiver.url, *arguments,
                 "--secret-file", str(secret)) as running:  # fmt: skip
        eventually(lambda: len(receiver.requests) == 1)
        eventually(lambda: "as 127.0.0.1-" in running.said())
        running.process.terminate()
        assert running.wait() == 0
        assert "1 delivered" in running.said()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"url": "ftp://a"}, "url"),
        ({"url": "http://user:pass@a"}, "url"),
        ({"url": "http://a:99999"}, "url"),
        ({"url": "http://2130706433/TOKEN"}, "url"),
        ({"secret": "whsec_é"}, "secret"),
        ({"scheme": "stripe"}, "scheme"),
        ({"scheme": "github"}, "secret"),
        ({"scheme": "github", "secret": ["a", "b"]}, "secret"),
        ({"headers": {"Host": "a"}}, "headers"),
        ({"headers": {"a": "b\r\nc"}}, "headers"),
        ({"name": "../x"}, "name"),
    ],
)
def test_a_setting_out_of_its_limits_is_named_and_no_secret_is_shown(settings, field):
    with pytest.raises(ConfigError) as raised:
        Endpoint(**({"url": "http://a.example.com/TOKEN"} | settings))
    assert str(raised.value).startswith(field)
    assert "pass" not in str(raised.value)
    assert "TOKEN" not in str(raised.value)
    assert "TOKEN" not in repr(Endpoint("http://a.example.com/TOKEN", secret=SECRET))
    assert SECRET not in repr(Endpoint("http://a.example.com/TOKEN", secret=SECRET))
