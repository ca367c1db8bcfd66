"""Streams to browsers over real HTTP: resumed, fanned out, cut off, refused; and what is posted."""

import contextlib
import http.client
import json
import socket

import pytest

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")

import p2pmsg
from p2pmsg import LogConfig
from p2pmsg.errors import ConfigError
from p2pmsg.http import Gateway, GatewayConfig, gateway
from tests.endpoints import lasting_endpoint
from tests.integration.peers import eventually
from tests.integration.webhooks import post, served
from tests.unit.p2pmsg.webhooks.test_parts import no_file_above

TOKEN = "a-token-of-many-letters"


@contextlib.contextmanager
def serving(*arguments, port=0, write_timeout=10.0, **options):
    """Serve by uvicorn in a thread; yields (port, application)."""
    app = Gateway(*arguments, **options)
    with served(app, port, timeout=write_timeout) as port:
        yield port, app


class Events:
    """An event stream, read as the HTML standard has it."""

    def __init__(self, port, path, last_id=None, **headers):
        given = {"accept": "text/event-stream", **headers}
        if last_id is not None:
            given["last-event-id"] = last_id
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.request("GET", path, headers=given)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self.last_id = last_id
        self.retry = None

    def next(self):
        """Return (kind, data) of the next event; None at the end."""
        kind, data, place = "message", [], self.last_id
        while True:
            try:
                line = self.answer.readline().decode()
            except (http.client.IncompleteRead, ConnectionError):
                return None
            if not line.endswith("\n"):
                return None
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                place = value
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "retry":
                self.retry = int(value)
            elif line == "\n":
                self.last_id = place
                return (kind, json.loads("\n".join(data))) if data else ("id", place)

    def wait_ready(self):
        """Wait until it has joined: the block that says only where it is."""
        while True:
            found = self.next()
            if found == ("id", self.last_id) and self.last_id is not None:
                return self

    def messages(self, count):
        """Return the next events that are messages or losses."""
        found = []
        while len(found) < count:
            event = self.next()
            assert event is not None, f"it ended after {found[-3:]}"
            if event[0] != "id":
                found.append(event)
        return found

    def close(self):
        self.answer.close()
        self._connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ask(port, method, path, body=None, **headers):
    return post(port, body, headers, path, method=method)


def values(events):
    return [data["value"] for kind, data in events if kind == "message"]


@pytest.fixture
def publisher(make_publisher, tmp_path):
    return make_publisher(log=LogConfig(tmp_path / "log"))


def test_a_topic_comes_as_events_with_ids(publisher):
    publisher.publish("a", 0)
    with serving(publisher.endpoint) as (port, app):
        publisher.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready() as events:
            publisher.publish("a", {"price": 1.5}, key="x")
            publisher.publish("b", 2)
            publisher.publish("a", b"\xff")
            first, second = events.messages(2)
        assert events.retry == 1000
        assert events.last_id == f"{publisher.session:016x}:2"
        assert events.answer.headers["content-type"].startswith("text/event-stream")
    kind, data = first
    assert kind == "message"
    assert data["topic"] == "a"
    assert data["sequence"] == 1
    assert data["key"] == "x"
    assert data["value"] == {"price": 1.5}
    assert second[1]["value"] == {"base64": "/w=="}
    assert app.stats().opened == 1
    assert app.stats().connections == 0


def test_who_comes_back_gets_what_it_missed_and_nothing_twice(publisher):
    with serving(publisher.endpoint) as (port, _):
        publisher.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready() as events:
            for number in range(100):
                publisher.publish("a", number)
            assert values(events.messages(100)) == list(range(100))
            place = events.last_id
        for number in range(100, 6_000):
            publisher.publish("a", number)
        with Events(port, "/topics/a", place) as events:
            for number in range(6_000, 6_500):
                publisher.publish("a", number)
            assert values(events.messages(6_400)) == list(range(100, 6_500))


def test_it_goes_on_over_restarts_of_the_publisher_and_of_the_server(make_publisher, tmp_path):
    log, endpoint = LogConfig(tmp_path / "log"), lasting_endpoint()
    at = int(lasting_endpoint().rpartition(":")[2])
    publisher = make_publisher(endpoint, log=log)
    with serving(endpoint, port=at) as (port, _):
        publisher.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready() as events:
            publisher.publish("a", 0)
            events.messages(1)
            publisher.close()
            publisher = make_publisher(endpoint, log=log)
            publisher.publish("a", 1)
            assert values(events.messages(1)) == [1]
            place = events.last_id
    publisher.publish("a", 2)
    with serving(endpoint, port=at) as (port, _), Events(port, "/topics/a", place) as events:
        assert values(events.messages(1)) == [2]
        publisher.publish("a", 3)
        assert values(events.messages(1)) == [3]


def test_who_opened_before_a_publisher_was_there_does_not_get_its_whole_log(
    make_publisher, tmp_path
):
    log, endpoint = LogConfig(tmp_path / "log"), lasting_endpoint()
    publisher = make_publisher(endpoint, log=log)
    publisher.publish_many("a", list(range(100)))
    publisher.close()
    with serving(endpoint) as (port, app):
        with Events(port, "/topics/a").wait_ready() as events:
            place = events.last_id
        publisher = make_publisher(endpoint, log=log)
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish("a", "new")
        eventually(lambda: app.stats().messages == 1)
        with Events(port, "/topics/a", place) as events:
            assert values(events.messages(1)) == ["new"]
        with Events(port, "/topics/a", "-") as events:  # of another gateway
            assert values(events.messages(101)) == [*range(100), "new"]


def test_what_nobody_has_any_more_is_reported_lost(make_publisher):
    former = make_publisher(lasting_endpoint())
    with serving(former.endpoint, config=GatewayConfig(resume_timeout=3.0)) as (port, _):
        former.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready() as events:
            former.publish("a", 0)
            events.messages(1)
            place = events.last_id
        endpoint, session = former.endpoint, former.session
        former.close()
    with (
        make_publisher(endpoint) as publisher,
        serving(endpoint, config=GatewayConfig(resume_timeout=3.0)) as (port, _),
        Events(port, "/topics/a", place) as events,
    ):
        (lost,) = events.messages(1)
        assert lost[0] == "loss"
        assert lost[1] == {"topic": "a", "session": f"{session:016x}", "start": 1, "stop": None,
                           "reason": "publisher_gone"}  # fmt: skip
        publisher.publish("a", "new")
        assert values(events.messages(1)) == ["new"]


def test_what_the_buffer_has_dropped_is_reported_with_its_range(make_publisher):
    publisher = make_publisher(replay_bytes=2**20)
    with serving(publisher.endpoint) as (port, app):
        publisher.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready() as events:
            publisher.publish("a", b"x")
            events.messages(1)
            place = events.last_id
        for _ in range(400):
            publisher.publish("a", "v" * 10_000)
        eventually(lambda: app.stats().messages == 401)  # else it joins among those that follow
        with Events(port, "/topics/a", place) as events:
            following, lost = 1, 0
            while following < 401:
                ((kind, data),) = events.messages(1)
                if kind == "loss":
                    assert data["reason"] == "evicted"
                    assert data["start"] == following
                    following = data["stop"]
                    lost += following - data["start"]
                else:
                    assert data["sequence"] == following
                    following += 1
    assert 200 < lost < 400  # the buffer holds a hundred


def test_who_reads_too_slowly_is_cut_off_and_comes_back_for_the_rest(publisher):
    config, count = GatewayConfig(buffer_bytes=256 * 1024), 3_200
    with serving(publisher.endpoint, config=config, write_timeout=0.5) as (port, app):
        publisher.wait_for_subscribers(1, timeout=60)
        slow = Events(port, "/topics/a").wait_ready()
        with Events(port, "/topics/a").wait_ready() as quick:
            for number in range(count):
                publisher.publish("a", [number, "x" * 4500])
                if number % 20 == 19:
                    quick.messages(20)
            eventually(lambda: app.stats().slow == 1)
        following = 0
        while (event := slow.next()) is not None:
            if event[0] == "message":
                assert event[1]["sequence"] == following
                following += 1
        slow.close()
        assert 0 < following < count
        with Events(port, "/topics/a", slow.last_id) as again:
            rest = again.messages(count - following)
    assert [data["sequence"] for _, data in rest] == list(range(following, count))


def test_a_post_is_published_by_its_content_type(publisher, make_subscriber):
    with serving(publisher.endpoint, publisher=publisher) as (port, app):
        for kind, body in (
            ("application/json", b'{"a": [1, 2.5]}'), ("text/plain; charset=utf-8", "é".encode()),
            ("application/octet-stream", b"\x00\xff"),
            ('text/plain; Charset="ISO-8859-1"', "é".encode("latin-1")),
        ):  # fmt: skip
            status, _, answer = ask(
                port, "POST", "/topics/a%2Fb?key=k", body, **{"content-type": kind}
            )
            assert status == 200
        assert json.loads(answer) == {
            "topic": "a/b", "session": f"{publisher.session:016x}", "sequence": 3,
        }  # fmt: skip
        assert app.stats().published == 4
    with make_subscriber(publisher.endpoint, start="earliest") as subscriber:
        found = [subscriber.receive(timeout=60) for _ in range(4)]
    assert [message.value for message in found] == [{"a": [1, 2.5]}, "é", b"\x00\xff", "é"]
    assert {message.key for message in found} == {"k"}


NO_UTF8 = b'{"\\ud800": 1180591620717411303424}'


@pytest.fixture(scope="module")
def refusing():
    """One server for all that is refused: (port, application)."""
    small = p2pmsg.PublisherConfig(message_bytes_max=200_000)
    with (
        p2pmsg.Publisher("tcp://127.0.0.1:0", config=small) as publisher,
        serving(publisher.endpoint, ["a*"], publisher=publisher) as found,
    ):
        yield found


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/topics/", None, {}, 400),
        ("GET", "/topics/%ff", None, {}, 400),
        ("GET", "/topics/a?format=xml", None, {}, 400),
        ("GET", "/topics/other", None, {}, 404),
        ("GET", "/nothing", None, {}, 404),
        ("GET", "/topics/a", None, {"last-event-id": "nonsense"}, 400),
        ("GET", "/topics/a", None, {"host": "evil.example.com"}, 421),
        ("GET", "/topics/a", None, {"origin": "https://evil.example.com"}, 403),
        ("PUT", "/topics/a", b"1", {}, 405),
        ("POST", "/topics/other", b"1", {}, 404),
        ("GET", "/topics/a?" + "&" * 10 + "x=1&" * 300, None, {}, 400),
        ("POST", "/topics/a*", b"1", {}, 400),
        ("POST", "/topics?topic=a&topic=ab", b"1", {}, 400),
        ("POST", "/topics/a", b"{", {"content-type": "application/json"}, 400),
        ("POST", "/topics/a", NO_UTF8, {"content-type": "application/json"}, 400),
        ("POST", "/topics/a", b"[" * 100_000, {"content-type": "application/json"}, 400),
        ("POST", "/topics/a", b"\xff", {"content-type": "text/plain"}, 400),
        ("POST", "/topics/a", b"x", {"content-type": "text/plain; charset=nonsense"}, 415),
        ("POST", "/topics/a", b"x" * (2**20 + 1), {}, 413),
        ("POST", "/topics/a", b"x", {"content-encoding": "gzip"}, 415),
        ("POST", "/topics/a", b"1", {"origin": "https://evil.example.com"}, 403),
    ],
)
def test_bad_requests_are_refused_by_what_is_wrong(refusing, method, path, body, headers, status):
    port, app = refusing
    before = app.statuses[status]
    found, _, text = ask(port, method, path, body, **headers)
    assert found == status, text
    assert text
    assert app.statuses[status] == before + 1
    assert app.stats().published == 0


def test_tokens(publisher):
    options = {"tokens": [TOKEN, "another-token-of-letters"], "query_token": True}
    with serving(publisher.endpoint, publisher=publisher, **options) as (port, _):
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert ask(port, "GET", "/stats")[0] == 401
        assert ask(port, "GET", "/stats", authorization="Bearer wrong")[0] == 401
        status, headers, _ = ask(port, "POST", "/topics/a", b"1")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert ask(port, "GET", "/stats", **bearer)[0] == 200
        assert ask(port, "POST", f"/topics/a?token={TOKEN}", b"1")[0] == 200
        with Events(port, f"/topics/a?token={TOKEN}") as events:
            assert events.status == 200


def test_a_site_that_may_ask_is_named_in_the_answer(publisher):
    site = "https://app.example.com"
    with serving(publisher.endpoint, origins=[site]) as (port, _):
        status, headers, _ = ask(port, "OPTIONS", "/topics/a", origin=site)
        assert status == 204
        assert headers["access-control-allow-origin"] == site
        assert ask(port, "GET", "/stats", origin=site)[1]["access-control-allow-origin"] == site
    with pytest.raises(ConfigError, match="allow_origins"):
        Gateway("tcp://127.0.0.1:1", origins=["*"])
    with pytest.raises(ConfigError, match="tokens"):
        Gateway("tcp://127.0.0.1:1", tokens=["short"])


@pytest.mark.internal
def test_a_silent_connection_gets_comments_and_health_says_who_answers(publisher, monkeypatch):
    monkeypatch.setattr(gateway, "_KEEP_ALIVE_S", 0.05)
    with serving(publisher.endpoint) as (port, _):
        eventually(lambda: ask(port, "GET", "/health")[0] == 200)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            raw.sendall(b"GET /topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
            found = b""
            while found.count(b": keep-alive") < 2:
                found += raw.recv(4096)
        assert b"p2pmsg" in ask(port, "GET", "/")[2]
    with serving("tcp://127.0.0.1:1") as (port, _):
        assert ask(port, "GET", "/health")[0] == 503


def test_a_connection_too_many_is_refused(publisher):
    config = GatewayConfig(connections_max=1)
    with serving(publisher.endpoint, config=config) as (port, _):
        publisher.wait_for_subscribers(1, timeout=60)
        with Events(port, "/topics/a").wait_ready():
            status, headers, _ = ask(port, "GET", "/topics/a")
            assert (status, headers["retry-after"]) == (503, "5")


def test_a_log_that_takes_nothing_is_named_and_streams_go_on(make_publisher, tmp_path, caplog):
    posts = make_publisher(log=LogConfig(tmp_path / "log", fsync="always"))
    other = make_publisher()
    with serving([posts.endpoint, other.endpoint], publisher=posts) as (port, app):
        eventually(lambda: app.stats().connected == 2)
        eventually(lambda: ask(port, "GET", "/health")[::2] == (200, b"ok\n"))
        with Events(port, "/topics/a").wait_ready() as events:
            with no_file_above(0):
                for _ in range(5):
                    assert ask(port, "POST", "/topics/a", b"refused")[0] == 503
                status, _, text = ask(port, "GET", "/health")
                assert (status, str(tmp_path / "log") in text.decode()) == (503, True)
                assert text.startswith(b"nothing can be published: ")
                assert ask(port, "GET", "/health/streams")[::2] == (200, b"ok\n")
                stats = json.loads(ask(port, "GET", "/stats")[2])
                assert stats["rejected"] == {"publisher": 5}
                assert stats["log_errors"] >= 5
                assert "File too large" in stats["failing"]
                other.publish("a", "streams")
                assert values(events.messages(1)) == ["streams"]
            assert ask(port, "POST", "/topics/a", b"x", **{"content-type": "text/plain"})[0] == 200
            while values(events.messages(1)) != ["x"]:
                pass  # what had failed only since it was not on the disk may come all the same
        assert ask(port, "GET", "/health")[0] == 200
        stats = json.loads(ask(port, "GET", "/stats")[2])
        assert (stats["published"], stats["failing"]) == (1, None)
    said = [one.getMessage() for one in caplog.records if "what is posted" in one.getMessage()]
    assert len(said) == 2
    assert "POST is answered with 503 meanwhile, and streams go on" in said[0]
    assert said[1].endswith("it works again, after 5 failures")
