"""A puller's line and a pusher's core, without a wire between them."""

from p2pmsg.queue.puller_line import Process, PullerLine
from p2pmsg.queue.pusher_core import PusherCore
from recovery.queue import JobQueue, Lot, QueueConfig

MS = 1_000_000


def make_pusher() -> PusherCore:
    queue = JobQueue(QueueConfig(), wall_offset_ns=0, first_delivery=1, records=False)
    return PusherCore(queue, name="jobs", session=7, incarnation=1)


def test_what_was_acknowledged_is_told_even_if_the_pusher_asks_again_who_this_is():
    pusher = make_pusher()
    pusher.queue.store.push_lot(Lot(0, b"\xc0", [1], 0))
    line = PullerLine(1, "worker", 4, Process(), now_ns=0)

    def up() -> None:
        while line.outbox:
            pusher.receive(b"a", line.outbox.popleft(), now_ns=0)
        pusher.handle_timer(now_ns=0)

    def down(count: int) -> None:
        for _ in range(count):
            line.receive(pusher.outbox.popleft()[1], now_ns=0)

    line.handle_timer(now_ns=0)
    hello = line.outbox[0]
    up()
    down(1)
    up()
    # A hello of before, that had waited for the connection: it is asked who it is once more.
    down(len(pusher.outbox))
    job = line.take(now_ns=0)
    pusher.receive(b"a", hello, now_ns=0)
    down(len(pusher.outbox))
    assert not line.joined
    assert line.ack(job)

    # This is what `Puller.close` goes by: a puller that left now would take the answer with it.
    assert line.unsettled
    for _ in range(4):
        line.flush(now_ns=0)
        up()
        down(len(pusher.outbox))
    assert not line.unsettled
    assert pusher.queue.store.in_flight == 0
    assert pusher.queue.store.done == 1
