"""Which event is next, and how far a stream can be committed."""

from random import Random

import pytest

from p2pmsg.app.order import InOrder, KeyQueue
from p2pmsg.message import Message, Origin

ORIGIN = Origin(1, "p")


@pytest.mark.parametrize("seed", range(20))
def test_items_of_a_key_go_one_after_the_other_and_none_is_left(seed):
    rng, queue = Random(seed), KeyQueue()
    put, taken, running = [], [], []
    for number in range(300):
        if rng.random() < 0.5 or number < 20:
            key = rng.randrange(4)
            put.append((key, number))
            queue.put(number, key)
        for _ in range(rng.randrange(3)):
            if running and rng.random() < 0.5:
                queue.done(running.pop(rng.randrange(len(running))))
            elif (item := queue.take()) is not None:
                assert item[0] not in running
                running.append(item[0])
                taken.append(item)
        assert len(queue) == len(put) - len(taken)
    while len(queue) or running:
        while (item := queue.take()) is not None:
            running.append(item[0])
            taken.append(item)
        queue.done(running.pop())

    for key in range(4):
        assert [item for item in taken if item[0] == key] == [one for one in put if one[0] == key]
    assert queue._waiting == {}


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


def test_without_keys_all_can_be_taken_at_once():
    queue = KeyQueue()
    for number in range(3):
        queue.put(number)

    taken = [queue.take() for _ in range(4)]

    assert [item and item[1] for item in taken] == [0, 1, 2, None]
    queue.done(taken[0][0])


@pytest.mark.parametrize("seed", range(20))
def test_what_is_kept_goes_on_in_the_order_of_its_key(seed):
    rng, queue = Random(seed), KeyQueue()
    put, running = [], []
    for number in range(60):
        put.append((rng.randrange(5), number))
        queue.put(number, put[-1][0])
        if rng.random() < 0.5 and (item := queue.take()) is not None:
            running.append(item)
    waiting = [item for item in put if item not in running]
    needed = {number for _, number in waiting if rng.random() < 0.5}

    assert queue.keep(needed.__contains__) == len(waiting) - len(needed)
    assert len(queue) == len(needed)
    taken = []
    while len(queue) or running:
        while (item := queue.take()) is not None:
            running.append(item)
            taken.append(item)
        queue.done(running.pop(rng.randrange(len(running)))[0])

    for key in range(5):
        expected = [item for item in waiting if item[0] == key and item[1] in needed]
        assert [item for item in taken if item[0] == key] == expected
    assert queue._waiting == {}


def message(sequence, topic="t"):
    return Message(topic, None, 0, sequence, ORIGIN)


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_is_committed_up_to_the_first_that_is_not_done(seed):
    rng, calls = Random(seed), []
    order = InOrder(lambda: calls.append(1))
    left = [order.add(message(number, f"t{number % 2}")) for number in range(60)]
    rng.shuffle(left)
    replaced = {entry.number for entry in left if rng.random() < 0.3}
    while left:
        entry = left.pop()
        order.replaced(entry) if entry.number in replaced else order.done(entry)
        held = 0
        for topic in ("t0", "t1"):
            own = [one.message.sequence for one in left if one.message.topic == topic]
            last = order.due.get((1, topic))
            done = min(own, default=60 + int(topic[1])) - 2
            assert (int(topic[1]) - 2 if last is None else last.sequence) == done
            numbers = range(done + 2, 60, 2)  # of all after it
            waiting = {one.number for one in left}
            held += sum(one + 1 in waiting or one + 1 not in replaced for one in numbers)
        assert order.held == held

    assert order.held == 0
    assert order._streams == {}
    assert calls


@pytest.mark.parametrize("seed", range(50))
def test_once_what_is_needed_is_done_all_that_began_can_be_committed(seed):
    """However keys delay messages: at a stop those before the last one begun are needed."""
    rng = Random(seed)
    order = InOrder(lambda: None)
    queue: KeyQueue = KeyQueue()
    for number in range(40):
        queue.put(order.add(message(number, f"t{number % 2}")), rng.randrange(5))
    begun, running, needed = [], [], None
    for step in range(1000):
        if step == 30:
            needed = queue.keep(order.is_needed)
        if len(running) < 4 and (item := queue.take()) is not None:
            order.begin(item[1])
            running.append(item)
            begun.append(item[1].message)
        elif running:
            key, entry = running.pop(rng.randrange(len(running)))
            order.done(entry)
            queue.done(key)

    assert needed
    for topic in ("t0", "t1"):
        last = max(one.sequence for one in begun if one.topic == topic)
        assert order.due[1, topic].sequence == last


def test_nothing_after_a_message_that_is_left_is_needed():
    order = InOrder(lambda: None)
    entries = [order.add(message(number)) for number in range(5)]
    for number in (1, 2, 4):
        order.begin(entries[number])
    order.done(entries[4])

    assert [order.is_needed(entry) for entry in entries] == [True, True, True, True, False]
    order.leave(entries[2])
    order.leave(entries[3])
    assert [order.is_needed(entry) for entry in entries] == [True, True, False, False, False]
