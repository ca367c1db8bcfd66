"""The ends that carry requests and answers: nanomsg's and nng's sockets, and our own."""

import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import Requester, Responder
from p2pmsg.bridge.ends import SLICE_S, Batch, IsOver, Source, Target, Written
from p2pmsg.bridge.shapes import Reader, Writer
from p2pmsg.errors import MessageError, RequestError, SecurityError
from p2pmsg.toolkit import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.plain import SpPlainSocket
    from p2pmsg.security import Security

_WAITING_MAX: Final = 64
_Question = tuple[str, Any, "Future[Any]"]


class RepSource(Source):
    """A REP or RESPONDENT socket: takes one request at a time, and sends its answer back.

    Args:
        socket: closed with this.
        reader: makes topics and values of requests.
        writer: makes messages of answers.

    """

    def __init__(self, socket: "SpPlainSocket", reader: Reader, writer: Writer) -> None:
        self._socket = socket
        self._reader = reader
        self._writer = writer

    def read(self, timeout: float) -> list[Batch]:
        """See `Source`."""
        if not self._socket.wait(int(timeout * 1000)):
            return []
        messages, _, _ = self._socket.receive_many(1)
        groups = self._reader.group(messages)
        return [Batch(topic, self._reader.decode(values)) for topic, values in groups.items()]

    def acknowledge(self, batch: Batch, written: Written) -> None:
        """Answer; without an answer nothing is sent, and the REQ asks again by its own rules."""
        for answer in written.answers:
            try:
                self._socket.send(self._writer.parts("", answer))
            except ValueError as error:
                _log.warning("topic %r: an answer cannot be sent: %s", batch.topic, error)

    def close(self) -> None:
        """See `Source`."""
        self._socket.close()


class RequesterTarget(Target):
    """Asks a responder of ours.

    Args:
        requester: closed with this.
        timeout: how long an answer may take, in seconds.

    """

    def __init__(self, requester: Requester, timeout: float) -> None:
        self._requester = requester
        self._timeout = timeout

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        written = Written(done=1)
        try:
            answer = self._requester.request(batch.topic, batch.values[0], timeout=self._timeout)
            written.answers.append(answer)
        except (TimeoutError, RequestError, MessageError, SecurityError) as error:
            written.refused[0] = str(error)
        return written

    def close(self, timeout: float) -> None:
        """See `Target`."""
        self._requester.close()


class ResponderSource(Source):
    """A responder of ours, whose requests are answered by the plain side, one at a time.

    Args:
        endpoint: where it binds.
        topics: which it answers.
        timeout: how long an answer may take, in seconds, its wait for others included.
        security: keys. Default None: open.

    """

    def __init__(
        self,
        endpoint: str,
        topics: Sequence[str],
        timeout: float,
        security: "Security | None" = None,
    ) -> None:
        self._timeout = timeout
        self._waiting: queue.Queue[_Question] = queue.Queue(_WAITING_MAX)
        self._asked: list[Future[Any]] = []
        handlers = {topic: partial(self._ask, topic) for topic in topics}
        self.responder = Responder(endpoint, handlers, threads=_WAITING_MAX, security=security)
        self.responder.start()

    def read(self, timeout: float) -> list[Batch]:
        """See `Source`."""
        try:
            topic, value, asked = self._waiting.get(timeout=timeout or SLICE_S)
        except queue.Empty:
            return []
        if not asked.set_running_or_notify_cancel():
            return []  # nobody waits for it any more
        self._asked.append(asked)
        return [Batch(topic, [value])]

    def acknowledge(self, batch: Batch, written: Written) -> None:
        """See `Source`."""
        asked = self._asked.pop()
        if written.answers:
            asked.set_result(written.answers[0])
        else:
            asked.set_exception(ConnectionError(written.refused.get(0, "the bridge was closed")))

    def close(self) -> None:
        """See `Source`; requests that wait get an error."""
        while True:
            try:
                asked = self._waiting.get_nowait()[2]
            except queue.Empty:
                break
            if asked.set_running_or_notify_cancel():
                asked.set_exception(ConnectionError("the bridge was closed"))
        self.responder.close()

    def _ask(self, topic: str, value: Any) -> Any:
        asked: Future[Any] = Future()
        try:
            self._waiting.put((topic, value, asked), timeout=self._timeout)
            return asked.result(self._timeout)
        except (queue.Full, TimeoutError):
            asked.cancel()
            raise TimeoutError(f"no answer within {self._timeout} s") from None


class AskingTarget(Target):
    """A REQ or SURVEYOR socket, which asks and waits for what is answered.

    The answer of a survey is a list, which is there when as many have answered as were connected,
    or with `timeout`.

    Args:
        socket: closed with this.
        writer: makes messages of requests.
        reader: decodes answers.
        timeout: how long answers may take, in seconds.
        is_survey: whether all who are connected are asked, and not one.

    """

    def __init__(
        self,
        socket: "SpPlainSocket",
        writer: Writer,
        reader: Reader,
        timeout: float,
        *,
        is_survey: bool,
    ) -> None:
        self._socket = socket
        self._writer = writer
        self._reader = reader
        self._timeout = timeout
        self._is_survey = is_survey

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        written = Written(done=1)
        try:
            parts = self._writer.parts(batch.topic, batch.values[0])
            written.answers.append(self._ask(parts, is_over))
        except ValueError as error:
            written.refused[0] = str(error)
        except TimeoutError as error:
            written.refused[0] = "the bridge was closed" if is_over() else str(error)
        return written

    def close(self, timeout: float) -> None:
        """See `Target`."""
        self._socket.close()

    def _ask(self, parts: list[bytes], is_over: IsOver) -> Any:
        asked = self._socket.peers if self._is_survey else 1
        if not asked:
            raise TimeoutError("no respondent is connected there")
        answers: list[Any] = []
        deadline, is_sent = time.monotonic() + self._timeout, False
        while len(answers) < asked and not is_over():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            is_sent = is_sent or self._socket.send(parts)
            if is_sent and self._socket.wait(int(min(SLICE_S, left) * 1000) + 1):
                answers += self._reader.decode(self._socket.receive_many(1)[0])
        if not answers:
            why = f"no answer within {self._timeout} s"
            raise TimeoutError(why if is_sent else "nobody takes requests there")
        return answers if self._is_survey else answers[0]
