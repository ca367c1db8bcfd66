"""Writes local logs for tests, frame by frame and with times of their own."""

from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

from p2pmsg.publisher.packing import lone_frame, pack_slice
from p2pmsg.wire import stream_prefix
from recovery.log import LogConfig, LogWriter

SESSION = 0xA1


class LogFiles:
    """A log in a directory."""

    def __init__(self, directory, **config):
        self.directory = Path(directory)
        self.path = str(directory)
        self.config = LogConfig(directory, **config)
        self.session = SESSION

    @contextmanager
    def writing(self, now_ns=10**18):
        writer = LogWriter(self.config, session=SESSION, now_ns=now_ns)
        try:
            yield Writing(writer)
        finally:
            writer.close()

    def files(self):
        return [path for path in self.directory.iterdir() if path.is_file()]

    def flip(self, where):
        """Flip a bit of the first place in the files that has these bytes."""
        for path in sorted(self.files()):
            data = bytearray(path.read_bytes())
            offset = data.find(where)
            if offset >= 0:
                data[offset] ^= 1
                path.write_bytes(data)
                return path, offset
        raise AssertionError("no file has it")


class Writing:
    """Appends frames; each stream goes on where it was."""

    def __init__(self, writer):
        self._writer = writer
        self._next = defaultdict(int)
        for session, topic in writer.streams():
            self._next[topic] = writer.next(session, topic)

    def __call__(self, topic, values, times, *, keys=None, now_ns):
        prefix, start = stream_prefix(topic, SESSION), self._next[topic]
        frame, latest = pack_slice(prefix, start, 0, values, keys, times, bytearray())
        self._append(topic, len(values), frame, latest, now_ns)

    def alone(self, topic, value, timestamp_ns, *, key=None, headers=None, now_ns):
        prefix, start = stream_prefix(topic, SESSION), self._next[topic]
        frame, _ = lone_frame(prefix, start, timestamp_ns, value, key, headers, 2**30)
        self._append(topic, 1, frame, timestamp_ns, now_ns)

    def _append(self, topic, count, frame, latest, now_ns):
        start = self._next[topic]
        self._writer.append(
            SESSION, topic, start, count, frame, timestamp_ns_max=latest, now_ns=now_ns
        )
        self._next[topic] = start + count
