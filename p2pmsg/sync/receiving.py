"""The short way of a frame: from the socket to the caller in few steps.

Whoever waits for one message at a time is woken with cold caches, and every function on the way
costs ten times what it does in a loop. The long way took 17 µs; that is more than ZeroMQ's I/O
thread waits before it goes to sleep, so that an answer had to wake it, for another 20.

Whoever takes frame after frame has cold caches, too, for each goes through all that it decodes. So
what is to be found out before waiting is not asked again while the next frame is there already.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.fast_path import stream_of, take_lone, take_whole
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.subscriber_thread import SubscriberDriver

if TYPE_CHECKING:
    from p2pmsg.sync.subscriber import Subscriber

_now_ns: Final = time.monotonic_ns
_GATHERED_BYTES: Final = 4096
"""From this size on a frame has likely another one behind it, so that it pays to look."""
_LONE_BYTES: Final = 1024
"""Up to this size a frame is likely a message that stands alone."""
_COUNT_MAX: Final = 2**32

_Taken = TypeVar("_Taken", Message, MessageBatch, Literal[True])


def receive_short(
    core: SubscriberCore,
    driver: SubscriberDriver,
    deadline_ns: int | None,
    take: Callable[[SubscriberCore, Stream, bytes, int, int], _Taken | None],
    count_max: int,
) -> _Taken | None:
    """Wait for a frame; return what `take` makes of it, with its stream.

    None: whatever came, if anything did, was given to the core, and the long way goes on from
    there. True, from `take`: it has put what came where the caller finds it.
    """
    io_lock = driver.io_lock
    if driver.hurt or core.ready or not io_lock.acquire(blocking=False):
        return None
    taken: _Taken | None = None
    stream: Stream | None = None
    try:
        try:
            if driver.last_round_ns >= driver.late_ns:
                driver.give_way()
            found = _follow(driver) or _wait(core, driver, deadline_ns)
            if found is None:
                return None
            stream, data = found
            now_ns = driver.last_round_ns = _now_ns()
            with driver.lock:
                stream = stream_of(core, stream, data)
                taken = take(core, stream, data, now_ns, count_max)
                if taken is None:
                    core.receive_frame(0, data, now_ns=now_ns)
            if taken is None or now_ns >= core.next_check_ns:
                driver.steady = None
                driver.do_commands()
            elif len(data) >= _GATHERED_BYTES:
                driver.steady = stream
        finally:
            io_lock.release()
        return taken
    except BaseException:
        driver.steady = None
        if stream is not None and isinstance(taken, Message | MessageBatch):
            stream.given_messages -= stream.position - taken.sequence  # the caller has it not
            stream.given = taken.sequence
            core.lone = None
        driver.hurt = True  # Ctrl-C, perhaps in the core's work
        raise


def _follow(driver: SubscriberDriver) -> tuple[Stream, bytes] | None:
    """Return the frame that is there already, where nothing else is to be done."""
    stream, sole = driver.steady, driver.sole
    if stream is None or sole is None or driver.stopping:
        return None
    data = sole.receive()
    return None if data is None else (stream, data)


def _wait(
    core: SubscriberCore, driver: SubscriberDriver, deadline_ns: int | None
) -> tuple[Stream, bytes] | None:
    """Wait for a frame, if nothing else is to be done; return it and the last one's stream."""
    driver.steady = None
    stream, receiver = core.last_stream, driver.sole_receiver()
    wait_ms = driver.wait_ms(deadline_ns)
    if stream is None or receiver is None or core.ready or wait_ms <= 0 or driver.stopping:
        return None
    if core.cursor is not None and core.cursor.newcomers:
        return None
    data = receiver.receive_wait(wait_ms)
    return None if data is None else (stream, data)


def receive_whole(
    core: SubscriberCore, driver: SubscriberDriver, deadline_ns: int | None, count_max: int
) -> MessageBatch | None:
    """Wait for a frame of at most `count_max` messages; None: go the long way."""
    if not driver.takes_whole:
        return None
    return receive_short(core, driver, deadline_ns, take_whole, count_max)


def receive_active(source: "Subscriber", deadline_ns: int | None) -> bool:
    """Wait for a frame and make it the subscriber's active batch; False: go the long way."""
    if not source._driver.takes_whole:
        return False
    take = partial(_take_active, source)
    return bool(receive_short(source._core, source._driver, deadline_ns, take, _COUNT_MAX))


def _take_active(
    source: "Subscriber",
    core: SubscriberCore,
    stream: Stream,
    data: bytes,
    now_ns: int,
    count_max: int,
) -> Literal[True] | None:
    if source._values.__length_hint__():
        return None  # another thread was quicker
    source._batch = batch = None  # two would not fit in the processor's cache
    given, given_messages = stream.given, stream.given_messages
    values: Any = None
    try:
        lone = None if len(data) > _LONE_BYTES else take_lone(core, stream, data, now_ns)
        if lone is not None:
            values = active = iter((lone,))
        elif batch := take_whole(core, stream, data, now_ns, count_max):
            values = iter(batch.values)
            active = batch.iterate(values)
        else:
            return None
        # No call in between, so that Ctrl-C comes before it all or behind it all.
        source._stream, source._batch, source._values, source._active = (
            stream, batch, values, active,
        )  # fmt: skip
    except BaseException:
        if values is None or source._values is not values:
            stream.given, stream.given_messages = given, given_messages
        raise
    return True
