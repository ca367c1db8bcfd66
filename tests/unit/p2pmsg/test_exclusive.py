"""Who may come into an ExclusiveLock, and who is refused."""

import threading
import time

import pytest

from p2pmsg import ReentrantCallError
from p2pmsg.sync.exclusive import ExclusiveLock, goes_by_flag, has_gil

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
