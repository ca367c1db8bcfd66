"""Errors of the transports.

    TransportError
    ├── EndpointError        (also ValueError)   an endpoint that cannot be used
    ├── AddressError         (also OSError)      it could not be bound, or connected to
    └── ClosedError                              the socket was closed on this side

A ZeroMQ error never leaves this package: `translate` turns it into one of these, once, with the
original as `__cause__`.
"""

import zmq


class TransportError(Exception):
    """The root of all errors that this package raises."""


class EndpointError(TransportError, ValueError):
    """An endpoint that is not well-formed, or not fit for what it is used for.

    Attributes:
        endpoint: the text (or other object) that was given.
        part: which part is wrong: `"endpoint"`, `"scheme"`, `"host"`, `"port"`, `"path"`,
            `"option"` or `"name"`.
        reason: what is wrong with it, naming the value.

    """

    def __init__(self, endpoint: object, part: str, reason: str) -> None:
        super().__init__(endpoint, part, reason)
        self.endpoint = endpoint
        self.part = part
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} in {self.endpoint!r}"


class AddressError(TransportError, OSError):
    """An endpoint could not be bound, or not be connected to at all.

    A peer that is merely away is never this error.

    Attributes:
        endpoint: the endpoint, as text.
        reason: the operating system's or ZeroMQ's words.
        errno: the error's number, or None where there is none.
        verb: what could not be done: `"bind"`, or `"connect to"`.

    """

    def __init__(
        self, endpoint: str, reason: str, error_number: int | None = None, verb: str = "bind"
    ) -> None:
        # One argument only: OSError would take two for (errno, strerror) and print them so.
        super().__init__(f"cannot {verb} {endpoint!r}: {reason}")
        self.endpoint = endpoint
        self.reason = reason
        self.errno = error_number
        self.verb = verb

    def __reduce__(self) -> tuple[object, ...]:
        arguments = self.endpoint, self.reason, self.errno, self.verb
        return type(self), arguments, self.__dict__


class ClosedError(TransportError):
    """A socket was used after it, or its context, was closed on this side.

    Attributes:
        endpoint: the endpoint of the socket, as text.

    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.endpoint = endpoint

    def __str__(self) -> str:
        return f"the socket of {self.endpoint!r} is closed"


CLOSED = frozenset({int(zmq.ENOTSOCK), int(zmq.ETERM)})


def translate(error: zmq.ZMQError, endpoint: str) -> TransportError:
    """Return this package's error for `error`, met while using the socket of `endpoint`."""
    if error.errno in CLOSED:
        return ClosedError(endpoint)
    return TransportError(f"{endpoint!r}: {error.strerror or error}")
