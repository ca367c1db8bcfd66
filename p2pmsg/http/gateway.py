"""The ASGI application: streams as Server-Sent Events, and requests that publish."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote

from p2pmsg.errors import MessageError, P2PError
from p2pmsg.http.access import Access
from p2pmsg.http.asgi import (
    ENDING,
    UNREAD,
    Application,
    Limits,
    Receive,
    RejectedError,
    Scope,
    Send,
    headers_of,
    read_body,
    value_of,
)
from p2pmsg.http.encoding import KEEP_ALIVE, Format, encode_event, encode_id, loss_fields
from p2pmsg.http.fanout import Fanout, Member, View
from p2pmsg.http.publishing import AnyPublisher, Publishing
from p2pmsg.http.resume import Key, Resume, read_positions, write_positions
from p2pmsg.http.upstream import RangePool, Upstream, range_of
from p2pmsg.stats import Stats
from p2pmsg.toolkit import (
    check,
    check_fields,
    check_name,
    check_topic,
    check_topics,
    checked,
    hiding,
    matches,
    shown,
    to_json,
)
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security import Security

_CHUNK_BYTES: Final = 256 * 1024
_POLL_S: Final = 0.02
_POLL_MAX_S: Final = 0.16
_OWN: Final = ("/", "/health", "/health/streams", "/stats")
_TOPICS_MAX: Final = 64
_FIELDS_MAX: Final = 200
BODY_BYTES_MAX: Final = 2**20
"""Size of a body that is published. A message may take up to three times as much."""
_KEEP_ALIVE_S: Final = 15.0
"""After how long without an event a comment is sent: proxies close silent connections after 30."""
_RETRY_MS: Final = 1000
"""How long a browser waits before it connects again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Bounds and times of a `Gateway`. `ConfigError` for a value out of its limits."""

    buffer_bytes: int = 4 * 2**20
    """Events that are kept for connections which read slowly, in bytes, for each choice of topics
    and format. Who has more to read is disconnected, and comes back by its `Last-Event-ID`. 4
    MiB: some seconds at a rate that a page can show."""

    connections_max: int = 1000
    """Event streams at once; further ones are answered with 503."""

    resume_timeout: float = 10.0
    """How long what a connection missed is waited for, in seconds. What does not come is reported:
    as lost, or that the publisher has gone back."""

    rate: int | None = None
    """Messages a second that are published; more are answered with 429. Default: not limited."""

    def __post_init__(self) -> None:
        check_fields(self, buffer_bytes=64 * 1024, connections_max=1, resume_timeout=0.001, rate=1)


@dataclass(slots=True)
class GatewayStats(Stats):
    """Counters of a `Gateway`."""

    connections: int = 0
    """Event streams that are open."""
    opened: int = 0
    """Event streams that were ever opened."""
    slow: int = 0
    """Connections that were cut off because they fell behind, or for another reason of ours."""
    messages: int = 0
    """Messages that came from publishers."""
    lost: int = 0
    """Messages that were reported lost."""
    malformed: int = 0
    """Messages with a value that has no JSON form."""
    published: int = 0
    """Messages that were posted here."""
    connected: int = 0
    """Endpoints that answer."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Requests that were refused, by the reason in a word: `publisher`, the publisher did not take
    what was posted; `connections`, there are too many; `http`, it was no HTTP; and so on."""
    log_errors: int = 0
    """How often writing the publisher's log failed: see `LogStats.errors`."""
    failing: str | None = None
    """Why nothing that is posted can be published now, or what goes wrong with the publisher's log;
    None: nothing."""


class _Connection(Member):
    """An event stream; `wake` is set when there may be something to send, or it is to end."""

    def __init__(self, send: Send, on_cut: Callable[[str], None], *, resumed: bool) -> None:
        super().__init__(resumed=resumed)
        self._send, self._on_cut = send, on_cut
        self.wake, self.is_gone = asyncio.Event(), False

    def cut(self, reason: str) -> None:
        """Note that it is to be cut off, and report that."""
        if not self.reason:
            self._on_cut(reason)
        super().cut(reason)
        self.wake.set()

    async def write(self, data: bytes) -> None:
        """Send a part of the answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class Gateway(Application):
    """Serves streams to browsers, and publishes what is posted; an ASGI application.

    `GET /topics/NAME` is a stream of Server-Sent Events, `GET /topics?topic=A&topic=B*` one of
    several. Each event's id says where the connection is, so that a browser which connects again
    gets what it missed, from what the publisher keeps; what nobody has any more comes as an event
    `loss` with its range and reason. `POST /topics/NAME` publishes. `/health` and `/stats` answer,
    and `/` is a page that shows a topic. It needs no package but p2pmsg.

    Args:
        endpoints: publishers and relays.
        topics: what is served, and may be posted: topics, and prefixes that end in `*`. Default
            None: all.
        publisher: where to posts go; None: nothing can be posted. It stays open.
        tokens: who has one of them may ask (`Authorization: Bearer …`). Default: everybody may.
        query_token: whether `?token=` is taken, too, as a browser's `EventSource` can send no
            headers; proxies write it into their logs. Default False.
        hosts: names besides `localhost` and addresses under which it is reached. Others are
            refused, since a page elsewhere could let its own name point here.
        origins: other sites whose pages may ask, such as `https://app.example.com`.
        name: who subscribes, for people. Default `http`.
        config: bounds and times.
        security: keys for the connections to `endpoints`; an endpoint that refuses them is tried
            again, and the others are served. Who asks over HTTP has nothing to do with it: see
            `tokens`. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits; `MessageError` for a topic.
        ConfigError: an endpoint is none; when the server starts.
        AuthenticationError: no key is pinned for an endpoint; when the server starts.

    """

    @hiding
    @checked()
    def __init__(
        self,
        endpoints: str | Sequence[str],
        topics: Sequence[str] | None = None,
        *,
        publisher: AnyPublisher | None = None,
        tokens: Sequence[str] = (),
        query_token: bool = False,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        name: str = "http",
        config: GatewayConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        super().__init__()
        self._security = security
        self._endpoints = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        check("endpoints", self._endpoints, bool(self._endpoints), "at least one")
        self._topics = check_topics(topics) or None
        self._publisher: Any = publisher
        self._publishing: Publishing | None = None
        if publisher is not None:
            what = "publishing what is posted"
            consequence = "POST is answered with 503 meanwhile, and streams go on"
            self._publishing = Publishing(publisher, what, consequence)
        self._access = Access(tokens, query_token=query_token, hosts=hosts, origins=origins)
        self._name = check_name(name)
        self._config = config or GatewayConfig()
        self._limits = Limits(self._config.rate)
        self._fanout = Fanout(self._config.buffer_bytes, secrets.token_hex(8))
        self._upstream: Upstream | None = None
        self._pool = RangePool(self._endpoints, self._config.resume_timeout, security)
        self._clients: dict[_Connection, None] = {}
        self._closing = False
        self._counts = GatewayStats()

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(map(str, self._endpoints)), lambda: self._closing)

    def stats(self) -> GatewayStats:
        """Return the counters as they are now."""
        fanout, upstream = self._fanout, self._upstream
        failing, log = None, None
        if self._publishing is not None:
            failing, log = self._publishing.failing(), getattr(self._publisher.stats(), "log", None)
        return replace(
            self._counts,
            messages=fanout.messages,
            lost=fanout.losses,
            malformed=fanout.malformed,
            connected=0 if upstream is None else upstream.connected,
            rejected=dict(self.rejected),
            log_errors=0 if log is None else log.errors,
            failing=failing or (None if log is None else log.retrying),
        )

    # ------------------------------------------------------------------------------ the server

    async def _start(self) -> None:
        self._upstream = Upstream(
            self._endpoints, self._topics, self._name, self._fanout, self._wake, self._security
        )

    async def _stop(self) -> None:
        self.stop()
        if self._upstream is not None:
            await self._upstream.close()
        await self._pool.close()
        if self._publishing is not None:
            self._publishing.threads.shutdown(wait=False)

    def stop(self) -> None:
        """End all event streams, so that a server can stop; called in its event loop.

        One of `make_server` does this by itself.
        """
        self._closing = True
        self._pool.stop()
        self._wake()

    def _wake(self) -> None:
        for client in self._clients:
            client.wake.set()

    # -------------------------------------------------------------------------------- requests

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = str(scope["path"]), str(scope["method"])
        headers = headers_of(scope)
        self._access.check_host(headers)
        cross = _cross(self._access.check_origin(headers))
        if method == "OPTIONS":
            allowed = {
                **cross,
                "access-control-allow-methods": "GET, POST",
                "access-control-allow-headers": "authorization, content-type, last-event-id",
            }
            await self._respond(send, 204, allowed)
            return
        if path in _OWN and method not in ("GET", "HEAD"):
            raise RejectedError(405, "method", "GET it", headers={"allow": "GET, HEAD, OPTIONS"})
        if path in ("/health", "/health/streams"):
            failure = self._unhealthy(posts=path == "/health")
            await self._respond(send, 503 if failure else 200, cross, failure or "ok")
            return
        if path == "/":
            page = resources.files("p2pmsg.http").joinpath("page.html").read_bytes()
            await self._respond(send, 200, {"content-type": "text/html; charset=utf-8"}, page)
            return
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_FIELDS_MAX)
        except ValueError as error:
            limit = f"the query has more than {_FIELDS_MAX} fields"
            raise RejectedError(400, "query", limit) from error
        self._access.check_token(headers, query)
        if path == "/stats":
            json_type = {**cross, "content-type": "application/json"}
            await self._respond(send, 200, json_type, to_json(asdict(self.stats())))
            return
        topics = _topics_of(scope, query)
        if topics is None:
            raise RejectedError(404, "path", "there is /topics/NAME, /stats, /health and /")
        for topic in topics:
            if self._topics is not None and not matches(topic, self._topics):
                raise RejectedError(404, "topic", f"{topic!r} is not served here")
        if method == "GET":
            await self._follow(topics, scope, query, cross, receive, send)
        elif method == "POST":
            await self._post(topics, scope, query, cross, receive, send)
        else:
            allow = "GET, OPTIONS" if self._publisher is None else "GET, OPTIONS, POST"
            what = "GET follows a topic, POST publishes"
            raise RejectedError(405, "method", what, headers={"allow": allow})

    def _unhealthy(self, *, posts: bool) -> str | None:
        """Return why streams, and `posts`, cannot be served; None: they can."""
        if self._upstream is None or not self._upstream.connected:
            return "no publisher answers"
        failing = self._publishing.failing() if posts and self._publishing is not None else None
        return failing and f"nothing can be published: {failing}; streams are served"

    async def _post(
        self, topics: tuple[str, ...], scope: Scope, query: Mapping[str, list[str]],
        cross: Mapping[str, str], receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        """Publish a body: JSON, text or bytes, by its content type."""
        if self._publishing is None:
            raise RejectedError(403, "publish", "nothing can be published here: see --publish")
        if len(topics) != 1 or topics[0].endswith("*"):
            raise RejectedError(400, "topic", "one topic is needed")
        self._limits.check(scope, time.monotonic_ns())
        headers = headers_of(scope)
        body = await read_body(headers, receive, BODY_BYTES_MAX)
        value, key = value_of(headers, body), next(iter(query.get("key", ())), None)
        sequence = await self._publishing.run(
            lambda: self._publisher.publish(topics[0], value, key=key)
        )
        self._counts.published += 1
        place = {"topic": topics[0], "session": f"{self._publisher.session:016x}",
                 "sequence": sequence}  # fmt: skip
        answer = {**cross, "content-type": "application/json"}
        await self._respond(send, 200, answer, to_json(place))

    # --------------------------------------------------------------------------- event streams

    async def _follow(
        self, topics: tuple[str, ...], scope: Scope, query: Mapping[str, list[str]],
        cross: Mapping[str, str], receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        form = _form_of(query)
        given = headers_of(scope).get("last-event-id") or (query.get("last_event_id") or [""])[0]
        try:
            positions = read_positions(given, topics) if given else None
        except ValueError as error:
            raise RejectedError(400, "last-event-id", f"Last-Event-ID: {error}") from error
        if self._upstream is None or self._closing:
            raise RejectedError(503, "closed", "it is not running", 1)
        if self._counts.connections >= self._config.connections_max:
            raise RejectedError(503, "connections", "there are too many connections", 5)
        self._counts.connections += 1
        self._counts.opened += 1
        # One that began here when there was no stream goes on as if it had stayed.
        begun = self._fanout.begun if given == self._fanout.beginning else {}
        resumed = bool(given) and given != self._fanout.beginning
        client = _Connection(send, self._on_cut, resumed=resumed)
        view = self._fanout.enter(topics, form, client)
        self._clients[client] = None
        watcher = asyncio.ensure_future(self._watch(scope, receive, client))
        try:
            kind = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
            await self._begin(send, 200, {**cross, **kind})
            await client.write(b"retry: %d\n\n" % _RETRY_MS)
            if positions is not None:
                await self._resume(view, client, Resume(positions, begun), self._upstream)
            else:
                self._upstream.refresh()
                view.join(client)
                await client.write(encode_id(view.event_id()))
            await self._pass_on(view, client)
            await send({"type": "http.response.body", "body": b""})
        finally:
            if scope.get(UNREAD):
                client.cut("its client read nothing")
            watcher.cancel()
            del self._clients[client]
            self._fanout.leave(view, client)
            self._counts.connections -= 1

    def _goes_on(self, client: _Connection) -> bool:
        return not (self._closing or client.is_gone or client.reason)

    async def _pass_on(self, view: View, client: _Connection) -> None:
        """Send what comes, until the connection is cut off or its client has gone."""
        while self._goes_on(client):
            data = view.take(client, _CHUNK_BYTES)
            if data:
                await client.write(data)
                continue
            client.wake.clear()
            try:
                async with asyncio.timeout(_KEEP_ALIVE_S):
                    await client.wake.wait()
            except TimeoutError:
                await client.write(KEEP_ALIVE)

    def _on_cut(self, reason: str) -> None:
        self._counts.slow += 1
        _log.info("http: a connection was cut off: %s", reason)

    async def _watch(self, scope: Scope, receive: Receive, client: _Connection) -> None:
        """Wait until the client has gone, or the server ends."""
        while (await receive())["type"] != "http.disconnect" and not scope.get(ENDING):
            pass
        if scope.get(ENDING):
            self.stop()
        client.is_gone = True
        client.wake.set()

    async def _resume(
        self, view: View, client: _Connection, resume: Resume, upstream: Upstream
    ) -> None:
        """Bring a connection that comes back to where the others are, and let it join them."""
        pause_s = _POLL_S
        written_s = moved_s = time.monotonic()
        ahead: Mapping[Key, int] = {}
        while self._goes_on(client):
            upstream.refresh()
            now_s = time.monotonic()
            went_back = {key: report.start for key, report in client.rewound.items()}
            client.rewound.clear()
            is_late = now_s - moved_s >= self._config.resume_timeout
            missed = self._fanout.missed(view, resume.positions)
            step = resume.step(missed, went_back, is_late=is_late)
            if step.is_complete:
                view.join(client)
                return
            for key, (place, former) in step.rewound.items():
                lost = loss_fields(key[1], key[0], place, former, "rewound")
                event_id = write_positions(resume.positions, view.topics)
                await client.write(encode_event("rewound", lost, event_id))
            if step.read is not None:
                if not await self._read_missed(view, client, resume, step.read):
                    return
                pause_s, written_s, moved_s = _POLL_S, now_s, time.monotonic()
                continue
            for key in step.unknown if is_late else ():
                await client.write(self._give_up(view, resume, key))
            if step.ahead != ahead:  # this gateway goes on reading
                ahead, moved_s = step.ahead, now_s
            if now_s - written_s >= _KEEP_ALIVE_S:
                await client.write(KEEP_ALIVE)
                written_s = now_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)

    async def _read_missed(
        self, view: View, client: _Connection, resume: Resume, read: tuple[Key, int, int]
    ) -> bool:
        """Send the beginning of a range that a connection missed; returns whether it goes on."""
        wanted = range_of(resume.positions, view.topics, view.form, read)
        try:
            piece = await self._pool.read(wanted)
        except (P2PError, OSError) as error:  # OSError: TimeoutError, too
            _log.warning("http: what a connection missed cannot be read: %s", error)
            client.cut("unreadable")
            return False
        if piece is None:
            return False  # it is closing
        data, following = piece
        resume.advance(read[0], following)
        await client.write(data)
        return True

    def _give_up(self, view: View, resume: Resume, key: Key) -> bytes:
        """Return the event that says that nobody has a stream any more."""
        session, topic = key
        reason = "publisher_gone"
        lost = loss_fields(topic, session, resume.positions[key], None, reason)
        resume.forget(key)
        return encode_event("loss", lost, write_positions(resume.positions, view.topics))


def _cross(origin: str | None) -> dict[str, str]:
    """Return the headers by which a browser lets a page of another origin read the answer."""
    if origin is None:
        return {}
    return {"access-control-allow-origin": origin, "vary": "origin"}


def _topics_of(scope: Scope, query: Mapping[str, list[str]]) -> tuple[str, ...] | None:
    """Return the topics that a path and its query name; None where the path is another."""
    raw = scope.get("raw_path") or str(scope["path"]).encode()
    path = raw.decode("latin-1").partition("?")[0]
    if path in ("/topics", "/topics/"):
        names = query.get("topic", [])
        if not 1 <= len(names) <= _TOPICS_MAX:
            raise RejectedError(400, "topic", f"name 1 to {_TOPICS_MAX} topics: ?topic=…&topic=…")
    elif path.startswith("/topics/"):
        try:
            names = [unquote(path.removeprefix("/topics/"), errors="strict")]
        except UnicodeDecodeError as error:
            raise RejectedError(400, "topic", "the topic is not UTF-8") from error
    else:
        return None
    for name in names:
        plain = name.removesuffix("*")
        try:
            check_topic(plain or "x")
        except MessageError as error:
            raise RejectedError(400, "topic", str(error)) from error
    return tuple(dict.fromkeys(names))


def _form_of(query: Mapping[str, list[str]]) -> Format:
    form = (query.get("format") or ["json"])[0]
    if form == "json":
        return "json"
    if form == "base64":
        return "base64"
    raise RejectedError(400, "format", f"format is json or base64, not {form[:40]!r}")
