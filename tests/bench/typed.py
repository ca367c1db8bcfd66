"""Values decoded straight into a Struct, against the same values left as dicts."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

import p2pmsg
from tests.bench.harness import Contender, Plan
from tests.bench.loads import TrialError
from tests.bench.ours import OURS, TOPIC, OursReceiver, OursSender
from tests.bench.report import Row, rate_goal

AREA = "typed"


class TradeStruct(msgspec.Struct, gc=False):
    """The dicts of the load `dict`."""

    symbol: str
    price: float
    size: float
    sell: bool
    id: int


class TypedReceiver(OursReceiver):
    """Messages iterated one by one, with `type=`."""

    def __init__(self, endpoint: str) -> None:
        self._subscriber = p2pmsg.Subscriber(
            endpoint, topics=[TOPIC], start="latest", type=TradeStruct
        )
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
        if not all(type(value) is TradeStruct for value in found):
            raise TrialError("some values are no Structs")
        return [msgspec.to_builtins(value) for value in found]  # compared with dicts, now and then


STRUCTS = rate_goal(AREA, "typed dicts into Structs, against untyped", 0.9, 1.2)
TYPED = Contender("typed Structs", OursSender, TypedReceiver)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the row."""
    yield STRUCTS.guarded(lambda: STRUCTS.raced(TYPED, OURS, plan, load="dict"))
