"""What `request_all` gives back."""

from dataclasses import dataclass
from typing import Any

from p2pmsg.errors import RequestError, SecurityError


@dataclass(frozen=True, slots=True)
class Answer:
    """What one responder answered to `request_all`, or that it did not."""

    endpoint: str
    """Of the responder."""
    value: Any = None
    """What it answered; None where there is an error."""
    error: RequestError | TimeoutError | SecurityError | None = None
    """Why there is no value: the handler raised, there is none, no answer came in time, or the
    connection or the right was refused."""

    @property
    def is_missing(self) -> bool:
        """Whether no answer came in time."""
        return isinstance(self.error, TimeoutError)
