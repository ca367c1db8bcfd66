"""Which marks were read, and which have no gap before them."""

from random import Random

import pytest

from p2pmsg.multicast.progress import WAITING_MAX, ProgressMarks
from recovery import ReceiverConfig, StreamReceiver


@pytest.fixture
def receiver():
    """A stream that misses its first message."""
    receiver = StreamReceiver(ReceiverConfig(), Random(1))
    receiver.start_at(0, now_ns=0)
    receiver.observe_head(1, now_ns=0)
    return receiver


def test_only_so_many_marks_are_remembered(receiver):
    marks = ProgressMarks()
    for position in range(WAITING_MAX + 5):
        marks.note(position, [receiver])
    assert len(marks._waiting) == WAITING_MAX
