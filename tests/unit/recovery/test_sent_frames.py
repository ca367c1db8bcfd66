from recovery import SentFrames, retransmit


def test_what_was_received_before_the_first_word_was_none_of_ours():
    frames = SentFrames()
    assert frames.arrived(b"a", 100) == 0
    assert [frames.note(b"a") for _ in range(3)] == [1, 2, 3]
    assert frames.arrived(b"a", 102) == 2


def test_a_number_that_goes_back_begins_again():
    frames = SentFrames()
    frames.arrived(b"a", 100)
    for _ in range(5):
        frames.note(b"a")
    assert frames.arrived(b"a", 3) == 5
    assert frames.note(b"a") == 6
    assert frames.arrived(b"a", 3) == 5


def test_one_that_was_forgotten_has_all_that_was_sent_before(monkeypatch):
    monkeypatch.setattr(retransmit, "SENT_MAX", 2)
    frames = SentFrames()
    frames.arrived(b"a", 0)
    before = [frames.note(b"a") for _ in range(10)]
    for other in (b"b", b"c"):
        frames.note(other)
    assert frames.arrived(b"a", 4) >= before[-1]
    assert frames.note(b"a") > frames.arrived(b"a", 4)
