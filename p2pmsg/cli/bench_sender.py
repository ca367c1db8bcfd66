"""The bench's other process: publishes, and echoes."""

import sys
from typing import Any

from p2pmsg.demo.child import emit, next_command
from p2pmsg.sync.publisher import Publisher
from p2pmsg.sync.subscriber import Subscriber

PING, PONG = "ping", "pong"
STOP = b"stop"
_CHUNK = 1000
_JOIN_TIMEOUT_S = 20.0


def main() -> None:
    """Do what the parent says until it goes."""
    value = bytes(int(sys.argv[1]))
    with Publisher("tcp://127.0.0.1:0", name="bench") as publisher:
        emit("ready", endpoint=publisher.endpoint)
        while True:
            command = next_command()
            if command is not None:
                _do(publisher, value, command)


def _do(publisher: Publisher, value: bytes, command: dict[str, Any]) -> None:
    match command["command"]:
        case "join":
            publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
            emit("joined")
        case "publish":
            publish = publisher.publish
            for _ in range(command["count"]):
                publish("publish", value)
            publisher.flush()
            emit("sent")
        case "publish_many":
            left = command["count"]
            values = [value] * _CHUNK
            while left > 0:
                publisher.publish_many("publish_many", values[:left])
                left -= _CHUNK
            publisher.flush()
            emit("sent")
        case "echo":
            _echo(publisher, command["endpoint"])


def _echo(publisher: Publisher, endpoint: str) -> None:
    with Subscriber(endpoint, topics=[PING], name="bench") as subscriber:
        publisher.wait_for_subscribers(1, timeout=_JOIN_TIMEOUT_S)
        emit("joined")
        for message in subscriber:
            if message.value == STOP:
                break
            publisher.publish(PONG, message.value)
    emit("echoed")


if __name__ == "__main__":
    main()
