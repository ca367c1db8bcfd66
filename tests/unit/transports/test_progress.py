"""How bytes are distinguished that belong to a frame."""

from transports.platform import TcpState
from transports.progress import ByteProgress

MS = 1_000_000
ONE, OTHER = (("a", 1), ("b", 2)), (("a", 3), ("b", 2))


def test_bytes_that_come_between_two_looks_count_when_there_are_enough():
    progress = ByteProgress()
    assert progress.note(TcpState(ONE, 0, 5000), 0) is None  # they may be long past
    assert progress.note(TcpState(ONE, 10, 6023), 100 * MS) is None
    assert progress.note(TcpState(ONE, 20, 6024), 200 * MS) == 180 * MS
    assert progress.note(TcpState(ONE, 120, 6024), 300 * MS) == 180 * MS
    assert progress.note(TcpState(ONE, 0, 7048), 400 * MS) == 400 * MS


def test_signs_of_life_are_too_few():
    progress = ByteProgress()
    for look in range(1000):
        assert progress.note(TcpState(ONE, 0, 10 * look), look * 100 * MS) is None


def test_a_slow_frame_counts():
    progress = ByteProgress()
    found = [progress.note(TcpState(ONE, 0, 60 * look), look * 100 * MS) for look in range(100)]
    assert found[18] == found[30] == 1800 * MS
    assert found[-1] == 9000 * MS


def test_a_connection_that_was_made_again_begins_again():
    """Its handshake is no frame."""
    progress = ByteProgress()
    progress.note(TcpState(ONE, 0, 0), 0)
    assert progress.note(TcpState(ONE, 0, 9000), 100 * MS) == 100 * MS
    assert progress.note(TcpState(OTHER, 0, 9000), 200 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 9200), 300 * MS) is None
    assert progress.note(None, 400 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 99_000), 500 * MS) is None
    assert progress.note(TcpState(OTHER, 0, 99_000), 600 * MS) is None
