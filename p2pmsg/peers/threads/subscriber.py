# Made by `python -m tests.faces` from p2pmsg/peers/loop/subscriber.py: change that one.
"""The subscriber, as its users see it."""

from collections.abc import Iterator
from typing import Any, Self

from p2pmsg.driver.faces import ThreadFace
from p2pmsg.message import Message, MessageBatch, T_co
from p2pmsg.peers.reading import Each, iterate, waiter
from p2pmsg.peers.subscriber import BATCH_MAX, MANY, SubscriberBase, check_count


class Subscriber(SubscriberBase[T_co], ThreadFace):
    """Receives messages: each once and in order, or reported lost.

    It connects; a publisher that is away is waited for. With threads, the thread that waits in
    `receive` (or iterates) does the I/O, and a background thread keeps gaps repaired while nobody
    does. In an event loop it has no threads, and belongs to the loop that runs where it is made::

        with p2pmsg.Subscriber("tcp://prices:5556", topics=["trades"]) as subscriber:
            for message in subscriber:
                ...

    Several threads, or tasks, may receive; each message goes to one of them. **Cancelling** a call
    loses nothing and repeats nothing: a message is taken in the step in which the call returns it.
    Other tasks run at least every few ms, also where messages are always there; a callable, and the
    code between two messages, should not block.

    **In trio, or a loop of your own**: make that of `p2pmsg.aio` where no event loop runs. Then
    wait until one of `wait_fds()` is readable or `next_deadline` has come, call `turn()`, then
    `receive_nowait()` until it returns None; at the end call `close_now()`.

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
            `LossReport` instead; in an event loop it may be a coroutine function, which is awaited
            before the next message is given out. `skip`: do not wait, go on at once, and deliver
            what comes late with `message.late` set; with `start="latest"` and no cursor only.
            `latest`: only the newest value of each key matters, so a slow reader gets that one in
            place of the older ones, which `stats()` counts as conflated. Known limit: over many
            topics what a slow reader gets can grow older without end, unreported; watch
            `message.timestamp_ns`. A dict: policies by topic or prefix (`a*`).
            A publisher that uses sequences again is reported in the same way, as `RewoundReport`,
            and logged with `skip`, too.
        on_end: what to do when a session of a `mold://` feed is over and all of it was delivered or
            reported lost. `wait` (default): for the feed's next session. `stop`: end the iteration,
            and raise `SessionEndedError` from `receive` and `receive_many`; the next call gets the
            feed's next session. A callable, as for `on_gap`, gets a `SessionEnd` before the first
            message of the next session. Where request servers are still asked for what is missing
            when that one begins, its messages come first. Other publishers' sessions do not end.
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
            batch of `receive_many`. It also commits on closing, and needs one thread or task that
            does all the receiving; so does `commit_interval`.
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
            message. A callable, as for `on_gap`, gets that exception instead. `skip`: go on. The
            message counts as delivered, in `stats().values_invalid` too, and is committed like any
            other.
        config: all settings; the arguments above go before it.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            prove who they are. Default None: everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.
        CursorError: the cursor's file cannot be used, or another subscriber has it.

    """

    _closes_at_once = True

    def _on_open(self) -> None:
        super()._on_open()
        self._waiter, self._is_open = waiter(self), True

    def __iter__(self) -> Iterator[Message[T_co]]:
        """Iterate over messages without end; it ends when the subscriber is closed.

        With `on_end="stop"` it also ends with a feed's session; then iterate again for the next.
        After an exception (a loss, Ctrl-C, a cancellation) the same iterator goes on where it was.
        """
        self._is_open = not self._closed or self._peer.is_inherited
        return Each(self.receive) if self._each else iterate(self)

    def batches(self, count_max: int = BATCH_MAX) -> Iterator[MessageBatch[T_co]]:
        """Iterate over batches, each as of `receive_many`; it ends as iterating over messages does.

        Args:
            count_max: how many messages a batch has at most. Default 65,536.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.

        """
        check_count(count_max)
        return Each(lambda: self.receive_many(count_max))

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
            ClosedError: the subscriber is closed, perhaps while this waited.
            RuntimeError: it belongs to another event loop.

        """
        deadline_ns = None if timeout is None else self._deadline(timeout)
        if self._each:
            self._driver.run(self._peer.commit_returned())
        while True:
            for message in self._reading.messages:  # C, so that nothing can come in between
                return message
            self._advance(timeout, deadline_ns)

    def receive_many(
        self, count_max: int = BATCH_MAX, timeout: float | None = None
    ) -> MessageBatch[T_co]:
        """Return the next messages of one stream, as many as are there.

        Args:
            count_max: how many at most. Default 65,536; a frame of small messages has some 500.
            timeout: in seconds, for the first of them. Default None: without end.

        Raises:
            ConfigError: `count_max` is not an int of at least 1.
            Others: as `receive`.

        """
        check_count(count_max)
        deadline_ns = None if timeout is None else self._deadline(timeout)
        if self._each:
            self._driver.run(self._peer.commit_returned())
        while True:
            batch = self._take_batch(count_max)
            if batch is not None:
                return batch
            self._advance(timeout, deadline_ns, count_max)

    def commit(self, message: Message | MessageBatch | None = None) -> None:
        """Note durably that messages are processed, so that they do not come after a restart.

        A commit is there whole or not at all, whenever this process dies; with the default `fsync`
        it is on the disk on return. What is committed is decided when this is called. Where it is
        cancelled, it may be written all the same, whole.

        Args:
            message: commit its stream up to and including it, and no other stream. Default None:
                everything that was returned so far, the last one included, by whichever method.

        Raises:
            ConfigError: there is no cursor, or `message` is none that this subscriber returned.
            CursorError: it could not be written. The former commit holds; it may be tried again.
            ClosedError: the subscriber is closed.
            RuntimeError: it belongs to another event loop.

        """
        self._driver.run(self._peer.commit(message))

    def close(self) -> None:
        """Close; what was not delivered yet stays outstanding in `stats()`.

        Calls that wait get a `ClosedError`, and iterations end. With automatic commits it commits
        what is known to be processed: not what is in hand, for an exception may be the cause.
        Leaving its `with` block without one commits that, too.

        Raises:
            CursorError: that could not be written; the subscriber is closed all the same.
            RuntimeError: it belongs to another event loop.

        """
        self._close(in_hand=False)

    def _close(self, *, in_hand: bool) -> None:
        self._end(self._peer.close(in_hand=in_hand))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._close(in_hand=error is None)

    def _advance(
        self, timeout: float | None, deadline_ns: int | None = None, count_max: int = MANY
    ) -> None:
        """Have messages there to be read, and report what comes before them."""
        if not self._take_now(count_max):
            self._driver.run(self._peer.fill(timeout, deadline_ns, count_max))
        self._report()

    def _report(self) -> None:
        """Report what waits for it."""
        for report in self._reading.reports:  # C, as with messages
            report()
