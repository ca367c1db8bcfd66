"""Frames in ZeroMQ's own memory."""

import sys

import pytest

from transports import free_zmq_frames, make_zmq_frame
from transports.zmq_frame import SHARED_BYTES, sendable


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize("size", [0, 1, SHARED_BYTES - 1, SHARED_BYTES, 5 * SHARED_BYTES])
def test_a_frame_is_a_copy_in_bytes_or_in_zeromqs_memory(kind, size):
    data = kind(range(256)) * (size // 256 + 1)
    data = data[:size]
    frame = make_zmq_frame(data)
    assert frame == data
    assert len(frame) == size
    assert type(frame) is (bytes if size < SHARED_BYTES else memoryview)
    assert type(bytes(frame)) is bytes


def test_only_a_whole_frame_is_sent_out_of_its_memory():
    frame = make_zmq_frame(bytes(SHARED_BYTES))
    assert sendable(frame) is frame.obj
    for other in (frame[1:], frame[:-1], memoryview(b"abc"), b"abc"):
        assert sendable(other) is other


def test_what_a_handler_raises_where_pyzmq_frees_a_frame_is_raised():
    class Freed:
        def __del__(self):
            raise KeyboardInterrupt

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        free_zmq_frames([Freed()])
    assert sys.unraisablehook is before
