"""Streams to webhooks where the endpoint answers oddly: what is said of it, and what is not."""

import logging
import os
import re
import socket
import stat
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("aiohttp", reason="webhooks out need aiohttp (extra webhooks)")

from p2pmsg import LogConfig
from p2pmsg.webhooks import Endpoint, Letters, Sender
from tests.integration.peers import eventually
from tests.integration.webhooks import LOOPBACK, Receiver

SLOW = (0, 3600.0)
PATH = "/services/T0KEN/%61bcd%2Fé?key=S3CRET"
SECRETS = ("T0KEN", "T%30KEN", "S3CRET", "abcd", "%61bcd")


def secrets_in(text):
    """Return which secrets are in a text; a random id may have `abcd` by chance."""
    text = re.sub("msg_[0-9a-f]+", "", text)
    return [token for token in SECRETS if token in text]


GOOD = b"HTTP/1.1 204 No Content\r\n\r\n"


class RawServer:
    """A server on loopback, of which `serve(connection, number)` is each connection."""

    def __init__(self, serve):
        self._serve = serve
        self.connections = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self.connections:
            connection.close()

    def _accept(self):
        try:
            while True:
                self.connections.append(self._listener.accept()[0])
                arguments = self.connections[-1], len(self.connections)
                threading.Thread(target=self._run, args=arguments, daemon=True).start()
        except OSError:
            pass

    def _run(self, connection, number):
        try:
            self._serve(connection, number)
        except OSError:
            pass


def request_of(connection):
    """Return a request as it came; empty at the end of the connection."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        more = connection.recv(65_536)
        if not more:
            return b""
        data += more
    _, _, rest = data.lower().partition(b"content-length: ")
    size = int(rest.partition(b"\r\n")[0] or b"0")
    while len(data) < end + 4 + size:
        data += connection.recv(65_536)
    return data


@pytest.fixture
def sender(make_publisher, tmp_path):
    """Make a sender to a URL, and publish; all are closed in the end."""
    made = []

    def make(url, count=1, **settings):
        log = LogConfig(tmp_path / "log")
        publisher = make_publisher(log=log)
        publisher.publish_many("t", [*range(count)])
        events = []
        settings = {"allow": LOOPBACK, "retry": SLOW, "name": "x"} | settings
        made.append(
            Sender(
                publisher.endpoint, state=tmp_path / "hooks", start="earliest",
                endpoints=[Endpoint(url, **settings)], on_event=events.append,
            )
        )  # fmt: skip
        return made[-1], events

    yield make
    for each in made:
        each.close()


def of_hook(sender):
    return sender.stats().endpoints["x"]


def answers(data):
    def serve(connection, _):
        request_of(connection)
        connection.sendall(data)
        connection.close()

    return serve


def closes_at_once(connection, _):
    connection.recv(100)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


BAD = [
    answers(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"),
    answers(b"HTTP/1.1 302 Found\r\nLocation: /services/T0KEN?key=S3CRET\r\n\r\n"),
    answers(b"HTTP/1.1 404 No\r\n\r\nCannot POST /services/T0KEN/%61bcd%2F%C3%A9?key=S3CRET"),
    answers(b'HTTP/1.1 410 No\r\n\r\n{"path":"\\/services\\/T%30KEN","key":"S3CRET"}'),
    answers(b"HTTP/1.1 429 /services/T0KEN\r\n\r\n/services/T0KEN/abcd%252f%c3%a9"),
    answers(b"/services/T0KEN?key=S3CRET\r\n\r\n"),
    closes_at_once,
]


@pytest.mark.parametrize("bad", range(len(BAD)))
def test_the_urls_path_and_query_are_in_no_text(sender, tmp_path, caplog, bad):
    caplog.set_level(logging.DEBUG)
    size = 2_000_000 if BAD[bad] is closes_at_once else 1
    with RawServer(BAD[bad]) as server:
        url = server.url + PATH
        hook, events = sender(url, 2, order="none", retry=(0,), headers={"x": "y" * size})
        eventually(lambda: of_hook(hook).stopped or of_hook(hook).dead_letters == 2)
        stats = hook.stats()
        hook.close()
    assert of_hook(hook).reason
    folder = tmp_path / "hooks" / "x"
    with closing(Letters(folder)) as opened:
        letters = opened.all("dead")
    kept = [path.read_bytes().decode("latin-1") for path in folder.iterdir() if path.is_file()]
    said = "\n".join(["", caplog.text, repr((stats, events, letters, hook)), *kept])
    assert "webhook x: " in caplog.text
    assert secrets_in(said) == []


def test_letters_are_for_their_owner_alone(sender, tmp_path):
    mask = os.umask(0o022)
    try:
        with Receiver(lambda request: 500) as receiver:
            hook, _ = sender(receiver.url, retry=(0,))
            eventually(lambda: of_hook(hook).dead_letters == 1)
    finally:
        os.umask(mask)
    folder = tmp_path / "hooks" / "x"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "letters").stat().st_mode) == 0o600


def test_a_pause_is_said_and_ends_when_it_is_resumed(sender, caplog):
    def answer(request):
        return (429, {"retry-after": "999999999"}) if len(receiver.requests) == 1 else 204

    with Receiver(answer) as receiver:
        hook, events = sender(receiver.url, 3)
        eventually(lambda: events)
        begun = datetime.now(UTC)
        stats = of_hook(hook)
        assert (stats.is_open, stats.stopped, stats.failures) == (False, None, 1)
        assert 80_000 < stats.held_s <= 86_400
        (event,) = events
        assert (event.kind, event.reason) == ("held", "answered 429")
        assert timedelta(hours=22) < event.detail - begun <= timedelta(hours=24)
        (line,) = [each.getMessage() for each in caplog.records if "webhook x" in each.getMessage()]
        until = f"{event.detail:%Y-%m-%dT%H:%M:%SZ}"
        assert line == (
            f"webhook x: it asked for a pause by Retry-After, until {until}: answered 429"
        )
        hook.resume("x")
        assert of_hook(hook).held_s == 0
        eventually(lambda: hook.stats().delivered == 3)
        assert of_hook(hook).requests == 4


def test_an_endpoint_that_closes_after_each_answer_is_not_failing(sender, caplog):
    seen = []

    def serve(connection, _):
        request = request_of(connection)
        seen.append(request.partition(b"webhook-id: ")[2].partition(b"\r\n")[0])
        connection.sendall(GOOD)
        connection.recv(1)  # until the next request is on its way
        connection.close()

    with RawServer(serve) as server:
        hook, events = sender(server.url, 100, order="none")
        eventually(lambda: hook.stats().delivered == 100)
        stats = of_hook(hook)
    assert (stats.requests, stats.failures, stats.statuses) == (100, 0, {204: 100})
    assert len(seen) == len(set(seen)) == 100
    assert events == []
    assert "webhook x" not in caplog.text
