"""Which event is next, and how far a stream can be committed."""

from random import Random

import pytest

from p2pmsg.app.order import InOrder, KeyQueue
from p2pmsg.message import Message, Origin

ORIGIN = Origin(1, "p")


@pytest.mark.parametrize("seed", range(20))
def test_of_a_busy_key_only_the_newest_of_each_kind_waits(seed):
    rng, queue = Random(seed), KeyQueue()
    waiting = {key: [] for key in range(3)}  # kind and number, as they are to be taken
    busy, ready = {}, []
    for number in range(400):
        key, kind = rng.randrange(3), rng.choice([None, "a", "b"])
        replaced = queue.put((kind, number), key, None if kind is None else (kind,))
        old = [one for one in waiting[key] if kind is not None and one[0] == kind]
        assert [replaced] == (old or [None])
        if key in busy or key in ready:
            waiting[key] = [*(one for one in waiting[key] if one not in old), (kind, number)]
        else:
            ready.append(key)
        while rng.random() < 0.3 and (taken := queue.take()) is not None:
            ready.remove(taken[0])
            busy[taken[0]] = taken[1]
        if busy and rng.random() < 0.3:
            key = rng.choice([*busy])
            del busy[key]
            queue.done(key)
            if waiting[key]:
                waiting[key].pop(0)
                ready.append(key)
        every = [one for line in waiting.values() for one in line]
        assert queue.replaceable == sum(kind is not None for kind, _ in every)
        assert len(queue) == len(every) + len(ready)


def message(sequence, topic="t"):
    return Message(topic, None, 0, sequence, ORIGIN)


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_committed_up_to_the_first_that_is_not_done(seed):
    rng, calls = Random(seed), []
    order = InOrder(lambda: calls.append(1))
    left = [order.add(message(number, f"t{number % 2}")) for number in range(60)]
    rng.shuffle(left)
    while left:
        order.done(left.pop())
        held = 0
        for topic in ("t0", "t1"):
            own = [one.message.sequence for one in left if one.message.topic == topic]
            last = order.due.get((1, topic))
            done = min(own, default=60 + int(topic[1])) - 2
            assert (int(topic[1]) - 2 if last is None else last.sequence) == done
            held += len(range(done + 2, 60, 2))
        assert order.held == held

    assert order.held == 0
    assert order._streams == {}
    assert calls
