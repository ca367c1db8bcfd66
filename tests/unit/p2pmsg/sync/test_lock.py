"""Which thread may enter a PublishLock, and which is refused."""

import sys
import threading
import time

import pytest

from p2pmsg.errors import ReentrantCallError
from p2pmsg.sync.lock import PublishLock

pytestmark = pytest.mark.skipif(
    PublishLock().owner is not None, reason="without a GIL every thread takes the lock"
)
DEADLINE_S = 60.0


class Door:
    """Enters as owner without the lock, calls `inside` there and `outside` after it."""

    def __init__(self, inside=None, outside=None, **options):
        self.lock = PublishLock(**options)
        self.inside, self.outside = inside, outside

    def enter(self):
        lock = self.lock
        me = lock.mark
        if not me._is_owned():
            me = threading.get_ident()
        if lock.owner is not None:
            return self.slowly()
        lock.owner = me
        try:
            if self.inside is not None:
                self.inside()
        finally:
            lock.owner = None
        return self.slowly() if self.outside is not None else "as owner"

    def refuses(self):
        with pytest.raises(ReentrantCallError):
            self.enter()

    def slowly(self):
        self.lock.acquire()
        self.lock.release()
        return "by lock"


def can_enter(lock, within_s=0.2):
    """Whether another thread gets in."""
    entered = threading.Event()
    threading.Thread(target=lock.run, args=(entered.set,), daemon=True).start()
    return entered.wait(within_s)


def check_free(lock):
    assert can_enter(lock, 60)  # a busy machine may take long to start a thread


def test_the_thread_that_has_the_lock_is_refused_and_still_has_it():
    lock = PublishLock()
    with lock:
        with pytest.raises(ReentrantCallError):
            lock.acquire()
        with pytest.raises(ReentrantCallError):
            lock.refuse_inside()
        assert not can_enter(lock)
    check_free(lock)
    lock.refuse_inside()  # no thread is


def test_a_lock_that_nests_refuses_a_thread_that_is_inside_without_it():
    door = Door(nests=True)

    def struck():
        with pytest.raises(ReentrantCallError):
            door.lock.run(dict)

    door.inside = struck
    assert door.enter() == "as owner"


def test_the_owner_is_refused_and_stays_the_owner():
    door = Door()

    def struck():
        door.refuses()
        assert not can_enter(door.lock)
        assert door.lock.read(lambda: "read") == "read"

    door.inside = struck
    assert door.enter() == "as owner"
    check_free(door.lock)


def test_no_two_threads_are_inside():
    door, inside = Door(), []

    def work():
        inside.append(None)
        alone.append(len(inside) == 1)
        inside.pop()

    def enter():
        for turn in range(2000):
            if turn % 10 == 0:
                door.lock.favour()
            door.enter()
            door.lock.run(work)

    alone = []
    door.inside = work
    threads = [threading.Thread(target=enter) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    finally:
        sys.setswitchinterval(before)
    assert len(alone) >= 6000
    assert all(alone)


def test_who_waits_for_the_owner_says_so_and_is_let_in():
    """The owner may leave the interpreter only while it is inside: then nobody else comes in."""
    door, entered = Door(), threading.Event()
    waiter = threading.Thread(target=door.lock.run, args=(entered.set,))

    def struck():
        waiter.start()
        deadline = time.monotonic() + DEADLINE_S
        while not door.lock.wanted:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    door.inside = struck
    assert door.enter() == "as owner"
    assert entered.wait(DEADLINE_S)
    waiter.join(DEADLINE_S)
    assert not door.lock.wanted
