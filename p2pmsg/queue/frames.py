"""Frames of the work queue, over the wire format of `p2pmsg.wire`.

A puller's frames carry its id where the header has the session, so that it is known again after its
connection was made again; a pusher's carry the queue's session.

===============  ============  ====================================================================
kind             from          what it says
===============  ============  ====================================================================
QUEUE_HELLO      puller        I am here, may have so many jobs, and have these in flight
QUEUE_WELCOME    pusher        you are taken on; of what you have, these are no longer yours; by the
                               batch: the endpoint of your PUSH socket, over which JOBS come
QUEUE_CHALLENGE  pusher        I do not know this connection: say hello
JOBS             pusher        do these; the header's sequence is the first delivery number
QUEUE_REPORT     puller        I did, could not do, or give back these; number 0: I am alive
QUEUE_CONFIRM    pusher        I have your reports up to this one; the timestamp is your sign's; by
                               the batch: how many jobs were sent over that socket
QUEUE_RECALL     pusher        give back so many that you have not begun
QUEUE_LEAVE      puller        I am going; what I have not acknowledged was not begun
QUEUE_ADMIN      anybody       list, retry or purge dead letters
QUEUE_ANSWER     pusher        the answer to that
DENIED           pusher        your key gives you no right to `pull` here
===============  ============  ====================================================================

The body of JOBS is ``[values, sequences, details, confirmed, delivered_ns]``: `sequences` is the
first one where they are consecutive, else a list; `details` is nil where no job has more than a
value, else a list with an entry (or nil) a job.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, NamedTuple

from p2pmsg import codec
from p2pmsg.control import Denied, Id, Name, Range, Sequence, decoded
from p2pmsg.queue.rules import DeliveryBatch, QueuedJob
from p2pmsg.wire import HEADER, MAGIC, VERSION, Frame, FrameError, Kind, encoder, values_header

RANGES_MAX: Final = 65_536
REASON_CHARACTERS_MAX: Final = 4096
TIMED_OUT: Final = "job_timeout: "
"""How the reason begins with which a puller rejects a job that took too long."""
Ranges = Annotated[list[Range], codec.Meta(max_length=RANGES_MAX)]
Reason = Annotated[str, codec.Meta(max_length=REASON_CHARACTERS_MAX)]


class Process(NamedTuple):
    """By what other processes of the same machine see whether this one lives."""

    host: str = ""
    """Names the set of processes among which `pid` means something; empty: unknown."""
    pid: int = 0
    started: int = 0
    """When it began, in ticks of its system, to distinguish it from later ones of this pid."""


class Hello(codec.Struct, array_like=True):
    """Puller to pusher."""

    name: Name
    host: Annotated[str, codec.Meta(max_length=256)]
    pid: int
    started: int
    """Host, pid and started: its `Process`."""
    prefetch: Annotated[int, codec.Meta(ge=1, le=2**31)]
    token: Sequence
    """That of the QUEUE_CHALLENGE that this answers. So all that was sent over an earlier
    connection has been received, or never will be."""
    confirmed: Sequence
    """The last report that was confirmed."""
    held: Ranges
    """Deliveries that it has, or has acknowledged in a report that is not confirmed."""
    claims: Annotated[list[tuple[Sequence, Sequence]], codec.Meta(max_length=RANGES_MAX)]
    """The same as (delivery, sequence), where the pusher has another incarnation."""
    prefetch_ceiling: Annotated[int, codec.Meta(ge=0, le=2**31)]
    """How many jobs it may have where it is fast, if that is more than `prefetch`."""
    frame_bytes_max: Annotated[int, codec.Meta(ge=0, le=2**62)]
    """The largest frame that it takes, in bytes: a larger one would end the connection, so that it
    is not sent."""
    by_batch: bool = False
    """How it acknowledges jobs; a pusher that has it otherwise does not answer."""


class QueueWelcome(codec.Struct, array_like=True):
    """Pusher to puller."""

    name: Name
    incarnation: Sequence
    confirmed: Sequence
    ack_timeout_ms: float
    job_timeout_ms: float
    """0: a job may take as long as it likes."""
    gone: Ranges
    deliveries_max: Annotated[int, codec.Meta(ge=1, le=2**31)]
    """After how many failures a job becomes a dead letter."""
    endpoint: Annotated[str, codec.Meta(max_length=1024)] = ""
    """Where jobs come from, by the batch: a PUSH socket for this worker alone. What was sent over a
    former one and is not among what it held was put back."""


class Confirm(codec.Struct, array_like=True):
    """Pusher to puller, by the batch."""

    sent: Sequence
    """How many jobs were sent over the socket of the latest QUEUE_WELCOME."""


class Challenge(codec.Struct, array_like=True):
    """Pusher to puller."""

    incarnation: Sequence
    """Another one at each start of the pusher."""
    token: Sequence


class Refusal(codec.Struct, array_like=True):
    """A job that was not done."""

    delivery: Sequence
    discard: bool
    reason: Reason
    delay_ms: float
    """How long it is to wait; negative: as the pusher likes."""


class Report(codec.Struct, array_like=True):
    """Puller to pusher; the header's sequence is its number, from 1."""

    acks: Ranges = []
    refusals: Annotated[list[Refusal], codec.Meta(max_length=RANGES_MAX)] = []
    released: Ranges = []
    answers_recall: bool = False
    extended: Annotated[list[tuple[Sequence, float]], codec.Meta(max_length=RANGES_MAX)] = []
    """Deliveries that take longer: for how long from now on, in ms."""


class Recall(codec.Struct, array_like=True):
    """Pusher to puller."""

    count: Annotated[int, codec.Meta(ge=1, le=2**31)]


class Admin(codec.Struct, array_like=True):
    """Anybody to pusher, about dead letters."""

    request: Id
    action: Annotated[str, codec.Meta(max_length=16)]
    """`list`, `retry` or `purge`."""
    sequences: Annotated[list[Sequence], codec.Meta(max_length=RANGES_MAX)]
    """Which ones; `list`: only those after the first number given."""
    everything: bool = False


class Answer(codec.Struct, array_like=True):
    """Pusher to the one that asked."""

    request: Id
    count: int
    """How many were retried or purged; with `list`, how many there are."""
    letters: list[Any] = []
    refusal: Annotated[str, codec.Meta(max_length=1024)] = ""
    """Why the pusher does not do it; empty where it does."""
    denied: Name = ""
    """The queue's name, where the asker's key has no right to `admin` of it."""


class Detail(codec.Struct, array_like=True, frozen=True, gc=False):
    """What a job has besides its value."""

    key: str | None
    priority: int
    message_id: str | None
    headers: dict[str, Any] | None
    delivery_count: int
    first_delivered_ns: int
    reason: str
    pushed_ns: int
    failures: int
    """How many of its deliveries count as failures, against `deliveries_max`."""


JobColumns = tuple[list[Any], int | list[int], list[Detail | None] | None, int, int]
_bodies: Final = (Hello, QueueWelcome, Confirm, Challenge, Report, Recall, Admin, Answer, Denied)
_decoders: Final[dict[type, Any]] = {kind: codec.make_decoder(kind) for kind in _bodies}
_decode_columns: Final = codec.make_decoder(JobColumns).decode


def read(frame: Frame, kind: type[Any]) -> Any:
    """Return the body of a queue frame; `FrameError` where it does not fit."""
    body = decoded(frame, _decoders[kind].decode)
    if kind is Report:
        _check_ranges(body.acks)
        _check_ranges(body.released)
    elif kind is Hello:
        _check_ranges(body.held)
    return body


def _check_ranges(ranges: list[tuple[int, int]]) -> None:
    for start, stop in ranges:
        if start >= stop:
            raise FrameError("range")


def jobs_frame(session: int, batch: DeliveryBatch, confirmed: int) -> bytes:
    """Return the frame that takes a batch to a puller."""
    details = None
    if batch.run is not None:
        run = batch.run
        values: bytes | memoryview = run.values()
        pushed_ns = run.pushed_ns
        sequences = encoder.encode(run.sequence)
    else:
        assert batch.jobs is not None
        values = b"".join([job.payload for job in batch.jobs])
        sequences = encoder.encode([job.sequence for job in batch.jobs])
        details = [_detail(job) for job in batch.jobs]
        pushed_ns = batch.jobs[0].pushed_ns
    count_lead = b"\x95" + values_header(batch.count)[1:]
    rest = (encoder.encode(details), encoder.encode(confirmed), encoder.encode(batch.at_ns))
    length = len(count_lead) + len(values) + len(sequences) + sum(map(len, rest))
    header = HEADER.pack(
        MAGIC, VERSION, Kind.JOBS, 0, 0, session, batch.first, batch.count, length, pushed_ns
    )
    return b"".join((b"\0", header, count_lead, values, sequences, *rest))


def _detail(job: QueuedJob) -> tuple[Any, ...] | None:
    """Return a job's `Detail` as it is packed; None where it has no more than a value."""
    plain = job.key is None and job.message_id is None and job.headers is None
    if plain and job.deliveries == 1 and not job.priority and not job.history:
        return None
    headers = None if job.headers is None else codec.Raw(job.headers)
    return (
        job.key, job.priority, job.message_id, headers, job.deliveries, job.first_ns, job.reason,
        job.pushed_ns, job.failures,
    )  # fmt: skip


def read_jobs(frame: Frame) -> JobColumns:
    """Return the columns of a JOBS frame; `FrameError` where it is malformed."""
    columns: JobColumns = decoded(frame, _decode_columns)
    values, sequences, details, _, _ = columns
    if (
        not frame.count
        or len(values) != frame.count
        or (details is not None and len(details) != frame.count)
        or (isinstance(sequences, list) and len(sequences) != frame.count)
    ):
        raise FrameError("columns")
    return columns


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return distinct numbers as ranges, sorted."""
    all_numbers = numbers if isinstance(numbers, list) else list(numbers)
    if not all_numbers:
        return []
    first, last = min(all_numbers), max(all_numbers)
    if last - first + 1 == len(all_numbers):
        return [(first, last + 1)]
    all_numbers.sort()
    ranges = []
    start = stop = all_numbers[0]
    for number in all_numbers:
        if number > stop:
            ranges.append((start, stop))
            start = number
        stop = number + 1
    ranges.append((start, stop))
    return ranges
