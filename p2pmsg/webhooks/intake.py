"""Requests of others into a stream: an ASGI application without dependencies."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError, MessageError, P2PError
from p2pmsg.http.asgi import (
    Application,
    Limits,
    Receive,
    RejectedError,
    Scope,
    Send,
    headers_of,
    read_body,
)
from p2pmsg.http.publishing import AnyPublisher, Publishing, refusal
from p2pmsg.toolkit import Rarely, check, check_topic, checked, hiding
from p2pmsg.toolkit import own_log as _log
from p2pmsg.webhooks.events import TYPE, Hook, Topic, check_readied, events_of, readied
from p2pmsg.webhooks.seen import SeenIds
from p2pmsg.webhooks.signatures import Scheme, Secret, make_verify

_HEALTH: Final = "/health"
_METRICS: Final = "/metrics"
Event = tuple[str, dict[str, Any]]
"""By what it is taken once, or empty; and what `publish` is called with."""


class receive(Application):
    """An ASGI application that publishes the webhooks that are posted to it.

    A request is verified by its raw body, and answered with 204 when its messages are in the
    publisher's log (on the disk, where the log is so), or were before: each id is taken once. A
    failure of the publisher, or of `topic` or `key`, is answered with 503, so that the sender tries
    again. CloudEvents of all modes are recognized by their headers. Each message has the headers
    `webhook-id` and, where they are known, `webhook-type` and `source`. `/health` answers 200, or
    503 where nothing can be published, and `/metrics` with Prometheus' text.

    Args:
        publisher: where to; a threaded one, or one of `p2pmsg.aio` in the server's event loop.
        secrets: what requests are signed with; several while one is replaced. `standard`: base64,
            as the package `standardwebhooks` takes it (`whsec_…` or without that, padded or not),
            the secret's bytes, or `whpk_…` (a public key of Ed25519); else as GitHub or Stripe show
            it, or the token.
        topic: under which it is published: a topic, in which `{type}` stands for the event's type
            and no other braces may be, or a function of the `Hook`.
        scheme: who signs: `standard` (default), `github`, `stripe`, or `token`
            (`Authorization: Bearer …`). GitHub's signature says nothing of the time or the id.
        key: returns a message's key. Default: a CloudEvent's `partitionkey`, else none.
        seen: a file for the ids that were taken, so that a restart does not forget them; only one
            process may use it. While it cannot be written, as the disk is full, requests are taken
            all the same, and their ids are written later. Default: in memory only.
        body_bytes_max: size of a body, in bytes. Default 1 MiB. It is not above the publisher's
            `message_bytes_max`. A message may take up to three times its body
            (numbers in JSON), and its headers; one that is larger than `message_bytes_max` is
            answered with 413, too.
        rate: requests a second, over all, a whole number; more are answered with 429. Default: not
            limited.
        client_rate: the same for each client's address. Default: not limited.

    Raises:
        ConfigError: an argument is out of its limits.
        MissingExtraError: Ed25519 needs the package cryptography.
        LogInUseError: another process uses the file `seen`.
        LogFormatError: the file `seen` is something else.
        LogFailedError: the file `seen` cannot be read or written.

    Attributes:
        published: messages that were published.
        duplicates: events that had been taken before.

    """

    @hiding
    @checked(body_bytes_max=1, rate=1, client_rate=1)
    def __init__(
        self,
        publisher: AnyPublisher,
        *,
        secrets: Secret | Sequence[Secret],
        topic: Topic,
        scheme: Scheme = "standard",
        key: Callable[[Hook], str | None] | None = None,
        seen: str | Path | None = None,
        body_bytes_max: int = 2**20,
        rate: int | None = None,
        client_rate: int | None = None,
    ) -> None:
        super().__init__()
        self._config: PublisherConfig | None = getattr(publisher, "config", None)
        if self._config is not None:  # what the publisher cannot take would be read in vain
            body_bytes_max = min(body_bytes_max, self._config.message_bytes_max)
        if isinstance(topic, str):
            try:
                check_topic(plain := topic.replace(TYPE, "type"))
            except MessageError as error:
                raise ConfigError("topic", f"a topic ({error})", topic) from None
            # For a name that stands for nothing: it would be published under as it is.
            known = "{" not in plain and "}" not in plain
            check("topic", topic, known, "a topic, in which only {type} stands in braces")
        self._publisher: Any = publisher
        self._topic, self._key = topic, key or _partition_key
        self._verify = make_verify(scheme, secrets)
        self._body_bytes_max = body_bytes_max
        self._limits = Limits(rate, client_rate)
        self._lock = threading.Lock()
        self._taking: set[str] = set()
        self._closed = False
        self._bytes = 0
        self._publishing = Publishing(
            publisher, "publishing webhooks", "they are answered with 503 meanwhile"
        )
        self._trace = Rarely()
        self.published = self.duplicates = 0
        self._seen = SeenIds(seen, time.time())

    def close(self) -> None:
        """Finish what is under way, and close the file of ids; the publisher stays open."""
        if self._closed:
            return
        self._closed = True
        self._publishing.threads.shutdown()
        with self._lock:
            self._seen.close()

    async def _stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = str(scope["path"]), scope["method"]
        headers = headers_of(scope)
        text = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        is_own = path in (_HEALTH, _METRICS)
        if is_own and method in ("GET", "HEAD"):
            if path == _HEALTH:
                failure = self._unhealthy()
                await self._respond(send, 503 if failure else 200, text, failure or self._well())
            else:
                await self._respond(send, 200, text, self.metrics().encode())
        elif method != "POST":
            allow = "GET, HEAD, POST" if is_own else "POST"
            raise RejectedError(405, "method", "post it", headers={"allow": allow})
        else:
            await self._post(scope, headers, receive)
            await self._respond(send, 204, {})

    async def _post(self, scope: Scope, headers: Mapping[str, str], receive: Receive) -> None:
        """Take a request; what fails in functions of others is refused, and is said."""
        if self._closed:
            raise RejectedError(503, "closed", "it is closing", 1)
        self._limits.check(scope, time.monotonic_ns())
        body = await read_body(headers, receive, self._body_bytes_max)
        try:
            proof = self._verify(headers, body, time.time())
            hooks = events_of(headers, body, proof, str(scope["path"]))
            events = [(each.seen_as, readied(each, self._topic, self._key)) for each in hooks]
            if len(events) > 1:  # have all published or none
                self._check(events)
            await self._take(events)
        except RejectedError:
            raise
        except Exception as error:
            if self._trace.is_due():
                what = "a webhook could not be taken, and is answered with 503 (said once a minute)"
                _log.error(what, exc_info=error)
            raise RejectedError(503, "failed", "it cannot be taken now", 5) from error
        self._bytes += len(body)

    def _check(self, events: Sequence[Event]) -> None:
        """Find what `publish` would refuse before the first is published."""
        try:
            for _, ready in events:
                check_readied(ready, self._config)
        except MessageError as error:
            raise refusal(error) from error

    async def _take(self, events: Sequence[Event]) -> None:
        """Publish what is new; what another request brings just now is refused for a second."""
        names: set[str] = set()
        new: list[Event] = []
        # Without the lock, under which the file is written: the loop waits for no disk.
        for name, ready in events:
            if name in self._taking:
                raise RejectedError(503, "busy", f"{name!r} is just being taken", 1)
            if name and (name in names or self._seen.has(name, time.time())):
                self.duplicates += 1
                continue
            new.append((name, ready))
            if name:
                names.add(name)
        if not new:
            return
        self._taking |= names
        unnoted: list[Event] = []
        try:
            await self._publishing.run(partial(self._publish, new, unnoted))
            await self._remember(unnoted)
        except RejectedError:
            with suppress(P2PError, OSError):  # those before the one that failed come once
                if unnoted:
                    await self._publisher.drain()
                await self._remember(unnoted)
            raise
        finally:
            self._taking -= names

    def _publish(self, events: Sequence[Event], unnoted: list[Event]) -> None:
        """Publish events, and note each that is then in the log; the others are `unnoted`."""
        for event in events:
            self._publisher.publish(**event[1])
            if self._publishing.is_async:
                unnoted.append(event)
            else:
                self._note([event])

    async def _remember(self, events: Sequence[Event]) -> None:
        if events:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._publishing.threads, self._note, events)

    def _note(self, events: Sequence[Event]) -> None:
        with self._lock:
            self.published += len(events)
            for name, _ in events:
                if name:
                    self._seen.add(name, time.time())

    def _unhealthy(self) -> str | None:
        return "closed" if self._closed else self._publishing.failing()

    def _well(self) -> str:
        """Return what is said where webhooks are taken: the answer stays 200 without the file."""
        count = self._seen.unwritten
        return f"ok, but {count} ids could not be written to the file yet" if count else "ok"

    def metrics(self) -> str:
        """Return the counters as Prometheus' text."""
        found = {f'requests_total{{status="{each}"}}': n for each, n in self.statuses.items()}
        found |= {f'rejected_total{{reason="{why}"}}': n for why, n in self.rejected.items()}
        found |= {
            "published_total": self.published,
            "duplicates_total": self.duplicates,
            "body_bytes_total": self._bytes,
            "ids": len(self._seen),
            "ids_forgotten_total": self._seen.forgotten,
            "ids_unwritten": self._seen.unwritten,
            "journal_failures_total": self._seen.failures,
            "healthy": int(self._unhealthy() is None),
        }
        return "".join(f"p2pmsg_webhooks_{what} {number}\n" for what, number in found.items())


def _partition_key(hook: Hook) -> str | None:
    key = hook.attributes.get("partitionkey")
    return key if isinstance(key, str) else None
