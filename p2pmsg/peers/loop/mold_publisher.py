"""The face of the Mold publisher for asyncio."""

from collections.abc import Sequence

from p2pmsg.checks import check
from p2pmsg.driver.faces import LoopFace
from p2pmsg.peers.mold_publisher import END_S, MoldPublisherBase


class MoldPublisher(MoldPublisherBase, LoopFace):
    """Publishes a MoldUDP64 feed, and serves what its receivers missed.

    Any receiver of the standard can read it. The messages are bytes, numbered from 1 on. With
    threads, one of its own sends heartbeats and answers requests.

    Args:
        endpoint: `mold://GROUP:PORT?interface=…&ttl=…&loopback=…&request=HOST:PORT`, where the
            request option is the address that requests come to; port 0 lets the system pick one.
            Default: port 0 on all interfaces.
        session: its name, 1 to 10 ASCII characters, not only spaces; a new one for every sequence
            space.
        replay_bytes: bound of what is kept for requests, in bytes. Default 64 MiB.
        rate_limit_bytes_s: how fast packets leave, at most, in bytes a second. Default 125 MB/s, a
            gigabit link: the standard has no means for receivers to slow a feed down.
        history: gives older messages, from a store of yours, for requests that neither the buffer
            nor the log can answer. A thread of its own calls it, one call at a time, or in an event
            loop one of the loop's executor.
        log: a `LogConfig`: messages are kept there before they go out, requests are answered from
            it, and a publisher that is started again goes on in its session. A log that was given
            up (`on_error="continue"`) is refused: what went out after that is not in it, and its
            sequences must not be used again.

    Raises:
        ConfigError: a setting is out of its limits, the endpoint is none, or the log is another
            session's.
        BindError: an address could not be bound.

    """

    async def publish(self, message: bytes) -> int:
        """Send one message, when those before it have left, and return its sequence.

        Args:
            message: 0 to 65,471 bytes; the standard allows an empty one.

        Raises:
            ConfigError: it is not bytes, or has more than 65,471 of them.
            LogFailedError: the log could not be written; a note says how many were accepted.
            ClosedError: the publisher is closed.

        """
        first, _ = await self._driver.run(self._peer.publish([message]))
        return int(first)

    async def publish_many(self, messages: Sequence[bytes]) -> tuple[int, int]:
        """Send messages, in as few packets as hold them; returns the first and last sequence.

        Args:
            messages: each as for `publish`.

        Raises:
            ClosedError: the publisher is closed.
            Others as `publish`.

        """
        check("len(messages)", len(messages), len(messages) > 0, "at least 1")
        first, last = await self._driver.run(self._peer.publish(messages))
        return first, last

    async def close(self, linger: float = END_S) -> None:
        """Say that the session is over, when all has left, and close.

        Args:
            linger: how long that is repeated and requests are still answered, in seconds. Default
                0.35; exchanges take 30.

        Raises:
            LogFailedError: not everything could be written to the log; it is closed all the same.

        """
        await self._end(self._peer.close(linger))
