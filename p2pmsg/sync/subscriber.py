"""The threaded subscriber."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from p2pmsg.checks import time_to_wait, whole
from p2pmsg.config import SubscriberConfig
from p2pmsg.driver.lifecycle import INHERITED, ClosesAtOnce, close_at_exit, was_closed
from p2pmsg.errors import ClosedError, ConfigError
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.sync.lines import open_lines
from p2pmsg.sync.receiving import iterate, receive_frame, waiter
from p2pmsg.sync.settings import deadline
from p2pmsg.sync.subscriber_base import NO_VALUES, NOTHING, SubscriberBase
from p2pmsg.sync.subscriber_thread import SubscriberDriver

if TYPE_CHECKING:
    import transports

_MS = 1_000_000
_WAIT_MS = 1000
_COUNT_MAX = 2**32


class Subscriber(SubscriberBase[T_co], ClosesAtOnce):
    """Receives messages: each once and in order, or reported lost.

    It connects; a publisher that is away is waited for. The thread that waits in `receive` (or
    iterates) does the I/O; a background thread keeps gaps repaired while nobody does.

    Args:
        endpoints: of one publisher, or several.
        topics: what to take: topics, and prefixes that end in `*`. Default: all, as with `"*"`.
        start: `latest` (default), `earliest`, a sequence, or a time (an aware datetime), as far as
            the replay buffer reaches. Where a publisher is gone before it has answered where that
            is, `earliest` and a time mean the earliest that it is known to have kept, or else 0:
            what is missing from there on is reported lost.
        on_gap: what to do about messages that are missing. `wait` (default): until they are
            repaired, or until `repair_timeout`, when their loss is logged and receiving goes on.
            `raise`: the same, but the loss is raised as `MessagesLostError`. A callable gets a
            `LossReport` instead. `skip`: do not wait, go on at once, and deliver what comes late
            with `message.late` set; with `start="latest"` and no cursor only. `latest`: only the
            newest value of each key matters, so a slow reader gets that one in place of the older
            ones, which `stats()` counts as conflated. Known limit: over many topics what a slow
            reader gets can grow older without end, unreported; watch `message.timestamp_ns`. A
            dict: policies by topic or prefix (`a*`).
            A publisher that uses sequences again is reported in the same way, as `RewoundReport`,
            and logged with `skip`, too.
        on_end: what to do when a session of a `mold://` feed is over and all of it was delivered or
            reported lost. `wait` (default): for the feed's next session. `stop`: end the iteration,
            and raise `SessionEndedError` from `receive` and `receive_many`; the next call gets the
            feed's next session. A callable gets a `SessionEnd`, in the thread that receives,
            before the first message of the next session. Where request servers are still asked for
            what is missing when that one begins, its messages come first. Other publishers'
            sessions do not end.
        name: who subscribes, for people; at most 255 bytes.
        receive_bytes: bound on what waits for `receive`, in bytes. Default 16 MiB.
        repair_timeout: how long to wait for a repair without progress, in seconds. Set it to more
            than a publisher with a log takes to start again, so that what was missing when it ended
            still comes. Default 10.
        cursor: the file that keeps this subscriber's position, or a `CursorConfig`. With it every
            stream resumes after its last committed message, whatever `start` says; `start` is for
            what the cursor does not know. A stream opened while the subscriber was away is taken
            from its beginning, and so is a publisher's new session. Default: no cursor.
        commit: when a message counts as processed, so that it does not come again after a restart.
            `explicit` (default): when `commit` is called; what was returned since then comes again.
            `message`: when the next one is asked for; at most the one in hand comes again, or the
            batch of `receive_many`. It also commits on closing, and needs one thread that does all
            the receiving; so does `commit_interval`.
        commit_interval: instead of `commit`: every so many seconds what is processed by then
            counts; what was returned in the last so many seconds (and 0.05 more) comes again, and
            what is in hand. At least 0.001. Default: none.
        type: what each value is decoded into: a dataclass, a TypedDict, a `msgspec.Struct`, a
            pydantic model, or any other type that msgspec knows, such as `list[int]`. Default: what
            was published, a record as a dict.
        types: types by topic or by prefix (`quotes*`), where they differ; an exact topic goes
            before the longest prefix, and the values of other topics are not typed.
        on_invalid: what to do about a value that does not fit its type. `raise` (default): raise
            `InvalidValueError` in the place of the message; the next call goes on with the next
            message. A callable gets that exception instead. `skip`: go on. The message counts as
            delivered, in `stats().values_invalid` too, and is committed like any other.
        config: all settings; the arguments above go before it.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            prove who they are. Default None: everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.
        CursorError: the cursor's file cannot be used, or another subscriber has it.

    """

    def _open_io(
        self, places: "list[transports.Endpoint]", topics: list[str], config: SubscriberConfig
    ) -> SubscriberDriver:
        return open_lines(self._core, places, topics, config, SubscriberDriver, self._security)

    def _begin(self) -> None:
        self._waiter, self._open = waiter(self), True
        self._driver.start()
        close_at_exit(self, lambda one, left: one.close())

    def __iter__(self) -> Iterator[Message[T_co]]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        With `on_end="stop"` it also ends with a feed's session; then iterate again for the next.
        After an exception (a loss, Ctrl-C) the same iterator goes on where it was.
        """
        self._open = not self._closed or self._unusable == INHERITED
        if self._on_ask is None:
            return iterate(self)
        from p2pmsg.sync.commits import EachCommitted

        return EachCommitted(self)

    def receive(self, timeout: float | None = None) -> Message[T_co]:
        """Return the next message.

        Args:
            timeout: in seconds; 0 does not wait. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            MessagesLostError: `on_gap="raise"`, and messages were lost.
            SessionEndedError: `on_end="stop"`, and a feed's session is over.
            AuthenticationError: a peer refuses our key, or does not hold the pinned one. It is
                tried again all the time, at least every 2 s, and the error comes for each refusal.
            CursorError: a commit that is automatic could not be written; it is tried again.
            ClosedError: the subscriber is closed.

        """
        if type(timeout) is not float and timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if self._on_ask is not None:
            self._on_ask()
        for message in self._active:  # unlike a call of `next`, Ctrl-C cannot come after it
            return message
        deadline_ns = deadline(timeout)
        if self._commits is not None:
            self._commits.asked()
        if self._driver.conflates and not self._closed:
            self._driver.catch_up()
        single: Message | None = receive_frame(self, deadline_ns, 1, False)
        if single:
            return single
        while True:  # another thread may be quicker
            self._advance(timeout, deadline_ns)
            for message in self._active:
                return message

    def receive_many(
        self, count_max: int = 65_536, timeout: float | None = None
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536; a frame of small messages has some 500.
            timeout: in seconds, for the first of them. Default None: without end.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others as `receive`.

        """
        if type(count_max) is not int or count_max < 1:
            whole("count_max", count_max, 1)
        deadline_ns = deadline(timeout)
        if self._on_ask is not None:
            self._on_ask()
        if self._commits is not None:
            self._commits.asked()
        while True:
            taken = None if self._values is NO_VALUES else self._take_batch(count_max)
            if not taken and self._driver.takes_batches:
                taken = receive_frame(self, deadline_ns, count_max, True)
            if taken:
                return taken
            self._advance(timeout, deadline_ns, count_max)

    def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, so that they do not come after a restart.

        A commit is there whole or not at all, whenever this process dies; with the default `fsync`
        it is on the disk on return.

        Args:
            message: commit its stream up to and including it, and no other stream. Default None:
                everything that was returned so far, the last one included, by whichever method.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            CursorError: it could not be written. The former commit holds; it may be tried again.
            ClosedError: the subscriber is closed.

        """
        if self._commits is None:
            raise ConfigError("cursor", "given where commit() is called", None)
        self._commits.commit(message)

    def close(self) -> None:
        """Close; what was not delivered yet stays outstanding in `stats()`.

        With automatic commits it commits what is known to be processed: not what is in hand, for
        an exception may be the cause. Leaving a `with` block without one commits that, too.

        Raises:
            CursorError: that could not be written; the subscriber is closed all the same.

        """
        self._close(in_hand=False)

    def _close(self, *, in_hand: bool) -> None:
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            if self._commits is not None:
                self._commits.close(in_hand=in_hand)
        finally:
            self._active = NOTHING
            self._driver.stop()

    def _leave(self, error: BaseException | None) -> None:
        self._close(in_hand=error is None)

    def _advance(
        self, timeout: float | None, deadline_ns: int | None = None, count_max: int = _COUNT_MAX
    ) -> None:
        """Make a batch with messages the active one, doing I/O until there is one."""
        driver, commits, ready = self._driver, self._commits, self._core.ready
        if commits is not None:
            commits.asked()
        while True:
            if self._closed:
                raise ClosedError("the subscriber", self._unusable)
            if commits is not None and commits.newcomers:
                commits.record()
            if driver.conflates:
                driver.catch_up()
            if driver.takes_batches and receive_frame(self, deadline_ns, count_max, False, True):
                return
            if self._activate(count_max):
                return
            if driver.refused is not None:
                driver.raise_refused()
            wait_ms = _WAIT_MS
            if deadline_ns is not None:
                left_ns = deadline_ns - time.monotonic_ns()
                wait_ms = min(wait_ms, max(0, -(-left_ns // _MS)))
            with driver.io_lock:
                if self._closed:
                    continue
                if not ready.entries or (commits is not None and commits.joining):
                    driver.read(wait_ms)
            has_next = ready.entries and not (commits is not None and commits.joining)
            if deadline_ns is not None and wait_ms == 0 and not has_next:
                raise TimeoutError(f"no message within {timeout} s")
