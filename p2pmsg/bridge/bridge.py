"""The bridge."""

import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import zmq

from p2pmsg.bridge.config import BridgeConfig, Codec, TopicAt
from p2pmsg.bridge.ends import SLICE_S, Batch, Written
from p2pmsg.bridge.opening import Wishes, open_ends
from p2pmsg.bridge.stats import BridgeStats
from p2pmsg.errors import translated
from p2pmsg.plain import SocketClosedError
from p2pmsg.toolkit import (
    ClosesItself,
    Rarely,
    check_process,
    checked,
    close_at_exit,
    close_in_children,
    shown,
    time_to_wait,
    was_closed,
)
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.config import CursorConfig
    from p2pmsg.log import LogConfig
    from p2pmsg.security import Security

_DRAIN_S: Final = 0.5
"""At close: so long at most what has come already is passed on."""
_AGAIN_S: Final = 0.05
"""How long the thread rests after an exception."""
_JOIN_S: Final = 5.0


class Bridge(ClosesItself):
    """Passes messages on between p2pmsg and programs that speak plain ZeroMQ, nanomsg or nng.

    ::

        bridge = p2pmsg.Bridge("zmq+sub://127.0.0.1:5555", "tcp://127.0.0.1:5556", log=…)

    An end is a plain socket of the bridge's own, `zmq+sub://HOST:PORT`, `zmq+pull://`,
    `zmq+pub://`, `zmq+push://` (`zmq+sub+ipc://PATH`; with `sp+` of nanomsg and nng, by the extra
    `nng`): it connects, or binds with `?bind=1`. Or it is p2pmsg's: `tcp://HOST:PORT`,
    `ipc://PATH`. Opposite `sub` and `pub` that is a stream: a `Publisher` as the target, a
    `Subscriber` as the source; opposite `pull` and `push` a work queue: a `Pusher`, a `Puller`;
    opposite `sp+rep` and `sp+req` requests: a `Requester`, a `Responder`. `stream+tcp://…` and
    `queue+tcp://…` say it in so many words.

    What is promised depends on the direction; the guide's page on bridges has it. A thread of
    its own does the work, until `close`.

    Args:
        source: where messages come from.
        target: where they go.
        topic: the topic of messages that have none. Default `zmq`.
        topic_at: where a plain message has its topic. `part`: the first part, the default of
            `zmq+sub` and `zmq+pub`. `prefix`: the begin of the first part, up to a space, the
            default of `sp+sub` and `sp+pub`. `none`: nowhere, the
            default of `pull` and `push`.
        topics: which topics are taken, as of a `Subscriber`; not where plain messages come without
            (`topic_at="none"`). Default: all. With requests to
            `sp+req`: which topics are answered; default: `topic`.
        codec: `bytes` (default): a message is the bytes of its one part, or a list of several.
            `json`, `msgpack`: it is decoded from these, or encoded into them.
        sequence_at: where plain messages have a number, so that gaps are counted:
            `OFFSET:SIZE`, `OFFSET:SIZE:le` (bytes of the first part after the topic), or the path
            of a field of decoded values (`header.seq`). Each topic has
            numbers of its own. Default: they have none.
        log: a local log for the stream, or the queue, that is the target: a directory, or a
            `LogConfig` (`QueueLogConfig` for a queue). Default: none.
        cursor: where the source is a stream: the file that keeps how far it was passed on. Default:
            none.
        start: where the source is a stream: as of a `Subscriber`. Default `latest`.
        name: the bridge's name as a peer. Default: as of that peer.
        config: further settings.
        security: keys for the end that is p2pmsg's: encrypted, and both sides known to each other.
            A plain ZeroMQ end has keys (CURVE) only where it says so: it connects with `?key=KEY`,
            or with `?curve=1` where the file of known peers has its key, and binds with
            `?bind=1&curve=1` for known peers only. A peer that refuses them is tried again.
            Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or does not go with the ends, or an end is
            none.
        MessageError: `topic` cannot be one.
        BindError: an end could not be bound.
        LogError, LogFailedError, CursorError: the log or the cursor cannot be used.
        AuthenticationError: no key is pinned where one connects, or another one is.

    """

    @checked()
    def __init__(
        self,
        source: str,
        target: str,
        *,
        topic: str = "zmq",
        topic_at: TopicAt | None = None,
        topics: list[str] | None = None,
        codec: Codec = "bytes",
        sequence_at: str | None = None,
        log: "LogConfig | str | Path | None" = None,
        cursor: "CursorConfig | str | None" = None,
        start: "Literal['latest', 'earliest'] | int | datetime | None" = None,
        name: str | None = None,
        config: BridgeConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        wishes = Wishes(
            source=source, target=target, topic=topic, topic_at=topic_at, topics=topics,
            codec=codec, sequence_at=sequence_at, log=log, cursor=cursor, start=start, name=name,
            config=config or BridgeConfig(), security=security,
        )  # fmt: skip
        check_process()
        with translated():
            self._ends = open_ends(wishes)
        self._received = self._passed_on = self._refused = self._dropped = self._unsent = 0
        self._without_subscriber = 0
        self._refused_logged = Rarely()
        self._closed = False
        self._last_stats: BridgeStats | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="p2pmsg-bridge", daemon=True)
        close_in_children(self)
        self._thread.start()
        close_at_exit(self, Bridge.close)

    @property
    def endpoint(self) -> str:
        """Where the stream or the queue that is the target is bound, with its port; else ""."""
        return self._ends.endpoint

    @property
    def source(self) -> str:
        """Where messages come from; a bound socket with its port."""
        return self._ends.source_name

    @property
    def target(self) -> str:
        """Where messages go; a bound socket with its port."""
        return self._ends.target_name

    def stats(self) -> BridgeStats:
        """Return the counters as they are now; also after `close`."""
        if self._last_stats is not None:
            return self._last_stats
        ends = self._ends
        reader, sequences, plain = ends.reader, ends.sequences, ends.plain
        ours = ends.target.stats() or ends.source.stats()
        return BridgeStats(
            source=ends.source_name,
            target=ends.target_name,
            received=self._received,
            received_bytes=plain.received_bytes if plain else 0,
            passed_on=self._passed_on,
            refused=self._refused,
            dropped=self._dropped,
            without_subscriber=self._without_subscriber,
            unsent=self._unsent,
            without_topic=reader.without_topic if reader else 0,
            undecoded=reader.undecoded if reader else 0,
            gaps=sequences.gaps if sequences else 0,
            missing=sequences.missing if sequences else 0,
            back=sequences.back if sequences else 0,
            unnumbered=sequences.unnumbered if sequences else 0,
            overruns=plain.overruns if plain else 0,
            reconnected=sum(one.socket.given_up for one in ends.connections),
            unanswered="; ".join(filter(None, (one.found for one in ends.connections))),
            connections_refused=sum(one.socket.refused_by_key for one in ends.connections),
            ours=ours,
        )

    def close(self, timeout: float = 5.0) -> None:
        """Pass on what has come already, and close both ends.

        Args:
            timeout: how long the target may take, in seconds: a stream until its subscribers have
                everything, a queue without a log until its jobs are done, a plain socket until its
                queue has left. A queue with a log does not wait. Default 5.0.

        Raises:
            LogFailedError, CursorError: not everything could be written.

        """
        timeout = time_to_wait("timeout", timeout)
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        self._stopping = True
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        try:
            if not self._thread.is_alive():
                self._drain(time.monotonic() + min(_DRAIN_S, timeout))
        finally:
            try:
                self._ends.source.close()
            finally:
                try:
                    self._ends.target.close(timeout)
                finally:
                    self._last_stats = self.stats()

    def __repr__(self) -> str:
        return shown(self, lambda: f"{self.source} to {self.target}")

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._check()
                self._pass_all(self._ends.source.read(SLICE_S))
            except (SocketClosedError, zmq.ContextTerminated):
                return
            except Exception:  # the thread must go on: without it nothing is passed on
                if not self._stopping:
                    _log.exception("the bridge's background thread failed; it goes on")
                    time.sleep(_AGAIN_S)

    def _drain(self, deadline: float) -> None:
        """Pass on what has come from a plain socket, which would be lost with it."""
        plain = self._ends.plain
        while plain is not None and time.monotonic() < deadline:
            batches = plain.read(0.0)
            if not batches:
                return
            self._pass_all(batches)

    def _pass_all(self, batches: list[Batch]) -> None:
        """Pass on all batches, also after one that raised, and then raise the first error."""
        failure: Exception | None = None
        for batch in batches:
            try:
                self._pass_on(batch)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _pass_on(self, batch: Batch) -> None:
        self._received += len(batch.values)
        written = Written()
        try:
            written = self._ends.target.write(batch, self._is_over)
        finally:  # what raises counts as unsent
            self._acknowledge(batch, written)

    def _acknowledge(self, batch: Batch, written: Written) -> None:
        if written.refused:
            self._say_refused(batch, written)
        without = written.without_subscriber
        self._passed_on += written.done - len(written.refused) - without
        self._without_subscriber += without
        self._refused += len(written.refused)
        self._dropped += written.dropped
        self._unsent += len(batch.values) - written.done
        self._ends.source.acknowledge(batch, written)

    def _check(self) -> None:
        for connection in self._ends.connections:
            connection.check()

    def _is_over(self) -> bool:
        """Whether to give up waiting for space; asked again and again meanwhile."""
        self._check()
        return self._stopping

    def _say_refused(self, batch: Batch, written: Written) -> None:
        if self._refused_logged.is_due():
            index, reason = next(iter(written.refused.items()))
            what = f"job {batch.jobs[index].sequence}" if batch.jobs else f"topic {batch.topic!r}"
            _log.warning(
                "%s: a message cannot be passed on to %s: %s (%d so far)",
                what, self._ends.target_name, reason, self._refused + len(written.refused),
            )  # fmt: skip

    def _forget(self) -> None:
        """Close the copy in a forked child: sockets and threads are the parent's."""
        self._closed = True
