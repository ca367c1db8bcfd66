"""Dead letters from outside their pusher: of one that runs, or of a log at rest."""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.checks import checked
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import (
    AccessDeniedError,
    AuthenticationError,
    TransportError,
    denied_by_peer,
    translated,
)
from p2pmsg.queue import frames
from p2pmsg.queue.config import QueueLogConfig
from p2pmsg.queue.dead_letters import DeadLetter, dead_job_of, letter_of
from p2pmsg.queue.journal.file import Journal, read_log
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.rules import Dropped, Retried
from p2pmsg.security.use import curve_client
from p2pmsg.wire import Frame, FrameError, Kind, control_frame

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_REPEAT_S: Final = 0.5
_LOOK_MS: Final = 50
_FRAME_BYTES_MAX: Final = 2**32
"""An answer has one dead letter at least, which may be as large as a job of that pusher can be."""
Numbers = list[int]


class LiveBox:
    """Of a pusher that runs.

    Raises:
        ConfigError: the endpoint is none.
        ConfigError: it pins a key, and there is no security.
        AuthenticationError: the pusher's key is not pinned; from `list` and `act`: it refused the
            connection, or does not hold that key.
        AccessDeniedError: from `list` and `act`; the pusher does not do that over the wire
            (`PusherConfig.admin`), or not for our key.

    """

    @checked()
    def __init__(self, endpoint: str, timeout: float, security: "Security | None" = None) -> None:
        self._security = security
        self._timeout = timeout
        self._endpoint = endpoint
        with translated():
            place = transports.parse_endpoint(endpoint).require_connectable()
            self._client = transports.ZmqRecoveryClient(
                place, context=zmq_context(), frame_bytes_max=_FRAME_BYTES_MAX,
                curve=curve_client(security, place),
            )  # fmt: skip
            self._client.connect()

    def list(self) -> Sequence[DeadLetter]:
        """Return all, by sequence; `TimeoutError` where the pusher does not answer."""
        letters: list[DeadLetter] = []
        after = 0
        while True:
            answer = self._ask("list", [after], False)
            if not answer.letters:
                return letters
            try:
                letters += [letter_of(dead_job_of(row)) for row in answer.letters]
            except ValueError as error:
                raise TransportError(f"{self._endpoint}: {error}") from error
            after = letters[-1].sequence + 1

    def act(self, action: str, sequences: Sequence[int], everything: bool) -> int:
        """`retry` or `purge` some, or all; return how many."""
        return int(self._ask(action, [*sequences], everything).count)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _ask(self, action: str, sequences: Numbers, everything: bool) -> Any:
        """Ask until there is an answer; only what changes nothing is asked again."""
        request = secrets.randbits(63)
        body = frames.Admin(request, action, sequences, everything)
        deadline = time.monotonic() + self._timeout
        while (left := deadline - time.monotonic()) > 0:
            self._client.send(control_frame(Kind.QUEUE_ADMIN, 0, body))
            until = time.monotonic() + (left if action != "list" else min(left, _REPEAT_S))
            while (left_ms := round((until - time.monotonic()) * 1000)) > 0:
                data = self._receive(left_ms)
                answer = None if data is None else _answer(data)
                if answer is not None and answer.request == request:
                    pusher = f"the pusher at {self._endpoint}"
                    if answer.denied:
                        raise denied_by_peer("admin", answer.denied, pusher, answer.refusal)
                    if answer.refusal:
                        raise AccessDeniedError("admin", "", f"{pusher} refuses: {answer.refusal}")
                    return answer
        if self._client.refusal:
            raise AuthenticationError(self._client.endpoint, self._client.refusal)
        text = f"no pusher answered at {self._endpoint} within {self._timeout} s"
        from transports.diagnosis import NEEDS_KEYS, describe_peer

        found = describe_peer(transports.parse_endpoint(self._endpoint))
        if found.startswith(NEEDS_KEYS):
            raise AuthenticationError(self._endpoint, found)
        raise TimeoutError(f"{text}: {found}" if found else text)

    def _receive(self, wait_ms: int) -> bytes | None:
        """Wait for an answer; with security, not so long, and look at the handshake."""
        client = self._client
        if client.wait(wait_ms if self._security is None else min(wait_ms, _LOOK_MS)):
            return client.receive()
        if client.check():
            raise AuthenticationError(client.endpoint, client.refusal)
        return None


class LogBox:
    """Of a log whose pusher does not run; what is read only may be read while it does."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        if not Path(directory).is_dir():
            raise FileNotFoundError(f"there is no directory {directory!r}")

    def list(self) -> Sequence[DeadLetter]:
        """Return all, by sequence."""
        state = read_log(self._directory)
        return [letter_of(state.dead[sequence]) for sequence in sorted(state.dead)]

    def act(self, action: str, sequences: Sequence[int], everything: bool) -> int:
        """`retry` or `purge` some, or all, at its pusher's next start; return how many."""
        read_log(self._directory)  # there is a log at all
        state = JournalState()
        journal = Journal(QueueLogConfig(directory=self._directory), state)
        try:
            chosen = sorted(state.dead) if everything else sequences
            count = 0
            for sequence in chosen:
                dead = state.dead.pop(sequence, None)
                if dead is None:
                    continue
                count += 1
                if action == "purge":
                    journal.change(Dropped(sequence))
                    continue
                dead.job.failures, dead.job.due_ns, dead.job.quarantined = 0, 0, False
                journal.change(Retried(dead.job))
            return count
        finally:
            journal.close()

    def close(self) -> None:
        """Nothing is held."""


def _answer(data: bytes) -> Any:
    try:
        frame = Frame(data)
        if frame.kind == Kind.QUEUE_ANSWER:
            return frames.read(frame, frames.Answer)
    except FrameError:
        pass
    return None
