"""The processes of the log's measurements."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import p2pmsg
from tests.bench.duty import read_memory, reset_peak_memory
from tests.bench.loads import TrialError, small_load
from tests.bench.ours import READY_SECONDS, TIMEOUT_SECONDS, TOPIC, OursReceiver, OursSender

FRAME_BYTES = 256 << 10
FRAME_COUNT = 2016
"""As `publish_many` fills its frames with values of 128 bytes."""
REPLAY_BYTES = 1 << 20
DISK_SHARE = 0.2
WALL_NS = 1_700_000_000 * 10**9


def big_log_bytes(wanted: int = 10 * 10**9) -> int:
    """How large a log fits on this disk, of `wanted` bytes."""
    return min(wanted, int(shutil.disk_usage(tempfile.gettempdir()).free * DISK_SHARE))


def use_memory(directory: str | Path, byte_count: int) -> None:
    """Fill so much of the page cache and free it again.

    A virtual machine's memory takes several times as long to get when nobody has used it lately,
    which is its host's time and would be measured by chance, on either side.
    """
    path = Path(directory, "warm")
    block = bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(byte_count >> 20):
            file.write(block)
    path.unlink()


def numbered_frames(session: int) -> Iterator[tuple[int, bytes]]:
    """Yield (sequence, frame) of full frames without end; the bodies repeat."""
    from p2pmsg.publisher.packing import pack_slice
    from p2pmsg.wire import REST, stream_prefix

    prefix = stream_prefix(TOPIC, session)
    ring = small_load().ring
    bodies = [
        bytearray(
            pack_slice(prefix, 0, WALL_NS, ring[at : at + FRAME_COUNT], None, None, bytearray())[0]
        )
        for at in range(0, len(ring), FRAME_COUNT)
    ]
    sequence = 0
    while True:
        for body in bodies:
            length = len(body) - len(prefix) - REST.size
            stamp = (sequence, FRAME_COUNT, length, WALL_NS + sequence)
            REST.pack_into(body, len(prefix), *stamp)
            yield sequence, bytes(body)
            sequence += FRAME_COUNT


class LogRole:
    """Writes a log without a publisher, or does what `dd` does."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def append(self, byte_count: int) -> float:
        """Append frames; bytes a second."""
        from recovery.log import LogConfig, LogWriter

        writer = LogWriter(LogConfig(self._directory / "log"), session=1, now_ns=WALL_NS)
        frames = numbered_frames(writer.session)
        batch = [next(frames) for _ in range(byte_count // FRAME_BYTES)]
        use_memory(self._directory, byte_count)
        started = time.perf_counter()
        for sequence, frame in batch:
            writer.append(
                1, TOPIC, sequence, FRAME_COUNT, frame,
                timestamp_ns_max=WALL_NS + sequence, now_ns=WALL_NS,
            )  # fmt: skip
        seconds = time.perf_counter() - started
        writer.close()
        shutil.rmtree(self._directory / "log")
        return byte_count / seconds

    def write(self, byte_count: int) -> float:
        """Write the same frames into one file; bytes a second."""
        frames = numbered_frames(1)
        batch = [next(frames)[1] for _ in range(byte_count // FRAME_BYTES)]
        path = self._directory / "plain"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        use_memory(self._directory, byte_count)
        started = time.perf_counter()
        for frame in batch:
            os.write(file, frame)
        seconds = time.perf_counter() - started
        os.close(file)
        path.unlink()
        return byte_count / seconds

    def fill(self, byte_count: int) -> int:
        """Write a log of so many bytes and leave it as a crash does; return its next sequence."""
        from recovery.log import LogConfig, LogWriter

        config = LogConfig(self._directory, retention_bytes=4 * byte_count)
        self._writer = LogWriter(config, session=1, now_ns=WALL_NS)
        sequence = 0
        for sequence, frame in numbered_frames(1):
            if self._writer.bytes >= byte_count:
                break
            self._writer.append(
                1, TOPIC, sequence, FRAME_COUNT, frame,
                timestamp_ns_max=WALL_NS + sequence, now_ns=WALL_NS + sequence,
            )  # fmt: skip
        return sequence


class PublisherOnLog(OursSender):
    """A publisher on a log, with little else to answer from."""

    def __init__(self, directory: str, replay_bytes: int = REPLAY_BYTES) -> None:
        config = p2pmsg.LogConfig(directory, retention_bytes=1 << 40)
        opens = p2pmsg.Publisher  # loads its modules, which is not the log's time
        started = time.perf_counter()
        self._publisher = opens(
            "tcp://127.0.0.1:0", name="bench", log=config, replay_bytes=replay_bytes
        )
        self.endpoint = self._publisher.endpoint
        self._open_seconds = time.perf_counter() - started
        self._ring = small_load().ring
        reset_peak_memory()
        self._base_bytes = read_memory("VmRSS")

    def where(self) -> str:
        return self._publisher.endpoint

    def open_seconds(self) -> float:
        return self._open_seconds

    def memory_growth(self) -> int:
        """Bytes by which the resident set at its peak exceeds what it was after opening."""
        return read_memory("VmHWM") - self._base_bytes

    def publish_for(self, seconds: float) -> float:
        """Publish to a topic of its own; messages a second."""
        started, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - started) < seconds:
            self._publisher.publish_many("live", self._ring)
            count += len(self._ring)
        return count / passed


class Replayer(OursReceiver):
    """Reads what was published before."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._reader: Any = p2pmsg.reader.RangeReader(endpoint)
        self._reader.heads(READY_SECONDS)

    def first_seconds(self, sequence: int) -> float:
        """Time until the first message of a replay from `sequence` on is there."""
        started = time.perf_counter()
        for batch in self._reader.fetch(TOPIC, sequence, sequence + 100_000):
            if batch.sequence != sequence or len(batch) < 1:
                raise TrialError(f"asked for {sequence}, got {batch}")
            return time.perf_counter() - started
        raise TrialError("nothing came")

    def replay(self, start: int, stop: int) -> float:
        """Read all of `[start, stop)` as a subscriber; messages a second."""
        with p2pmsg.Subscriber(self._endpoint, topics=[TOPIC], start=start) as subscriber:
            expected, started = start, 0.0
            while expected < stop:
                batch = subscriber.receive_many(65_536, TIMEOUT_SECONDS)
                if batch.sequence != expected:
                    raise TrialError(f"{batch.sequence} came where {expected} was due")
                started = started or time.perf_counter()
                expected += len(batch)
            return (expected - start) / (time.perf_counter() - started)

    def replay_for(self, start: int, seconds: float) -> float:
        """Read from `start` on for a while, again and again; messages a second."""
        started, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - started) < seconds:
            for batch in self._reader.fetch(TOPIC, start, start + 500_000):
                count += len(batch)
        return count / passed

    def close(self) -> None:
        self._reader.close()
