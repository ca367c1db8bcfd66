"""Folding what waits for a slow reader."""

from p2pmsg.subscriber.decoded import DecodedFrame
from recovery import Delivery, Loss
from tests.unit.p2pmsg.frames import refused
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head


def ready(talk):
    return [
        (output.sequence, output.count, len(output.item.batch))
        if isinstance(output, Delivery)
        else (output.start, output.stop)
        for _, output in talk.core.ready
    ]


def fold_all(talk):
    (stream,) = talk.core.streams
    talk.core.ready.fold(stream)
    return stream


def test_what_is_ready_comes_down_to_the_newest_of_each_key():
    talk = Talk(start="earliest").join(head(0))
    for sequence in (0, 2, 4):
        talk.hear(data(sequence, 2))
    fold_all(talk)

    ((stream, output),) = talk.core.ready
    assert isinstance(output.item, DecodedFrame)
    assert (output.sequence, output.count) == (0, 6)
    assert output.item.batch.sequences == [5]  # they have no keys
    assert talk.core.ready.bytes_held == output.item.size > 0
    assert talk.read() == [("t", 0, 6)]
    assert stream.position == 6


def test_a_loss_stays_between_what_came_before_it_and_what_came_after():
    talk = Talk(start="earliest").join(head(0))
    for sequence in (0, 2, 6, 8):
        talk.hear(data(sequence, 2))
    talk.reply(refused((4, 6)))
    stream = fold_all(talk)

    assert ready(talk) == [(0, 4, 1), (4, 6), (6, 4, 1)]
    positions = []
    while talk.core.ready.take() is not None:
        positions.append(stream.position)
    assert positions == [4, 6, 10]


def test_folding_again_takes_what_has_come_since():
    talk = Talk(start="earliest").join(head(0))
    talk.hear(data(0, 2))
    fold_all(talk)
    talk.hear(data(2, 2))
    fold_all(talk)

    assert ready(talk) == [(0, 4, 1)]


def test_what_is_malformed_is_a_loss_in_its_place():
    talk = Talk(start="earliest").join(head(0))
    talk.hear(data(0, 2))
    talk.hear(data(2, 2)[:-1] + b"\xc1")
    talk.hear(data(4, 2))
    fold_all(talk)

    assert ready(talk) == [(0, 2, 1), (2, 4), (4, 2, 1)]
    assert isinstance(list(talk.core.ready)[1][1], Loss)
    assert sum(talk.core.invalid.values()) == 1
