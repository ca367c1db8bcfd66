"""p2pmsg as a contender, through its public names only."""

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import p2pmsg
from tests.bench.harness import Contender
from tests.bench.loads import BATCH_COUNT, TrialError

REPLAY_BYTES = 64 << 20
READY_SECONDS = 10.0
TIMEOUT_SECONDS = 20.0
RECEIVE_MANY_COUNT = 4 * BATCH_COUNT
TOPIC = "t"


def open_publisher() -> Any:
    return p2pmsg.Publisher("tcp://127.0.0.1:0", name="bench", replay_bytes=REPLAY_BYTES)


def open_subscriber(endpoint: str) -> Any:
    return p2pmsg.Subscriber(endpoint, topics=[TOPIC], start="latest")


def receive_rest(subscriber: Any, seconds: float) -> int:
    """Count the messages that come within `seconds`; none is no error."""
    try:
        return len(subscriber.receive_many(1_000, seconds))
    except TimeoutError:
        return 0


class OursSender:
    """`publish` once a message."""

    def __init__(self) -> None:
        self._publisher = open_publisher()
        self.endpoint = self._publisher.endpoint

    def wait_ready(self, subscriber_count: int) -> None:
        self._publisher.wait_for_subscribers(subscriber_count, timeout=READY_SECONDS)

    def send_one(self, value: Any) -> None:
        self._publisher.publish(TOPIC, value)

    def send(self, values: list[Any]) -> None:
        publish = self._publisher.publish
        for value in values:
            publish(TOPIC, value)

    def finish(self) -> None:
        self._publisher.flush()

    def close(self) -> None:
        self._publisher.close()


class OursReceiver:
    """Messages iterated one by one."""

    def __init__(self, endpoint: str) -> None:
        self._subscriber = open_subscriber(endpoint)
        self._messages: Iterator[Any] = iter(self._subscriber)

    def receive_one(self) -> Any:
        return self._subscriber.receive(TIMEOUT_SECONDS).value

    def receive(self, count: int) -> list[Any]:
        return [message.value for message in islice(self._messages, count)]

    def check_each(self, field: str, marks: list[Any]) -> None:
        message = None
        for mark, message in zip(marks, self._messages, strict=False):
            if message.value[field] != mark:
                raise TrialError(f"{message.value} came where {field} {mark} was due")
        if marks and (message is None or message.value[field] != marks[-1]):
            raise TrialError(f"the messages ended before {field} {marks[-1]}")

    def receive_rest(self, seconds: float) -> int:
        return receive_rest(self._subscriber, seconds)

    def close(self) -> None:
        self._subscriber.close()


class OursManySender(OursSender):
    """`publish_many`, which cuts the list into frames of 256 KiB by itself."""

    def send(self, values: list[Any]) -> None:
        self._publisher.publish_many(TOPIC, values)


class OursManyReceiver(OursReceiver):
    """`receive_many`, whose batches have the column of values."""

    def receive(self, count: int) -> list[Any]:
        return self._subscriber.receive_many(RECEIVE_MANY_COUNT, TIMEOUT_SECONDS).values


OURS = Contender("p2pmsg", OursSender, OursReceiver)
OURS_MANY = Contender("p2pmsg, many", OursManySender, OursManyReceiver)


class Crowd:
    """Some publishers in one process."""

    def __init__(self, count: int) -> None:
        self._publishers = [
            p2pmsg.Publisher("tcp://127.0.0.1:0", name=f"p{at}") for at in range(count)
        ]

    def endpoints(self) -> list[str]:
        return [publisher.endpoint for publisher in self._publishers]

    def publish(self, count: int) -> None:
        """Publish `count` messages, from all in turn."""
        for publisher in islice(cycle(self._publishers), count):
            publisher.publish("t", b"x")
        for publisher in self._publishers:
            publisher.flush()

    def close(self) -> None:
        for publisher in self._publishers:
            publisher.close(0)
