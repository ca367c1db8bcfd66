"""Webhooks into a stream over real HTTP: verified, once, and in the log before the answer."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import logging
import re
import socket
import time

import pytest

pytest.importorskip("uvicorn", reason="webhooks in over HTTP need uvicorn (extra webhooks)")

from p2pmsg import LogConfig, aio
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import LogFailedError, LogInUseError
from p2pmsg.webhooks import receive
from p2pmsg.webhooks.signatures import content_of, signature_header, signers
from tests.integration.commands import command
from tests.integration.peers import eventually, in_threads
from tests.integration.webhooks import SECRET, post, served

JSON = {"content-type": "application/json"}


def signed(body, hook_id="msg_1", stamp=None, secret=SECRET):
    stamp = int(time.time()) if stamp is None else stamp
    return {
        **JSON,
        "webhook-id": hook_id,
        "webhook-timestamp": str(stamp),
        "webhook-signature": signature_header(signers(secret), content_of(hook_id, stamp, body)),
    }


@pytest.fixture
def publisher(make_publisher, tmp_path):
    return make_publisher(log=LogConfig(tmp_path / "log"))


def messages(publisher, make_subscriber, count):
    with make_subscriber(publisher.endpoint, start="earliest") as subscriber:
        return [subscriber.receive(timeout=60) for _ in range(count)]


def test_a_signed_request_is_published_before_it_is_answered(publisher, make_subscriber):
    app = receive(publisher, secrets=SECRET, topic="hooks")
    body = b'{"a": 1, "type": "user.created"}'
    with served(app) as port:
        assert post(port, body, signed(body))[0] == 204
        assert publisher.stats().published == 1
        (message,) = messages(publisher, make_subscriber, 1)
    assert message.value == {"a": 1, "type": "user.created"}
    assert message.headers == {"webhook-id": "msg_1", "webhook-type": "user.created"}


def test_each_id_is_taken_once_also_after_a_restart(publisher, tmp_path):
    body = b"{}"
    for turn in range(2):
        app = receive(publisher, secrets=SECRET, topic="hooks", seen=tmp_path / "seen")
        with served(app) as port:
            for _ in range(3):
                assert post(port, body, signed(body))[0] == 204
        assert (app.published, app.duplicates) == ((1, 2), (0, 3))[turn]
    assert publisher.stats().published == 1


def test_the_same_request_at_once_is_published_once(publisher):
    app = receive(publisher, secrets=SECRET, topic="hooks")
    body, statuses = b"{}", []
    with served(app) as port:
        in_threads(*[lambda: statuses.append(post(port, body, signed(body))[0])] * 8)
    assert set(statuses) <= {204, 503}  # one that comes while another is taken is to come again
    assert app.published == 1
    assert app.duplicates == statuses.count(204) - 1


def test_the_command_serves_and_ends_well(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    with command(tmp_path, "hook", "in", "--listen", "127.0.0.1:0", "--publish",
                 f"ipc://{tmp_path}/in", "--log", str(tmp_path / "log"),
                 "--secret-file", str(secret)) as running:  # fmt: skip
        eventually(lambda: "published at" in running.said())
        port = int(re.search(r"http://127.0.0.1:(\d+),", running.said())[1])
        assert [post(port, b"{}", signed(b"{}"))[0] for _ in range(2)] == [204, 204]
        assert post(port, None, {}, "/health", method="GET")[0] == 200
        running.process.terminate()
        assert running.wait() == 0
        assert "1 published, 1 came again, 0 refused" in running.said()
    assert (tmp_path / "log.seen").exists()


BODY = b'{"a": 1}'


def wrong_requests():
    """Yield what is posted, the status of the answer, and why it is refused."""
    now = int(time.time())
    other = "whsec_" + base64.b64encode(b"another one, of 24 bytes").decode()
    event = {"ce-id": "1", "ce-source": "s", "ce-type": "t"}
    yield BODY, JSON, 401, "unsigned"
    yield BODY, signed(b"other"), 401, "signature"
    yield BODY, signed(BODY, secret=other), 401, "signature"
    yield BODY, signed(BODY, stamp=now - 301), 401, "time"
    yield BODY, signed(BODY, stamp=now + 330), 401, "time"
    yield BODY, signed(BODY) | {"webhook-id": "other"}, 401, "signature"
    yield BODY, signed(BODY) | {"webhook-timestamp": str(now - 1)}, 401, "signature"
    yield BODY, signed(BODY) | {"webhook-signature": "v1,AAAA"}, 401, "signature"
    yield BODY, signed(BODY, stamp="x"), 400, "time"
    yield BODY, signed(BODY, "x" * 300), 400, "id"
    for body in (b"no JSON", b"NaN", b'{"a": 1e999}'):
        yield body, signed(body), 400, "body"
    yield BODY, signed(BODY) | {"content-type": "text/plain; charset=nonsense"}, 415, "charset"
    for kind in ("application/cloudevents+json", "application/cloudevents-batch+json"):
        yield BODY, signed(BODY) | {"content-type": kind}, 400, "body"
    yield BODY, signed(BODY) | {"content-encoding": "gzip"}, 415, "encoding"
    yield BODY, signed(BODY) | event | {"ce-specversion": "0.3"}, 400, "body"
    yield BODY, signed(BODY) | event | {"ce-specversion": "1.0", "ce-id": ""}, 400, "body"


def test_what_is_not_right_is_refused(publisher):
    app = receive(publisher, secrets=SECRET, topic="hooks")
    with served(app) as port:
        for body, headers, status, why in wrong_requests():
            app.rejected.clear()
            assert post(port, body, headers)[0] == status, (headers, why)
            assert app.rejected == {why: 1}
    assert publisher.stats().published == 0


def test_github_signs_the_body(publisher, make_subscriber):
    app = receive(publisher, secrets=["old", "It's a Secret to Everybody"], topic="gh.{type}",
                  scheme="github")  # fmt: skip
    body = b"Hello, World!"
    digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {
        "x-hub-signature-256": f"sha256={digest}",  # the example of GitHub's documentation
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "x-github-event": "push",
    }
    with served(app) as port:
        assert [post(port, body, headers)[0] for _ in range(2)] == [204, 204]
        assert post(port, body + b"x", headers)[0] == 401
        assert post(port, body, {})[0] == 401
    (message,) = messages(publisher, make_subscriber, 1)
    assert (message.topic, message.value) == ("gh.push", body)
    assert (app.published, app.duplicates) == (1, 1)


def test_stripe_signs_time_and_body(publisher):
    app = receive(publisher, secrets="whsec_test", topic="stripe", scheme="stripe")
    body = b'{"id": "evt_1", "type": "charge.failed"}'

    def headers(stamp, secret=b"whsec_test"):
        mac = hmac.new(secret, f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
        return {**JSON, "stripe-signature": f"t={stamp},v1={'0' * 64},v1={mac},v0=x"}

    now = int(time.time())
    with served(app) as port:
        assert post(port, body, headers(now))[0] == 204
        assert post(port, body, headers(now + 1))[0] == 204
        assert post(port, body, headers(now - 400))[0] == 401
        assert post(port, body, headers(now, b"other"))[0] == 401
        assert post(port, body, JSON)[0] == 401
    assert (app.published, app.duplicates) == (1, 1)


def test_cloud_events_of_all_modes(publisher, make_subscriber):
    library = pytest.importorskip("cloudevents", reason="needs cloudevents from PyPI")
    from cloudevents.core.bindings.http import to_binary_event, to_structured_event
    from cloudevents.core.v1.event import CloudEvent

    assert library
    app = receive(publisher, secrets="token", topic="{type}", scheme="token")
    bearer = {"authorization": "Bearer token"}

    def event(number, data):
        attributes = {"id": str(number), "source": "/s", "type": "t", "specversion": "1.0",
                      "datacontenttype": "application/json", "partitionkey": "k"}  # fmt: skip
        return CloudEvent(attributes, data)

    with served(app) as port:
        for number, make in enumerate([to_binary_event, to_structured_event]):
            made = make(event(number, {"n": number}))
            body = made.body if isinstance(made.body, bytes) else made.body.encode()
            assert post(port, body, dict(made.headers) | bearer)[0] == 204
        batch = [
            {"specversion": "1.0", "id": str(n), "source": "/s", "type": "t", "data": {"n": n}}
            for n in (1, 2)
        ] + [{"specversion": "1.0", "id": "3", "source": "/s", "type": "t",
              "data_base64": base64.b64encode(b"\xff").decode()}]  # fmt: skip
        headers = bearer | {"content-type": "application/cloudevents-batch+json"}
        assert post(port, json.dumps(batch).encode(), headers)[0] == 204
        assert post(port, b"{}", JSON | {"authorization": "Bearer other"})[0] == 401
        found = messages(publisher, make_subscriber, 4)
    assert [message.value for message in found] == [{"n": 0}, {"n": 1}, {"n": 2}, b"\xff"]
    assert [message.key for message in found[:2]] == ["k", "k"]
    assert app.duplicates == 1


def cloud_events(*parts):
    """Return a batch as it is posted."""
    common = {"specversion": "1.0", "source": "/s", "type": "t"}
    events = [common | {"id": str(n)} | part for n, part in enumerate(parts)]
    return json.dumps(events).encode()


BATCH = {"authorization": "Bearer token", "content-type": "application/cloudevents-batch+json"}


@pytest.mark.parametrize(
    "bad",
    [{"data": {"n": 2**70}}, {"data": "\ud800"}, {"data": {"\ud800": 1}}, {"type": "\ud800"},
     {"partitionkey": "\ud800"}, {"source": "\ud800"}, {"time": "9999-12-31T23:59:59Z"}],
    ids=["int", "value", "name", "type", "key", "source", "time"],
)  # fmt: skip
def test_a_batch_is_published_whole_or_not_at_all(publisher, bad):
    app = receive(publisher, secrets="token", topic="{type}", scheme="token")
    good = [{"data": {"n": n}} for n in range(9)]
    with served(app) as port:
        assert post(port, cloud_events(*good[:6], bad, *good[6:]), BATCH)[0] == 400
        assert app.published == publisher.stats().published == 0
        assert post(port, cloud_events(*good), BATCH)[0] == 204  # no id was noted
    assert app.published == publisher.stats().published == 9


def test_bodies_have_a_bound(publisher):
    app = receive(publisher, secrets=SECRET, topic="t", body_bytes_max=1000)
    with served(app) as port:
        assert post(port, bytes(1001), {})[0] == 413
        body = b'"' + b"a" * 998 + b'"'
        assert post(port, body, signed(body))[0] == 204
        assert post(port, iter([b"x" * 600] * 2), {})[0] == 413  # chunked
        # Who sends all before it reads gets the answer, and not a connection that is reset.
        for _ in range(3):
            assert post(port, bytes(20_000_000), {})[0] == 413
    assert app.rejected == {"size": 5}


def status_of(port, hook_id):
    return post(port, b"{}", signed(b"{}", hook_id))[0]


def posted(port):
    """Post a webhook; return the status, or None where the connection was closed."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return post(port, b"{}", signed(b"{}"))[0]


def test_what_the_publisher_cannot_take_is_too_large(make_publisher):
    publisher = make_publisher(config=PublisherConfig(message_bytes_max=100_000))
    app = receive(publisher, secrets="token", topic="t", scheme="token")
    body = cloud_events({"data": 1}, {"data": [0.1] * 12_000})
    with served(app) as port:
        assert post(port, bytes(100_001), BATCH)[0] == 413
        assert len(body) < 100_000
        status, _, said = post(port, body, BATCH)
    assert status == 413
    assert said.endswith(b"bytes, and the limit is 100000 (message_bytes_max)\n")
    assert app.rejected == {"size": 2}
    assert publisher.stats().published == 0


def test_slow_clients_are_closed(publisher):
    app = receive(publisher, secrets=SECRET, topic="t")
    with served(app, timeout=0.7) as port, contextlib.ExitStack() as opened:

        def send(data):
            made = opened.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            made.sendall(data)
            return made

        def answered():  # where this process was held up, it was too slow itself
            second = send(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            return second.recv(1000).startswith(b"HTTP/1.1 200") and second

        silent = send(b"")
        headers = send(b"POST / HTTP/1.1\r\nHost: a\r\nX-A:")
        body = send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        second = eventually(answered)
        with contextlib.suppress(OSError):
            second.sendall(b"GET /health HTTP/1.1\r\nHo")
        eventually(lambda: posted(port) == 204)
        assert body.recv(1000).startswith(b"HTTP/1.1 408")
        assert (headers.recv(1000), silent.recv(1000)) == (b"", b"")
        while second.recv(1000):
            pass  # the rest of the answer, then the end


def test_requests_have_a_rate(publisher):
    app = receive(publisher, secrets=SECRET, topic="t", client_rate=1)
    with served(app) as port:
        for number in range(50):
            status, headers, _ = post(port, b"{}", signed(b"{}", f"m{number}"))
            if status == 429:
                break
    assert (status, headers["retry-after"]) == (429, "1")
    assert app.published == number


def test_health_and_metrics(publisher):
    app = receive(publisher, secrets=SECRET, topic="t")
    with served(app) as port:
        assert post(port, None, {}, "/health", method="GET")[::2] == (200, b"ok\n")
        post(port, b"{}", signed(b"{}"))
        post(port, b"{}", {})
        status, _, text = post(port, None, {}, "/metrics", method="GET")
        status_of_get, headers, _ = post(port, None, {}, "/", method="GET")
        assert (status_of_get, headers["allow"]) == (405, "POST")
        assert "GET" in post(port, None, {}, "/health", method="PUT")[1]["allow"]
    lines = text.decode().splitlines()
    assert status == 200
    for line in (
        'p2pmsg_webhooks_requests_total{status="204"} 1', "p2pmsg_webhooks_published_total 1",
        'p2pmsg_webhooks_rejected_total{reason="unsigned"} 1', "p2pmsg_webhooks_healthy 1",
    ):  # fmt: skip
        assert line in lines


def test_a_publisher_of_asyncio(make_subscriber):
    """The application makes the publisher in the server's loop, when that starts."""
    made = {}

    async def app(scope, receive_event, send):
        if "app" not in made:
            made["publisher"] = aio.Publisher("tcp://127.0.0.1:0")
            made["app"] = receive(made["publisher"], secrets=SECRET, topic="t")
        if scope["type"] == "http" and scope["path"] == "/close":
            await made["publisher"].close()
        await made["app"](scope, receive_event, send)

    with served(app) as port:
        assert post(port, b"{}", signed(b"{}"))[0] == 204
        found = messages(made["publisher"], make_subscriber, 1)
        post(port, b"{}", {}, "/close")
    assert found[0].value == {}


def test_of_a_batch_that_fails_midway_each_event_is_published_once():
    """What a publisher of asyncio accepted before it failed does not come again."""

    class Failing(aio.Publisher):
        fails = 1

        def publish(self, topic, value, **options):
            if self.stats().published == 2 and self.fails:
                self.fails = 0
                raise LogFailedError("No space left on device")
            return super().publish(topic, value, **options)

    async def run():
        async with Failing("inproc://hooks") as publisher:
            app = receive(publisher, secrets="token", topic="t", scheme="token")
            body, statuses = cloud_events(*[{"data": n} for n in range(4)]), []

            async def receive_event():
                return {"type": "http.request", "body": body}

            async def send(event):
                statuses.append(event.get("status"))

            headers = [(name.encode(), text.encode()) for name, text in BATCH.items()]
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
            for _ in range(2):
                await app(scope, receive_event, send)
            return statuses[::2], app.duplicates, publisher.stats().published

    assert asyncio.run(run()) == ([503, 204], 2, 4)


def test_a_function_that_fails_is_logged_and_counted(publisher, caplog):
    app = receive(publisher, secrets=SECRET, topic=lambda hook: hook.value["topic"])
    with served(app) as port:
        status, headers, body = post(port, BODY, signed(BODY))
        assert (status, headers["retry-after"], body) == (503, "5", b"it cannot be taken now\n")
        metrics = post(port, None, {}, "/metrics", method="GET")[2].decode().splitlines()
    assert 'p2pmsg_webhooks_requests_total{status="503"} 1' in metrics
    assert 'p2pmsg_webhooks_rejected_total{reason="failed"} 1' in metrics
    assert "Traceback" in caplog.text
    assert "KeyError: 'topic'" in caplog.text
    assert publisher.stats().published == 0


def test_the_file_of_ids_has_one_user(publisher, tmp_path):
    app = receive(publisher, secrets=SECRET, topic="t", seen=tmp_path / "seen")
    with pytest.raises(
        LogInUseError, match=r"^the file '.*/seen' is in use by another `p2pmsg hook"
    ):
        receive(publisher, secrets=SECRET, topic="t", seen=tmp_path / "seen")
    app.close()
    receive(publisher, secrets=SECRET, topic="t", seen=tmp_path / "seen").close()


def test_a_publisher_that_fails_is_named_once(make_publisher, caplog):
    publisher = make_publisher()
    app = receive(publisher, secrets=SECRET, topic="t")
    publisher.close()
    with served(app) as port:
        assert [status_of(port, f"m{number}") for number in range(5)] == [503] * 5
    assert caplog.text.count("publishing webhooks: ") == 1
    assert app.rejected == {"publisher": 5}


def test_what_the_server_refuses_is_counted_and_not_said(make_publisher, caplog):
    logger = logging.getLogger("uvicorn.error")
    app = receive(make_publisher(), secrets=SECRET, topic="t")
    try:
        with served(app, connections_max=2) as port:
            logger.addHandler(caplog.handler)  # it does not hand on to the root
            with socket.create_connection(("127.0.0.1", port), 60) as made:
                made.sendall(b"no HTTP\r\n\r\n")
                assert made.recv(1000).startswith(b"HTTP/1.1 400")
            with socket.create_connection(("127.0.0.1", port), 60):
                eventually(lambda: status_of(port, "a") == 503)
    finally:
        logger.removeHandler(caplog.handler)
    assert app.rejected["http"] == 1
    assert app.rejected["connections"] > 0
    assert "uvicorn" not in [record.name.partition(".")[0] for record in caplog.records]
