"""Publishers by the dozen, for what it costs to read from many."""

from itertools import cycle, islice

import p2pmsg


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
