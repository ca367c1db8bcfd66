"""What a stream hands on."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Delivery(Generic[T]):
    """Hand on `count` messages of `item` after its first `skip`; the first is `sequence`."""

    item: T
    sequence: int
    skip: int
    count: int
    late: bool = False
    """It was reported as skipped before, and those behind it were handed on."""
