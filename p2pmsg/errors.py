"""What p2pmsg raises.

::

    P2PError
    ├── ClosedError               a peer was used after close(), or by a forked child
    ├── ConfigError (ValueError)  a setting, an argument or an endpoint is out of its limits
    │   └── MissingExtraError (AttributeError)  what it needs is not installed
    ├── CursorError               a cursor cannot be read or written, or another has it
    ├── MessageError (ValueError) a message cannot be published as it is
    │   └── MessageTooLargeError  … because of its size
    ├── BindError (OSError)       the endpoint could not be bound
    ├── SendQueueFullError        a subscriber's queue is full, or an asyncio pusher's
    ├── ReentrantCallError (RuntimeError)  a signal handler called what it had interrupted
    ├── LogError                  a local log cannot be opened, read or written
    │   ├── LogInUseError (OSError)  another writer has it
    │   ├── LogFormatError        a file of it is damaged, or foreign
    │   └── LogFailedError (OSError)  it could not be written
    ├── TransportError            a socket cannot be used any more, or not be opened
    ├── RequestError              a request was not answered as it should be
    │   └── RemoteError           its handler raised, or it has none; with type and text
    ├── InvalidValueError (ValueError)  a message's, job's or request's value does not fit its type
    ├── SecurityError             who one is, or what one may, is not as it has to be
    │   ├── AuthenticationError   a peer refuses our key, or does not hold the one that is pinned
    │   └── AccessDeniedError     the other side does not allow it
    ├── HandlerError              a handler of an App raised, and its policy is to stop
    ├── SessionEndedError         on_end="stop", and a feed's session is over
    └── MessagesLostError         on_gap="raise", and a gap could not be repaired

Time-outs are the built-in `TimeoutError`; a peer of `p2pmsg.aio` that is used outside of its event
loop raises a `RuntimeError`; a value that the configuration of the lower packages (`LogConfig`,
`CursorConfig`) refuses is a `ValueError`. What the lower packages raise is
translated once; `except` clauses for `recovery.log`'s and `transports`' errors go on working, since
those of the same names here inherit from them. A malformed frame off the wire is counted, never
raised.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import transports
from recovery import Loss as Loss
from recovery import LossReason as LossReason
from recovery import errors as recovery_errors
from recovery._copied import CopiesWhole


class P2PError(CopiesWhole, Exception):
    """The root of what p2pmsg raises.

    All of them can be copied and pickled, so that they come out of worker processes as they are.
    """


class ClosedError(P2PError):
    """A peer was used after it was closed, or in a forked child, which inherits no sockets."""

    def __init__(self, what: str, why: str = "it is closed") -> None:
        super().__init__(f"{what} cannot be used: {why}")
        self.what = what
        self.why = why


_SHOWN_MAX: Final = 1000
"""Characters of a value that an error shows."""


def _shown(value: Any) -> str:
    """Return a value as text that fits a line, whatever it is: files and peers give some."""
    try:
        text = repr(value)
    except RecursionError:
        return f"{type(value).__name__} within {type(value).__name__}, too deep to be shown"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


class ConfigError(P2PError, ValueError):
    """The setting, argument or `endpoint` named `field` is out of its limits; `value` was given."""

    def __init__(self, field: str, limit: str, value: Any) -> None:
        super().__init__(f"{field} must be {limit}, not {_shown(value)}")
        self.field = field
        self.value = value

    def within(self, place: str) -> None:
        """Put before `field` where it is.

        Args:
            place: a file, or a line of it, as `prices.toml, line 3`.

        """
        self.field = f"{place}: {self.field}"
        self.args = (f"{place}: {self}",)


class MissingExtraError(ConfigError, AttributeError):
    """What a setting or a name needs is not installed; it names the extra.

    It is an `AttributeError` too, so that `hasattr(p2pmsg, "LogConfig")` is False then.
    """

    def __init__(self, field: str, package: str, extra: str, value: Any = None) -> None:
        what = field if value is None else f"{field} {value!r}"
        P2PError.__init__(
            self,
            f"{what} needs the package {package}, which is not installed: "
            f"pip install 'p2pmsg[{extra}]'",
        )
        self.field = field
        self.value = "given" if value is None else value
        self.package = package
        self.extra = extra


class CursorError(P2PError):
    """The cursor's file at `path` cannot be read or written, is damaged, or another has it.

    The subscriber has lost nothing: what was not committed comes again at its next start.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the cursor {path!r} cannot be used: {reason}")
        self.path = path


class MessageError(P2PError, ValueError):
    """A message cannot be published, because of its part `field`; nothing of it was accepted."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field} {reason}")
        self.field = field


class MessageTooLargeError(MessageError):
    """A message has `size` bytes and is larger than `message_bytes_max`, the `limit`."""

    def __init__(self, field: str, size: int, limit: int) -> None:
        super().__init__(field, f"takes {size} bytes, and the limit is {limit}")
        self.size = size
        self.limit = limit


class BindError(P2PError, OSError):
    """The endpoint could not be bound, or not be connected to at all.

    `errno` is the system's number, where there is one.
    """

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class ReentrantCallError(P2PError, RuntimeError):
    """A signal handler called what its thread was inside of; nothing was done.

    It cannot wait, since what it interrupted goes on when it returns. Let the handler raise, or set
    something that the program looks at. (A finalizer, or a handler of `logging`, may be the cause,
    too.)
    """

    def __init__(self) -> None:
        super().__init__("called, probably by a signal handler, while the same thread was inside")


class SendQueueFullError(P2PError):
    """A subscriber's queue, or that of a pusher or requester of `p2pmsg.aio`, is full.

    The message, job or request was not accepted, and may be tried again.
    """


class LogError(P2PError, recovery_errors.RecoveryError):
    """A local log cannot be opened or read; itself where there is no log, or no such part of it."""


class LogInUseError(LogError, recovery_errors.LogLockedError, OSError):
    """Another process, or another peer of this one, writes to the log in `directory`.

    `pid` is the number of that process; None where it is not known. For webhooks, `directory` is
    the folder of an endpoint, or the file of ids.
    """

    def __init__(
        self,
        directory: str,
        what: str = "the log in",
        by: str = "another writer",
        pid: int | None = None,
    ) -> None:
        process = "" if pid is None else f", process {pid}"
        Exception.__init__(self, f"{what} {directory!r} is in use by {by}{process}")
        self.directory = directory
        self.pid = pid


class LogFormatError(LogError, recovery_errors.LogFormatError):
    """A file of the local log is damaged, foreign, or of an unknown version.

    `path` is the file, and `offset` the place in it, in bytes. `p2pmsg log repair` keeps every
    record that is intact.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        Exception.__init__(self, reason)
        self.path = path
        self.offset = offset


class LogFailedError(LogError, OSError):
    """The local log could not be written: a full disk, a directory that vanished or is read-only.

    What was written stays good. The message that `publish` was called with was not accepted; it may
    be tried again. `errno` is the system's number, where there is one.
    """

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class TransportError(P2PError, transports.TransportError):
    """A socket cannot be used any more, or not opened: no descriptor is free (`ulimit -n`)."""


class RequestError(P2PError):
    """A request for `topic` was not answered as it should be by `responder`, an endpoint."""

    def __init__(self, topic: str, responder: str, reason: str) -> None:
        super().__init__(f"request {topic!r} to {responder}: {reason}")
        self.topic = topic
        self.responder = responder


class RemoteError(RequestError):
    """The responder's handler raised, or there is none for the topic.

    `type_name` is the exception's type, as `module.name` (built-in ones without a module), and
    `text` its text. Without a handler, `type_name` is empty.
    """

    def __init__(self, topic: str, responder: str, type_name: str, text: str) -> None:
        super().__init__(topic, responder, ": ".join(filter(None, (type_name, text))))
        self.type_name = type_name
        self.text = text


class SecurityError(P2PError):
    """The root of what is raised about keys and rights."""


class AuthenticationError(SecurityError):
    """The peer at `endpoint` refuses our key, or does not hold the key that is pinned for it.

    It is tried again all the time: the call may be repeated, and it goes on when the key is
    admitted, or the pinned key is the right one. `reason` says what is wrong. Where that is a
    changed key, find out by another way which one is its own, before
    `p2pmsg trust add --replace`.
    """

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"{endpoint}: {reason}")
        self.endpoint = endpoint
        self.reason = reason


class AccessDeniedError(SecurityError):
    """The other side, or the access file, does not allow `verb` for `topic`."""

    def __init__(self, verb: str, topic: str, reason: str) -> None:
        super().__init__(f"{verb} {topic!r} is not allowed: {reason}")
        self.verb = verb
        self.topic = topic
        self.reason = reason


def denied_by_peer(verb: str, topic: str, peer: str, why: str = "") -> AccessDeniedError:
    """Return what is raised where another peer gives us no right.

    Args:
        verb: what would be needed, as `subscribe`.
        topic: for what: a topic, a prefix, or a queue's name.
        peer: who denies it, for people.
        why: what it says itself. Default: nothing.

    """
    text = f"{peer} gives us no right to it"
    return AccessDeniedError(verb, topic, f"{text}: {why}" if why else text)


class HandlerError(P2PError):
    """An app has stopped because its handler `handler` raised; the exception is the cause."""

    def __init__(self, handler: str, event: str, reason: str) -> None:
        super().__init__(f"{handler} failed with {event}: {reason}")
        self.handler = handler


class MessagesLostError(P2PError):
    """Messages were lost; `report` says which and why. Receiving may go on after them.

    With a `RewoundReport` the publisher uses sequences again: its log was restored from a copy, or
    has lost its end. Receiving goes on with its new messages, from `report.start` on.
    """

    def __init__(self, report: "LossReport") -> None:
        super().__init__(str(report))
        self.report = report


class InvalidValueError(P2PError, ValueError):
    """The value of a message, a job or a request does not fit its type.

    Receiving goes on with the next one. A job is a dead letter then; one of a pipeline counts as
    done, and is nowhere but here.

    Attributes:
        item: the message or job, with its value as it is without a type; None for a request.
        path: where in the value, as `$.orders[3].price`; `$` is the value itself.
        reason: what is wrong there.

    """

    def __init__(self, what: str, path: str, reason: str, item: Any = None) -> None:
        super().__init__(f"the value of {what} does not fit its type: {reason}, at {path}")
        self.item = item
        self.path = path
        self.reason = reason


class SessionEndedError(P2PError):
    """A feed's session is over, and all of it was delivered or reported lost.

    Receiving may go on, with the feed's next session. `end` says which session ended, and where.
    """

    def __init__(self, end: "SessionEnd") -> None:
        super().__init__(str(end))
        self.end = end


@dataclass(frozen=True, slots=True, repr=False)
class SessionEnd:
    """A session of a MoldUDP64 feed is over, and all of it was delivered or reported lost.

    Attributes:
        topic: the stream's topic.
        session: the session's id.
        publisher: the session's name.
        stop: the sequence after its last one that is known of.
        announced: it said that it is over. Otherwise another session took its place, perhaps one
            of the same name that begins again; what it still had sent is not known.

    """

    topic: str
    session: int
    publisher: str
    stop: int
    announced: bool

    def __repr__(self) -> str:
        return f"<SessionEnd {self}>"

    def __str__(self) -> str:
        how = "has ended" if self.announced else "was followed by another one"
        return f"the session {self.publisher!r} of {self.topic!r} {how} before sequence {self.stop}"


@dataclass(frozen=True, slots=True, repr=False)
class LossReport:
    """A range of messages of one stream that was lost and cannot be repaired.

    Attributes:
        topic: the stream's topic.
        session: the stream's session.
        publisher: the publisher's name.
        loss: the range as the lower layers have it, with `start`, `stop` and `reason`.

    """

    topic: str
    session: int
    publisher: str
    loss: Loss

    @property
    def start(self) -> int:
        """First sequence lost."""
        return self.loss.start

    @property
    def stop(self) -> int:
        """The sequence after the last one lost."""
        return self.loss.stop

    @property
    def reason(self) -> LossReason:
        """Why it was lost."""
        return self.loss.reason

    @property
    def count(self) -> int:
        """How many messages were lost."""
        return self.stop - self.start

    def __repr__(self) -> str:
        return f"<LossReport {self}>"

    def __str__(self) -> str:
        most = "at most " if self.reason is LossReason.CRASH else ""
        return (
            f"lost {most}{self.count} messages [{self.start}, {self.stop}) of {self.topic!r} from "
            f"{self.publisher!r} (session {self.session:016x}): {self.reason.value}"
        )


class RewoundReport(LossReport):
    """A range of sequences that a publisher has lost itself and gives to other messages.

    It counts no loss: what had not been received of the range is reported lost on its own. From
    `start` on the new messages follow.
    """

    __slots__ = ()

    @property
    def count(self) -> int:
        """How many messages were lost by this: none."""
        return 0

    def __str__(self) -> str:
        return (
            f"publisher {self.publisher!r} (session {self.session:016x}) has gone back in "
            f"{self.topic!r}: it was at {self.stop} and is at {self.start} again, and uses the "
            f"sequences [{self.start}, {self.stop}) for other messages. Its log was restored from "
            "a copy, or has lost its end"
        )


@contextmanager
def translated() -> Iterator[None]:
    """Raise the transports' `EndpointError` as `ConfigError`, and `AddressError` as `BindError`."""
    try:
        yield
    except transports.EndpointError as error:
        made = ConfigError("endpoint", "an endpoint", error.endpoint)
        made.args = (str(error),)
        raise made from error
    except transports.AddressError as error:
        raise BindError(str(error), error.errno) from error
