"""The short way of a frame: from the socket to the caller in few steps.

Whoever waits for one message at a time is woken with cold caches, and every function on the way
costs ten times what it does in a loop. The long way took 17 µs; that is more than ZeroMQ's I/O
thread waits before it goes to sleep, so that an answer had to wake it, for another 20.

Whoever takes whole frames spares 8 µs of the 13 that each took beside its decoding.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream
from p2pmsg.subscriber_short import take_whole
from p2pmsg.sync.subscriber_driver import SubscriberDriver

_now_ns: Final = time.monotonic_ns


_Taken = TypeVar("_Taken", Message, MessageBatch)


def receive_whole(
    core: SubscriberCore, driver: SubscriberDriver, deadline_ns: int | None, count_max: int
) -> MessageBatch | None:
    """Take a whole frame of up to `count_max` messages; not where there is a cursor."""

    def take(core: SubscriberCore, stream: Stream, data: bytes, now_ns: int) -> MessageBatch | None:
        return take_whole(core, stream, data, now_ns, count_max)

    if core.cursor is not None or core.policy.any_conflates:
        return None
    return receive_short(core, driver, deadline_ns, take)


def receive_short(
    core: SubscriberCore,
    driver: SubscriberDriver,
    deadline_ns: int | None,
    take: Callable[[SubscriberCore, Stream, bytes, int], _Taken | None],
) -> _Taken | None:
    """Wait for a frame; return what `take` makes of it, with the last frame's stream.

    None: whatever came, if anything did, was given to the core, and the long way goes on from
    there.
    """
    io_lock = driver.io_lock
    if driver.hurt or core.ready or not io_lock.acquire(blocking=False):
        return None
    taken: _Taken | None = None
    stream: Stream | None = None
    try:
        try:
            stream, receiver = core.last_stream, driver.sole_receiver()
            wait_ms = driver.wait_ms(deadline_ns)
            if stream is None or receiver is None or core.ready or wait_ms <= 0 or driver.stopping:
                return None
            if core.cursor is not None and core.cursor.newcomers:
                return None
            data = receiver.receive_wait(wait_ms)
            if data is None:
                return None
            with driver.lock:
                taken = take(core, stream, data, _now_ns())
                if taken is None:
                    core.receive_frame(0, data, now_ns=_now_ns())
            if taken is None:
                driver.do_commands()
        finally:
            io_lock.release()
        return taken
    except BaseException:
        if taken is not None and stream is not None:  # it does not get to the caller
            stream.given_messages -= stream.position - taken.sequence
            stream.given = taken.sequence
            core.lone = None
        driver.hurt = True  # Ctrl-C, perhaps in the core's work
        raise
