"""The short way of a message that comes alone: from the socket to the caller in few steps.

Whoever waits for one message at a time is woken with cold caches, and every function on the way
costs ten times what it does in a loop. The long way took 17 µs; that is more than ZeroMQ's I/O
thread waits before it goes to sleep, so that an answer had to wake it, for another 20.
"""

import time
from typing import Final

from p2pmsg.message import Message
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.subscriber_peer import Stream
from p2pmsg.sync.subscriber_driver import SubscriberDriver

_now_ns: Final = time.monotonic_ns


def receive_lone(
    core: SubscriberCore, driver: SubscriberDriver, deadline_ns: int | None
) -> Message | None:
    """Wait for a frame; return its message where it is one and the next one of the last stream.

    None: whatever came, if anything did, was given to the core, and the long way goes on from
    there.
    """
    io_lock = driver.io_lock
    if driver.hurt or not io_lock.acquire(blocking=False):
        return None
    message: Message | None = None
    stream: Stream | None = None
    try:
        try:
            stream, receiver = core.last_stream, driver.sole_receiver()
            wait_ms = driver.wait_ms(deadline_ns)
            if stream is None or receiver is None or core.ready or wait_ms <= 0:
                return None
            if core.cursor is not None and core.cursor.newcomers:
                return None
            data = receiver.receive_wait(wait_ms)
            if data is None:
                return None
            with driver.lock:
                message = core.take_lone(stream, data, now_ns=_now_ns())
                if message is None:
                    core.receive_frame(0, data, now_ns=_now_ns())
            if message is None:
                driver.do_commands()
        finally:
            io_lock.release()
        return message
    except BaseException:
        if message is not None and stream is not None:  # it does not get to the caller
            stream.given = message.sequence
            stream.given_messages -= 1
            core.lone = None
        driver.hurt = True  # Ctrl-C, perhaps in the core's work
        raise
