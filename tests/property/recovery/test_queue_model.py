"""Parts of the work queue against naive models."""

from hypothesis import given
from hypothesis import strategies as st

from recovery.queue import Hand, Lanes, Lot, Parcel, QueuedJob, bits_of, runs_of


def lot(sequence, count):
    return Lot(sequence, b"x" * count, list(range(1, count + 1)), 0)


@given(st.integers(0, 2**80))
def test_bits_and_runs_say_the_same(mask):
    bits = list(bits_of(mask))

    assert sum(1 << bit for bit in bits) == mask
    assert [bit for start, stop in runs_of(mask) for bit in range(start, stop)] == bits


ranges = st.tuples(st.integers(0, 70), st.integers(0, 30)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.integers(1, 12), max_size=6), st.lists(ranges, max_size=20))
def test_a_delivery_is_settled_once(counts, settled):
    hand, naive, first = Hand(), set(), 3
    for count in counts:
        hand.add(Parcel(first, lot(0, count), None, 0, 0))
        naive.update(range(first, first + count))
        first += count + 2
    for start, stop in settled:
        found = {
            parcel.first + bit for parcel, bits in hand.settle(start, stop) for bit in bits_of(bits)
        }
        assert found == naive & set(range(start, stop))
        naive -= found
        assert hand.count == len(naive)
        assert {n for low, high in hand.open_ranges() for n in range(low, high)} == naive


entries = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.booleans()), max_size=30)


@given(entries, st.lists(st.integers(1, 7), min_size=1, max_size=60))
def test_lanes_give_the_highest_priority_and_then_the_oldest(pushed, takes):
    lanes, naive, sequence = Lanes(), [], 0
    late = []
    for priority, count, is_late in pushed:
        if priority == 0 and not is_late:
            lanes.append_lot(lot(sequence, count))
            naive += [(0, sequence + n) for n in range(count)]
            sequence += count
            continue
        job = QueuedJob(sequence, b"x", 0, priority=priority)
        naive.append((-priority, sequence))
        if is_late:
            late.append(job)
        else:
            lanes.append(job)
        sequence += 1
    for job in late:
        lanes.put_back(job)
    found = []
    for count in takes * 40:
        taken = lanes.take(count, 10**6)
        if taken is None:
            break
        if isinstance(taken, Lot):
            part = [(0, taken.sequence + n) for n in range(taken.count)]
            assert taken.values() == b"x" * taken.count
        else:
            part = [(-job.priority, job.sequence) for job in taken]
        assert 1 <= len(part) <= count
        found += part
    if lanes.count == 0:
        assert sorted(found) == sorted(naive)
        by_run = [priority for priority, _ in found]
        assert by_run == sorted(by_run)
        alone = [entry for entry in found if entry[0] < 0]
        assert alone == sorted(alone)
    assert lanes.count == len(naive) - len(found)
