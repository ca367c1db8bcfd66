# Made by `python -m tests.faces` from p2pmsg/peers/loop/requester.py: change that one.
"""The requester for threads."""

import builtins
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.errors import P2PError
from p2pmsg.message import T
from p2pmsg.peers.requester import RequesterBase, check_request, check_time, check_type
from p2pmsg.requests.answers import Answer
from p2pmsg.requests.requester_engine import Gathering


class Requester(RequesterBase, ThreadFace):
    """Asks responders, and waits for the answer. Many tasks, or threads, may use it at once.

    ::

        with p2pmsg.Requester(["tcp://a:5560", "tcp://b:5560"]) as requester:
            price = requester.request("price", "ACME", timeout=1.0)

    All of them share one connection to each responder. A request that is cancelled, or interrupted,
    disturbs no other; its answer, when it comes, is dropped and counted in `stats().strays`.

    In a loop of another kind (trio's, one of your own) wait until one of `wait_fds()` is readable
    or `next_deadline` has come, and call `turn()`. What is to be awaited is begun with `begin`, as
    `begin(peer.close())`; at the end call `close_now()`.

    Args:
        endpoints: of one responder, or of several that can answer the same.
        message_bytes_max: largest request, packed; at most 16 MiB, of which topic and header take
            1 KiB. Default 1 MiB.
        busy_wait: how long it looks for the answer before it sleeps, in seconds, in one of 17
            waits where answers take longer; at most 0.001, and 0 never looks. In an event loop
            other tasks run in between. Default 0.0002: a round trip on one machine takes 90 to
            150 µs, and a third more where every answer has to wake the asker.
        pending_max: how many requests may wait for an answer at once; further ones wait until there
            is space. Default 10,000.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the responders' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    def request(
        self,
        topic: str,
        value: Any = None,
        *,
        timeout: float = 5.0,
        attempts_max: int = 3,
        type: builtins.type[T] | None = None,  # noqa: A002  # as `Subscriber` calls it
    ) -> T:
        """Return the answer to a request.

        It is asked at one responder; where no answer came in its part of the time, at the next one,
        or at the same again, which then answers from its cache and does not do the work twice.
        Another responder cannot know, and neither can one that was started again since: what it had
        answered is gone with it. Where work must not be done twice, give `attempts_max=1`: a
        time-out, or a cancellation, then leaves open whether it was done.

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            timeout: how long to wait in all, in seconds. Default 5.
            attempts_max: how often it is asked, 1000 times at most; each gets its part of the time,
                and one whose part has passed is left out. Default 3.
            type: what the answer is made: a dataclass or any other type that `Subscriber(type=)`
                takes. Default None: what was sent.

        Raises:
            TimeoutError: no answer came in time.
            AuthenticationError: all that were asked refused the connection, or do not hold the
                pinned key; it is tried again with the next request.
            AccessDeniedError: those that were asked give us no right to `request` the topic, or an
                access file here gives them none to `respond`.
            RemoteError: the handler raised, with type and text, or there is none for the topic.
            RequestError: the answer does not fit `type`.
            MessageError: the request cannot be sent as it is; `MessageTooLargeError` for its size.
            ClosedError: the requester is closed, perhaps while this waited.
            RuntimeError: it was made in another event loop.

        """
        check_request(timeout, attempts_max)
        check_type(type)
        asking = self._peer.request(topic, value, timeout, attempts_max, type)
        answer: T = self._driver.run(asking)
        return answer

    def request_all(
        self, topic: str, value: Any = None, *, deadline: float = 1.0
    ) -> Iterator[Answer]:
        """Ask all responders; iterate over what they answer, as it comes (scatter and gather).

        It ends when all have answered, or at the deadline: those that did not answer by then come
        last, each with a `TimeoutError`. It is asked when this is called.

        Args:
            topic: what is asked.
            value: any msgpack value. Default None.
            deadline: how long to wait, in seconds. Default 1.

        Raises:
            MessageError: the request cannot be sent as it is.
            SendQueueFullError: `pending_max` requests wait for an answer.
            ClosedError: the requester is closed, perhaps while this waited.
            RuntimeError: it was made in another event loop.

        """
        check_time("deadline", deadline)
        driver = self._driver
        gathering = driver.section.run(self._peer.begin_all, topic, value, deadline)
        driver.wake()
        return self._answers_of(gathering)

    def _answers_of(self, gathering: Gathering) -> Iterator[Answer]:
        try:
            while (answer := self._driver.run(self._peer.next_answer(gathering))) is not None:
                yield answer
        finally:
            with suppress(P2PError):  # it is closed, or a finalizer is called within a call
                self._driver.section.run(self._peer.end_all, gathering)

    def close(self, timeout: float = 0.0) -> None:
        """Close; a request that waits, in another task or thread, raises `ClosedError`.

        Args:
            timeout: of no use here; the other peers wait so long, in seconds. Default 0.

        """
        time_to_wait("timeout", timeout)
        self._driver.stop()
