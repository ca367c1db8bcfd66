"""Values as types: dataclasses and TypedDicts are sent and received, and one does not fit.

    python examples/typed.py [ENDPOINT]

A Decimal and a date arrive as what they are. A value that does not fit its type is reported with
its place, and costs none of the messages around it.
"""

import ctrl_c

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import TypedDict

from arguments import optional

import p2pmsg
from p2pmsg.errors import InvalidValueError

COUNT = 500


@dataclass
class Trade:
    """What goes over the topic `trades`."""

    symbol: str
    price: Decimal
    day: datetime.date
    size: float = 1.0


class Quote(TypedDict):
    """What goes over the topics `quotes.*`."""

    bid: float
    ask: float


def publish(publisher: p2pmsg.Publisher) -> None:
    """Publish trades, one of which has no price, and two quotes."""
    day = datetime.date(2026, 11, 23)
    values: list[object] = [Trade("BTCUSDT", Decimal(n) / 4, day) for n in range(COUNT)]
    values[250] = {"symbol": "BTCUSDT", "price": None, "day": day}
    publisher.publish_many("trades", values)
    publisher.publish("quotes.eu", {"bid": 61_685.5, "ask": 61_686.0})
    publisher.publish("quotes.us", {"bid": 61_685.0})


def main(place: str) -> None:
    """Publish and receive, and add up what was received."""
    types = {"trades": Trade, "quotes.*": Quote}
    with (
        p2pmsg.Publisher(place) as publisher,
        p2pmsg.Subscriber(publisher.endpoint, types=types) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=10.0)
        publish(publisher)
        total, trades = Decimal(0), 0
        for _ in range(COUNT + 2):
            try:
                message = subscriber.receive(timeout=10.0)
            except InvalidValueError as error:
                print(f"{error.item.topic} {error.item.sequence}: {error.reason}, at {error.path}")
                continue
            if isinstance(message.value, Trade):
                total, trades = total + message.value.price, trades + 1
            else:
                print(f"{message.topic}: {message.value['ask'] - message.value['bid']}")
        stats = subscriber.stats()
        print(f"{trades} trades of {type(total).__name__} {total}")
        print(f"delivered {stats.delivered}, of which {stats.values_invalid} did not fit")


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "ENDPOINT", "tcp://127.0.0.1:5561"))
