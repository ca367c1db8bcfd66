from random import Random

from recovery.deadlines import DeadlineHeap
from tests.unit.memory import bytes_kept


def test_the_earliest_is_first_whatever_was_moved():
    rng, heap, model = Random(5), DeadlineHeap(), {}
    for _ in range(5000):
        key, time_ns = rng.randrange(30), rng.randrange(1000)
        if rng.random() < 0.2:
            heap.discard(key)
            model.pop(key, None)
        else:
            heap.set(key, time_ns)
            model[key] = time_ns
        first = heap.first()
        assert (first[0] if first else None) == min(model.values(), default=None)
        assert first is None or model[first[1]] == first[0]
        assert len(heap) == len(model)


def test_due_keys_come_out_once_and_in_order():
    heap = DeadlineHeap()
    for key, time_ns in [("b", 20), ("a", 10), ("c", 30)]:
        heap.set(key, time_ns)
    heap.set("a", 25)
    assert [heap.pop_due(25) for _ in range(3)] == ["b", "a", None]
    assert "c" in heap
    assert heap.get("a") is None
    heap.clear()
    assert heap.first() is None


def test_stale_entries_never_outnumber_the_living_for_long():
    heap = DeadlineHeap()

    def move():
        for time_ns in range(100_000, 0, -1):
            heap.set("only", time_ns)

    assert bytes_kept(move) < 16 * 1024
    assert heap.first() == (1, "only")
