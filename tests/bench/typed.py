"""Values decoded straight into a Struct or a dataclass, against the same values left as dicts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec

import p2pmsg
from tests.bench.harness import Contender, Plan
from tests.bench.loads import TrialError
from tests.bench.ours import OURS, TOPIC, OursManySender, OursReceiver, OursSender
from tests.bench.report import Row, rate_goal

AREA = "typed"


class TradeStruct(msgspec.Struct, gc=False):
    """The dicts of the load `dict`."""

    symbol: str
    price: float
    size: float
    sell: bool
    id: int


@dataclass(slots=True)
class TradeDataclass:
    """The same."""

    symbol: str
    price: float
    size: float
    sell: bool
    id: int


class TypedReceiver(OursReceiver):
    """Messages iterated one by one, with `type=`."""

    def __init__(self, kind: Any, endpoint: str) -> None:
        self._kind = kind
        self._subscriber = p2pmsg.Subscriber(endpoint, topics=[TOPIC], start="latest", type=kind)
        self._messages = iter(self._subscriber)

    def check_each(self, field: str, marks: list[Any]) -> None:
        message = None
        for mark, message in zip(marks, self._messages, strict=False):
            if message.value.id != mark:
                raise TrialError(f"{message.value} came where {field} {mark} was due")
        if marks and (message is None or message.value.id != marks[-1]):
            raise TrialError(f"the messages ended before {field} {marks[-1]}")

    def receive(self, count: int) -> list[Any]:
        found = [message.value for message in islice(self._messages, count)]
        if not all(type(value) is self._kind for value in found):
            raise TrialError(f"some values are no {self._kind.__name__}")
        return [msgspec.to_builtins(value) for value in found]  # compared with dicts, now and then


UNTYPED_MANY = Contender("p2pmsg, publish_many", OursManySender, OursReceiver)
_goal = partial(rate_goal, AREA)
RACES = (
    (_goal("typed dicts into Structs, against untyped", 0.9, 1.2), OursSender, TradeStruct, OURS),
    (_goal("the same, sent by publish_many", 0.9, 1.2),
     OursManySender, TradeStruct, UNTYPED_MANY),
    (_goal("the same, into dataclasses with slots", 0.7, 0.9),
     OursManySender, TradeDataclass, UNTYPED_MANY),
)  # fmt: skip


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    for goal, sender, kind, untyped in RACES:
        typed = Contender(f"typed {kind.__name__}", sender, partial(TypedReceiver, kind))
        yield goal.guarded(
            lambda goal=goal, typed=typed, untyped=untyped: goal.raced(
                typed, untyped, plan, load="dict"
            )
        )
