"""A puller's core and a pusher's, without a wire between them."""

import pytest

from p2pmsg.queue import frames
from p2pmsg.queue.frames import Hello
from p2pmsg.queue.puller_core import Process, PullerCore, PullerIdentity
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import JobRun, QueuedJob
from p2pmsg.queue.rules.dispatch import FRAME_BYTES_MIN
from p2pmsg.queue.rules.worker import NEVER_NS
from p2pmsg.wire import Frame, Kind, control_frame
from tests.queues import job_queue

MS = 1_000_000
EMPTY_HELLO = control_frame(Kind.QUEUE_HELLO, 1, Hello("", "", 0, 0, 1, 0, 0, [], [], 0, 2**24))
"""A hello without a token: one that sends it is asked who it is."""


def make_pusher(incarnation: int = 1, *, by_batch: bool = False) -> PusherCore:
    queue = job_queue(wall_offset_ns=0, first_delivery=1, records=False, by_batch=by_batch)
    return PusherCore(queue, name="jobs", session=7, incarnation=incarnation)


def make_puller(**options: int) -> PullerCore:
    return PullerCore(PullerIdentity(1, "worker", Process(), 4, **options), now_ns=0)


def up(line: PullerCore, pusher: PusherCore, connection: bytes = b"a", *, now_ns: int = 0) -> None:
    while line.outbox:
        pusher.receive(connection, line.outbox.popleft(), now_ns=now_ns)


def down(pusher: PusherCore, line: PullerCore, *, now_ns: int = 0) -> None:
    while pusher.outbox:
        line.receive(pusher.outbox.popleft()[1], now_ns=now_ns)


def asked_token(pusher: PusherCore) -> int:
    """Take out the question who this is, and return its token."""
    return frames.read(Frame(pusher.outbox.popleft()[1]), frames.Challenge).token


def new_puller(pusher: PusherCore) -> PullerCore:
    """Return a worker that was asked who it is, and has answered; nobody has read that yet."""
    line = make_puller()
    line.handle_timer(now_ns=0)
    up(line, pusher)
    down(pusher, line)
    return line


def tokens_sent(line: PullerCore) -> list[int]:
    """Return the tokens of the hellos that wait to be sent."""
    said = [Frame(data) for data in line.outbox]
    return [frames.read(frame, Hello).token for frame in said if frame.kind == Kind.QUEUE_HELLO]


def joined(pusher: PusherCore) -> PullerCore:
    """Return a worker that the pusher took on, over the connection `a`."""
    line = make_puller()
    line.handle_timer(now_ns=0)
    for _ in range(2):
        up(line, pusher)
        down(pusher, line)
    assert line.joined
    return line


def test_what_was_acknowledged_is_reported_even_if_the_pusher_asks_again_who_this_is():
    pusher = make_pusher()
    pusher.queue.store.push_run(JobRun(0, b"\xc0", [1], 0))
    line = make_puller()

    def report() -> None:
        up(line, pusher)
        pusher.handle_timer(now_ns=0)

    line.handle_timer(now_ns=0)
    hello = line.outbox[0]
    report()
    line.receive(pusher.outbox.popleft()[1], now_ns=0)
    report()
    # A hello of before, that had waited for the connection: it is asked who it is once more.
    down(pusher, line)
    job = line.take(now_ns=0)
    pusher.receive(b"a", hello, now_ns=0)
    down(pusher, line)
    assert not line.joined
    assert line.ack(job)

    # This is what `Puller.close` goes by: a puller that left now would take the answer with it.
    assert not line.reports.is_empty
    for _ in range(4):
        line.flush(now_ns=0)
        report()
        down(pusher, line)
    assert line.reports.is_empty
    assert pusher.queue.store.in_flight == 0
    assert pusher.queue.store.done == 1


def test_an_answer_to_another_start_of_the_pusher_is_none():
    line = new_puller(make_pusher())
    pusher = make_pusher(incarnation=2**60)
    up(line, pusher)
    assert not pusher.queue.workers
    assert asked_token(pusher) not in tokens_sent(line)


def test_a_frame_that_is_sent_twice_is_taken_once():
    """A pusher may send one again that Ctrl-C interrupted right after the sending."""
    pusher = make_pusher()
    line = joined(pusher)
    pusher.queue.store.push_run(JobRun(0, b"\xc0\xc0", [1, 2], 0))
    pusher.handle_timer(now_ns=0)
    ((_, frame),) = pusher.outbox
    line.receive(frame, now_ns=0)
    line.receive(frame, now_ns=0)

    assert [job.sequence for job in line.ready] == [0, 1]
    assert line.counts["received"] == 2
    assert line.invalid == {"delivery": 1}


def test_no_job_is_begun_after_the_lease_also_while_the_pusher_asks_who_this_is():
    """Or the thread went round without a pause; what was begun is reported when it is done."""
    pusher = make_pusher()
    pusher.queue.store.push_run(JobRun(0, b"\xc0\xc0", [1, 2], 0))
    line = joined(pusher)
    pusher.handle_timer(now_ns=0)
    down(pusher, line)
    job = line.take(now_ns=0)
    pusher.receive(b"a", EMPTY_HELLO, now_ns=0)  # a hello of before, that came late
    down(pusher, line)
    assert not line.joined

    line.handle_timer(now_ns=40_000 * MS)
    assert line.next_deadline_ns() > 40_000 * MS
    assert line.take(now_ns=40_000 * MS) is line.take_plain() is None
    assert (job.state, line.has_ready, line.ready_count) == ("held", False, 1)
    assert tokens_sent(line)[-1] != 0
    assert line.ack(job)


def late_frame(pusher: PusherCore, line: PullerCore) -> int:
    """Let a frame of two jobs come an hour after it was sent; return when that is."""
    pusher.queue.store.push_run(JobRun(0, b"\xc0\xc0", [1, 2], 0))
    pusher.handle_timer(now_ns=0)
    now_ns = 3600_000 * MS
    line.handle_timer(now_ns=now_ns)
    line.receive(pusher.outbox.popleft()[1], now_ns=now_ns)
    return now_ns


def test_jobs_that_come_after_the_lease_are_begun_once_it_is_known_that_they_are_still_ours():
    """A frame took longer than `ack_timeout` over a slow network, and each time it came again."""
    pusher = make_pusher()
    line = joined(pusher)
    now_ns = late_frame(pusher, line)
    assert line.take(now_ns=now_ns) is None
    line.handle_timer(now_ns=now_ns + 1000 * MS)
    up(line, pusher)
    pusher.handle_timer(now_ns=0)
    assert (line.counts["dropped"], line.has_ready) == (0, False)
    line.receive(pusher.outbox.popleft()[1], now_ns=now_ns + 1000 * MS)
    assert line.has_ready
    assert line.take(now_ns=now_ns + 1001 * MS)


@pytest.mark.parametrize("extend_ms", [float("nan"), -1.0, float("inf"), 1e300])
def test_what_is_no_time_is_counted(extend_ms):
    pusher = make_pusher()
    joined(pusher)
    report = frames.Report(extended=[(7, extend_ms)])
    frame = control_frame(Kind.QUEUE_REPORT, 1, report, sequence=1)
    pusher.receive(b"a", frame, now_ns=0)
    assert pusher.invalid == {"extend": 1}
    assert pusher.queue.workers[1].hold.due_ns == NEVER_NS


@pytest.mark.parametrize("size", [1, FRAME_BYTES_MIN])
@pytest.mark.parametrize("other", [True, False])
def test_a_large_job_at_which_the_connection_ends_again_and_again_has_failed(other, size):
    pusher = make_pusher()
    pusher.queue.store.push(QueuedJob(0, b"\xc0" * size, 0), now_ns=0)
    line = joined(pusher)
    connections = [b"a"] * 4
    if other:
        connections = [b"a", b"b", b"c", b"d"]
    (worker,) = pusher.queue.workers.values()
    for connection in connections:
        pusher.handle_timer(now_ns=0)
        pusher.outbox.clear()
        assert worker.assigned.count == 1
        if connection == b"a":
            early = control_frame(Kind.QUEUE_REPORT, 1, frames.Report([]), sequence=99)
            pusher.receive(b"a", early, now_ns=0)  # it is asked who it is, over the same one
        else:
            pusher.receive(connection, EMPTY_HELLO, now_ns=0)
        for _ in range(2):
            down(pusher, line)
            up(line, pusher, connection)
    failed = other and size == FRAME_BYTES_MIN  # a small one went down with a bad network
    assert (worker.assigned.count, pusher.queue.store.failed) == (0, int(failed))


@pytest.mark.parametrize("field", ["ack_timeout_ms", "job_timeout_ms"])
@pytest.mark.parametrize(
    ("logged_ms", "is_time"),
    [(1e300, True), (float("inf"), True), (float("nan"), False), (-1.0, False)],
)
def test_a_pusher_may_say_long_times_and_no_others(field, logged_ms, is_time):
    times = {"ack_timeout_ms": 1000.0, "job_timeout_ms": 1000.0, field: logged_ms}
    limits = {"deliveries_max": 5}
    welcome = frames.QueueWelcome("jobs", 1, 0, gone=[], **times, **limits)
    line = make_puller()
    line.receive(control_frame(Kind.QUEUE_WELCOME, 7, welcome), now_ns=0)
    assert line.joined is is_time
    assert line.invalid == ({} if is_time else {"time": 1})
