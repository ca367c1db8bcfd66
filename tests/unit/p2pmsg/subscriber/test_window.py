"""How far after a gap repairs are asked for, and which of them are taken."""

from random import Random

import pytest

from p2pmsg.subscriber.window import ReceiveWindow
from p2pmsg.wire import Frame
from recovery import ReceiverConfig, StreamReceiver
from tests.unit.p2pmsg.subscriber_talk import data

CONFIG = ReceiverConfig(reorder_frames_max=4096)
BYTES_MAX = 100_000


def frame(sequence, count=1, size=1000):
    return Frame(data(sequence, count, size=size // count))


@pytest.fixture
def window():
    return ReceiveWindow(BYTES_MAX, CONFIG)


@pytest.fixture
def receiver():
    receiver = StreamReceiver(CONFIG, Random(1))
    receiver.start_at(0, now_ns=0)
    return receiver


def test_without_any_frame_a_fixed_number_is_asked_for(window):
    assert window.window() == window.window_in(0) == 1024


def test_the_window_follows_the_size_of_the_messages(window):
    window.note(frame(0, count=100, size=1000))  # about ten bytes a message
    assert window.window() == pytest.approx(2 * BYTES_MAX / 12.5, rel=0.05)
    assert window.window_in(BYTES_MAX) == window.window() // 2
    assert window.window_in(0) == 16


def test_large_messages_leave_a_window_all_the_same(window):
    window.note(frame(0, count=1, size=50_000))
    assert window.window() == 1024


def test_it_is_crowded_from_three_quarters_on(window):
    assert not window.is_crowded(BYTES_MAX * 3 // 4 - 1)
    assert window.is_crowded(BYTES_MAX * 3 // 4)


def test_what_is_next_always_fits(window, receiver):
    assert window.admit_repair(receiver, frame(0), bytes_held=BYTES_MAX, now_ns=0)
    assert window.repairs_dropped == 0


def test_a_later_frame_fits_while_there_are_bytes_left(window, receiver):
    assert window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX - 1, now_ns=0)


def test_a_frame_that_does_not_fit_is_dropped_and_counted(window, receiver):
    assert not window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX, now_ns=0)
    assert window.repairs_dropped == 1


def test_a_frame_still_further_on_is_evicted_for_a_repair(window, receiver):
    held = frame(9)
    receiver.receive(9, 1, len(held.data), held, now_ns=0)
    assert window.admit_repair(receiver, frame(5), bytes_held=BYTES_MAX, now_ns=0)
    assert receiver.bytes_held == 0
