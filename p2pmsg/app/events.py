"""What a handler is called with."""

from dataclasses import dataclass
from typing import Any, Literal

from p2pmsg.message import Message
from p2pmsg.queue import Job

Kind = Literal["message", "job", "request", "timer"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a responder's handler answers.

    Attributes:
        topic: the handler's topic.
        value: what was asked.

    """

    topic: str
    value: Any


@dataclass(slots=True, eq=False)
class Event:
    """One call of a handler, as middleware and error policies see it.

    Attributes:
        kind: `message`, `job`, `request` or `timer`.
        handler: the handler's name.
        value: what its first parameter gets: decoded, and converted where that is annotated.
            Middleware may put something else here. None for a timer.
        message: for a subscriber's handler, otherwise None.
        job: for a worker's handler, otherwise None.
        request: for a responder's handler, otherwise None.
        attempt: how often it was tried, this time included; for jobs, how often it was delivered.

    """

    kind: Kind
    handler: str
    value: Any = None
    message: Message | None = None
    job: Job | None = None
    request: Request | None = None
    attempt: int = 1

    def __str__(self) -> str:
        if self.message is not None:
            one = self.message
            return f"message {one.sequence} of {one.topic!r} from {one.publisher!r}"
        if self.job is not None:
            return f"job {self.job.sequence}"
        if self.request is not None:
            return f"a request for {self.request.topic!r}"
        return "a tick"
