"""Who may come into an ExclusiveLock, and who is refused."""

import threading
import time

import pytest

from p2pmsg import ReentrantCallError
from p2pmsg.sync.lock import ExclusiveLock, goes_by_flag, has_gil

pytestmark = pytest.mark.skipif(not has_gil(), reason="without a GIL nobody goes by the flag")
DEADLINE_S = 10.0


class Door:
    """Goes by the flag, calls `inside` there and `outside` behind it."""

    def __init__(self, inside=None, outside=None, **options):
        self.exclusive = ExclusiveLock(**options)
        self.inside, self.outside = inside, outside

    @goes_by_flag("_slowly")
    def enter(self):
        lock = self.exclusive
        if lock.busy:
            return self._slowly()
        lock.busy = True
        try:
            if self.inside is not None:
                self.inside()
        finally:
            lock.busy = False
        return self._slowly() if self.outside is not None else "by flag"

    def _slowly(self):
        self.exclusive.acquire()
        self.exclusive.release()
        return "by lock"


def test_whoever_has_the_lock_is_refused_and_still_has_it():
    lock = ExclusiveLock()
    with lock:
        with pytest.raises(ReentrantCallError):
            lock.acquire()
        assert (lock.depth, lock.busy) == (1, True)
    assert (lock.depth, lock.busy) == (0, False)
    lock.refuse_inside()  # nobody is


def test_a_lock_that_nests_may_be_taken_again():
    lock = ExclusiveLock(nests=True)
    with lock, lock:
        assert lock.depth == 2
    assert (lock.depth, lock.busy) == (0, False)


def test_whoever_has_set_the_flag_is_refused_and_the_flag_stays_set():
    door = Door()

    def struck():
        with pytest.raises(ReentrantCallError):
            door.enter()
        assert door.exclusive.busy
        assert door.exclusive.look(lambda: "read") == "read"

    door.inside = struck
    assert door.enter() == "by flag"
    assert not door.exclusive.busy


def test_whoever_has_set_the_flag_is_refused_while_another_thread_with_the_lock_waits_for_it():
    door = Door()
    waiter = threading.Thread(target=door._slowly)

    def struck():
        waiter.start()
        deadline = time.monotonic() + DEADLINE_S
        while door.exclusive._lock.acquire(blocking=False):  # until the other one has it
            door.exclusive._lock.release()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        with pytest.raises(ReentrantCallError):
            door.enter()

    door.inside = struck
    assert door.enter() == "by flag"
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()


def test_another_object_of_the_same_kind_is_another_matter():
    other = Door()
    door = Door(inside=lambda: other.exclusive.refuse_inside())
    assert door.enter() == "by flag"


def test_behind_the_flag_the_lock_is_waited_for():
    door = Door(outside=True)
    held, let_go = threading.Event(), threading.Event()

    def hold():
        with door.exclusive:
            held.set()
            assert let_go.wait(DEADLINE_S)

    def take_it_away():
        holder.start()

    holder = threading.Thread(target=hold)
    door.inside = take_it_away
    timer = threading.Timer(0.05, let_go.set)
    timer.start()
    assert door.enter() == "by lock"
    assert held.is_set()
    holder.join(DEADLINE_S)


def test_who_waits_gets_in_between_two_turns_of_a_loop():
    lock = ExclusiveLock()
    turns, waited, is_over = 0, [], threading.Event()

    def work():
        end = time.monotonic() + 0.0002
        while time.monotonic() < end:
            pass

    def loop():
        nonlocal turns
        while not is_over.is_set():
            lock.run(work)
            turns += 1
            if lock.wanted:
                lock.give_way()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        for _ in range(50):
            before = turns
            lock.run(lambda before=before: waited.append(turns - before))
            time.sleep(0.001)
    finally:
        is_over.set()
        thread.join(DEADLINE_S)
    assert sorted(waited)[25] <= 2  # without giving way it is 80
    assert not lock.wanted


def test_nobody_gives_way_for_long_to_one_who_does_not_come():
    lock = ExclusiveLock()
    lock.wanted = True
    lock.give_way()
    assert lock.run(lambda: "in") == "in"


def test_an_exception_while_one_waits_leaves_nobody_wanted():
    lock = ExclusiveLock()

    def enter_twice():
        with pytest.raises(ReentrantCallError):
            lock.acquire()

    lock.wanted = True
    lock.run(enter_twice)
    assert not lock.wanted
