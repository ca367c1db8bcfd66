"""Publishes at full rate until it is killed: `python -m … JSON`.

What was returned stands in a file that is mapped into memory, so that saying it takes next to no
time: for each topic, how many messages `publish` has returned for. Each topic has one thread, so
that its messages are numbered as they were published.
"""

import json
import os
import sys
import threading
from itertools import count
from mmap import mmap

import p2pmsg

TOPICS = ["a", "b", "c"]


def value_of(topic, number):
    return f"{topic} {number}" + "." * (number * 37 % 200)


def columns_of(number):
    """Return what the message of that number has in addition to its value."""
    options = {}
    if number % 2:
        options["key"] = f"k{number % 7}"
    if number % 3:
        options["timestamp_ns"] = 10**18 + number
    if number % 5 == 0:
        options["headers"] = {"n": number}
    return options


def publish_one(publisher, topics, returned):
    """Publish one message after the other, a few hundred of a topic at a time."""
    publish, numbers = publisher.publish, dict.fromkeys(topics, 0)
    for turn in count():
        topic = topics[turn % len(topics)]
        at, first = TOPICS.index(topic), numbers[topic]
        numbers[topic] = first + 300
        for number in range(first, first + 300):
            publish(topic, value_of(topic, number))
            returned[at] = number + 1


def publish_columns(publisher, topics, returned):
    publish, (topic, *_) = publisher.publish, topics
    at = TOPICS.index(topic)
    for number in count():
        publish(topic, value_of(topic, number), **columns_of(number))
        returned[at] = number + 1


def publish_many(publisher, topics, returned):
    (topic, *_), number = topics, 0
    at = TOPICS.index(topic)
    while True:
        publisher.publish_many(topic, [value_of(topic, number + index) for index in range(500)])
        number += 500
        returned[at] = number


def publish_bursts(publisher, topics, returned):
    """Publish so that streams become idle now and then: their messages go alone."""
    (topic, *_), number = topics, 0
    at, rests = TOPICS.index(topic), threading.Event()
    while True:
        for _ in range(number % 40 + 1):
            publisher.publish(topic, value_of(topic, number))
            number += 1
            returned[at] = number
        rests.wait(0.002)


WAYS = {
    "one": [(publish_one, TOPICS)],
    "columns": [(publish_columns, ["a"])],
    "many": [(publish_many, ["a"])],
    "bursts": [(publish_bursts, ["a"])],
    "threads": [(publish_one, ["a"]), (publish_many, ["b"]), (publish_bursts, ["c"])],
}


def main(arguments):
    options = json.loads(arguments)
    with open(options.pop("returned"), "r+b") as file:
        returned = memoryview(mmap(file.fileno(), 0)).cast("Q")
    how = options.pop("how")
    ways = WAYS[how]
    publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(**options))
    os.write(1, b"publishing\n")
    threads = [
        threading.Thread(target=way, args=(publisher, topics, returned), daemon=True)
        for way, topics in ways
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
