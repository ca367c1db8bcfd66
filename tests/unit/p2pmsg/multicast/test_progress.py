"""Which marks were read, and which have no gap before them."""

from random import Random

import pytest

from p2pmsg.multicast.progress import WAITING_MAX, ProgressMarks
from recovery import ReceiverConfig, StreamReceiver

SESSION = 7


@pytest.fixture
def receiver():
    """A stream that misses its first message."""
    receiver = StreamReceiver(ReceiverConfig(), Random(1))
    receiver.start_at(0, now_ns=0)
    receiver.observe_head(1, now_ns=0)
    return receiver


def test_a_mark_without_a_gap_before_it_is_complete():
    marks = ProgressMarks()
    marks.note(SESSION, 100, [])
    assert marks.place(SESSION) == (100, 100)
    assert marks.waiting == 0


def test_a_mark_is_complete_when_what_was_missing_has_come(receiver):
    marks = ProgressMarks()
    marks.note(SESSION, 100, [receiver])
    assert marks.place(SESSION) == (100, 0)
    assert (marks.completed(), marks.waiting) == ([], 1)

    receiver.receive(0, 1, 10, "frame", now_ns=1, repaired=True)
    assert (marks.completed(), marks.waiting) == ([SESSION], 0)
    assert marks.place(SESSION) == (100, 100)


def test_only_so_many_marks_of_a_session_are_remembered(receiver):
    marks = ProgressMarks()
    for position in range(WAITING_MAX + 5):
        marks.note(SESSION, position, [receiver])
    assert len(marks._marks[SESSION]) == WAITING_MAX
