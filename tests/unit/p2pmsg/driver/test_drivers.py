"""The drivers, with a small peer: turns, calls that wait, exceptions, cancelling, the end."""

import asyncio
import contextlib
import gc
import select
import threading
import time
import weakref
from collections import deque
from types import SimpleNamespace

import pytest

from p2pmsg.driver import section, threads
from p2pmsg.driver.verbs import Calling
from p2pmsg.errors import ClosedError, P2PError
from tests.unit.p2pmsg.driver.toy import AioBox, Box, LetterBox


def pump(box, begun):
    """Be the loop of a caller of its own, until a call has ended."""
    until = time.monotonic() + 30
    while not begun.done():
        assert time.monotonic() < until
        try:
            wait_s = box.turn()
        except ValueError:  # a turn that failed is for the caller to see
            continue
        if wait_s and not begun.done():
            select.select(box.wait_fds(), [], [], min(wait_s, 0.01))
    return begun.result()


class Threads:
    def __init__(self):
        self.box = Box()

    def call(self, make):
        return self.box.run(make(self.box.peer))

    def close(self):
        self.box.close()


class Loop:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.box = self.loop.run_until_complete(self._make())

    async def _make(self):
        return AioBox()

    def call(self, make):
        return self.loop.run_until_complete(self.box.run(make(self.box.peer)))

    def close(self):
        self.loop.run_until_complete(self.box.close())
        self.loop.close()


class Manual:
    def __init__(self):
        self.box = AioBox()

    def call(self, make):
        return pump(self.box, self.box.begin(self.box.run(make(self.box.peer))))

    def close(self):
        self.box.close_now()


@pytest.fixture(autouse=True)
def toys_are_ours():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "OURS", {*section.OURS, "tests"})
        yield


@pytest.fixture(params=[Threads, Loop, Manual])
def user(request):
    made = request.param()
    yield made
    made.close()


def test_a_call_waits_for_what_comes(user):
    user.box.peer.far.send(b"ab")
    assert user.call(lambda peer: peer.receive(30)) == b"a"
    assert user.call(lambda peer: peer.receive()) == b"b"


def test_a_call_waits_no_longer_than_it_says(user):
    with pytest.raises(TimeoutError, match="no letter"):
        user.call(lambda peer: peer.receive(0.01))
    with pytest.raises(TimeoutError):
        user.call(lambda peer: peer.receive(0))


def test_what_blocks_is_done_and_what_it_raises_is_raised_in_the_verb(user):
    assert user.call(lambda peer: peer.read_disk(lambda: 7)) == 7

    def fail():
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        user.call(lambda peer: peer.read_disk(fail))


def test_upkeep_goes_on_next_to_the_turns(user):
    user.box.peer.to_keep += ["four", "sixsix"]
    user.box.driver.wake()
    with pytest.raises(TimeoutError):
        user.call(lambda peer: peer.receive(0.05))
    until = time.monotonic() + 30
    while user.box.peer.kept < 10 and time.monotonic() < until:
        with pytest.raises(TimeoutError):
            user.call(lambda peer: peer.receive(0.01))
    assert user.box.peer.kept == 10


def test_a_thread_that_waits_for_another_call_takes_no_turns_and_is_woken():
    with Box() as box:
        turns = []

        def turn(now_ns):
            turns.append(threading.current_thread())

        box.peer.turn = turn
        waiting = threading.Thread(
            target=lambda: turns.append(box.run(box.peer.wait_for_another()))
        )
        waiting.start()
        time.sleep(0.05)
        box.driver.section.run(box.peer.letters.append, b"a")
        box.driver.wake()
        waiting.join(20)
        assert True in turns
        assert waiting not in turns


def test_after_an_exception_inside_the_engine_is_put_right_once(user):
    section, peer = user.box.driver.section, user.box.peer

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        section.run(interrupt)
    peer.far.send(b"a")
    assert user.call(lambda peer: peer.receive(30)) == b"a"
    assert peer.resyncs == 1


def test_a_refusal_of_the_engine_leaves_nothing_to_put_right(user):
    with pytest.raises(P2PError, match="no"):
        user.call(lambda peer: peer.refuse())
    with pytest.raises(TimeoutError):
        user.call(lambda peer: peer.receive(0.01))
    assert user.call(lambda peer: peer.read_disk(lambda: 7)) == 7
    assert user.box.peer.resyncs == 0


def test_turns_go_on_after_one_that_failed(user, caplog):
    peer = user.box.peer
    peer.far.send(b"a")
    peer.fails.append(ValueError("now and then"))
    try:
        assert user.call(lambda peer: peer.receive(30)) == b"a"
    except ValueError:  # in the caller's own turn
        assert user.call(lambda peer: peer.receive(30)) == b"a"


class QuietBox(LetterBox):
    thread_name = ""


class BoxWithoutThread(Box):
    _closes_at_once = True

    def __init__(self):
        self._open(QuietBox)

    def close(self):
        self._driver.stop()


def test_a_peer_that_needs_no_thread_has_none_and_is_collected():
    before = set(threading.enumerate())
    with BoxWithoutThread() as box:
        box.peer.far.send(b"a")
        assert box.run(box.peer.receive(30)) == b"a"
        box.driver.wake()
        assert set(threading.enumerate()) <= before
    box = BoxWithoutThread()
    box.peer.shut()
    left = weakref.ref(box)
    del box
    gc.collect()
    assert left() is None


def test_the_thread_that_leads_sees_what_another_one_took():
    with BoxWithoutThread() as box:
        taken = []
        leads = threading.Thread(target=lambda: taken.append(box.run(box.peer.receive(60))))
        leads.start()
        box.run(box.peer.write("a"))
        leads.join(60)
        assert taken == ["a"]


def test_a_call_of_a_user_is_made_outside_of_the_section_and_where_the_verb_runs(user):
    section, here = user.box.driver.section, threading.get_ident()
    assert user.call(lambda peer: peer.ask(lambda: section.run(threading.get_ident))) == here


def test_what_a_verb_has_open_is_closed_inside_when_its_call_is_interrupted():
    with Box() as box:
        inside = []

        def interrupt():
            raise KeyboardInterrupt

        def verb():
            try:
                yield Calling(interrupt)
            finally:
                inside.append(box.driver.section.busy)

        with pytest.raises(KeyboardInterrupt):
            box.run(verb())
        assert inside == [True]


def test_a_task_that_is_cancelled_when_it_was_woken_leaves_it_to_the_next():
    async def main():
        async with AioBox() as box:
            first, second = (asyncio.create_task(box.run(box.peer.receive())) for _ in range(2))
            await asyncio.sleep(0.01)
            box.peer.letters.append(b"a")
            box.driver.notify()  # wakes the first
            first.cancel()
            assert await asyncio.wait_for(second, 30) == b"a"

    asyncio.run(main())


def test_what_another_thread_wakes_takes_a_turn_soon():
    async def main():
        async with AioBox() as box:
            await asyncio.sleep(0.01)
            before = box.peer.turns
            while box.peer.turns == before:
                await asyncio.to_thread(box.driver.wake)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_loop_goes_on_where_what_follows_a_turn_fails(caplog):
    async def main():
        async with AioBox() as box:
            peer = box.peer
            peer.next_deadline_ns = lambda: peer.now_ns() + 1_000_000
            box.driver.wake()
            await asyncio.sleep(0.01)  # all turns are the timer's by now
            peer.fds_fail.append(MemoryError())
            while peer.fds_fail:
                await asyncio.sleep(0.001)
            before = peer.turns
            while peer.turns == before:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert "its turn failed; it goes on" in caplog.text


def test_a_call_that_never_waits_lets_others_run():
    async def main():
        async with AioBox() as box:
            others = asyncio.create_task(asyncio.sleep(0))
            while not others.done():
                if box.driver.must_rest():
                    await box.driver.rest()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_any_thread_may_read_what_is_of_a_loop():
    async def main():
        async with AioBox() as box:
            section = box.driver.section
            with pytest.raises(RuntimeError, match="is used"):
                await asyncio.to_thread(section.run, len, "four")
            assert await asyncio.to_thread(section.read, len, "four") == 4
            found = iter([RuntimeError("changed"), 4])

            def look():
                if isinstance(one := next(found), RuntimeError):
                    raise one
                return one

            assert await asyncio.to_thread(section.read, look) == 4

    asyncio.run(asyncio.wait_for(main(), 30))


def test_one_that_is_closed_begins_nothing():
    box = AioBox()
    box.close_now()
    with pytest.raises(ClosedError):
        box.begin(box.run(box.peer.receive()))


def test_one_that_was_made_outside_of_a_loop_is_refused_inside():
    box = AioBox()

    async def main():
        with pytest.raises(RuntimeError, match="made outside of an event loop"):
            await box.run(box.peer.receive())

    asyncio.run(main())
    box.close_now()


def test_a_begun_call_says_when_it_has_ended():
    box, ended = AioBox(), []
    begun = box.begin(box.run(box.peer.receive()))
    begun.add_done_callback(ended.append)
    assert not ended
    box.peer.far.send(b"a")
    pump(box, begun)
    begun.add_done_callback(ended.append)
    assert ended == [begun, begun]
    box.close_now()


@pytest.mark.parametrize("place", ["section", "driver"])
def test_what_a_call_took_that_an_exception_ended_is_put_right(monkeypatch, place):
    """It comes when the work is over, right before the caller gets the result."""
    with Box() as box:
        box.run(box.peer.write(b"a"))
        here = threading.get_ident()

        def interrupt(*_):
            if threading.get_ident() == here:  # not the peer's own thread
                monkeypatch.undo()
                raise KeyboardInterrupt

        if place == "driver":
            monkeypatch.setattr(threads.Done, "value", property(interrupt))
        else:
            lock = box.driver.section.lock
            struck = SimpleNamespace(
                acquire=lock.acquire, release=lambda: (lock.release(), interrupt())
            )
            monkeypatch.setattr(box.driver.section, "lock", struck)
        with pytest.raises(KeyboardInterrupt):
            box.run(box.peer.receive(30))
        with pytest.raises(TimeoutError):
            box.run(box.peer.receive(0))
        assert box.peer.resyncs == 1


def test_a_call_that_is_woken_in_vain_goes_on_waiting():
    async def main():
        async with AioBox() as box:
            first = asyncio.create_task(box.run(box.peer.receive(60)))
            await asyncio.sleep(0)
            box.peer.letters.append(b"a")
            box.driver.notify()  # wakes it, and another call is quicker
            box.peer.letters.clear()
            await asyncio.sleep(0.01)
            box.peer.far.send(b"b")
            assert await first == b"b"

    asyncio.run(main())


def test_upkeep_begins_again_after_an_exception(user, caplog):
    class Failing(list):
        def popleft(self):
            user.box.peer.to_keep = deque(["four"])
            raise ValueError("once")

    user.box.peer.to_keep = Failing([1])
    user.box.driver.wake()
    until = time.monotonic() + 30
    while not user.box.peer.kept and time.monotonic() < until:
        with contextlib.suppress(ValueError, TimeoutError):
            user.call(lambda peer: peer.receive(0.01))
    assert user.box.peer.kept == 4


def test_upkeep_goes_on_while_calls_wait():
    with Box() as box:

        def far_away():
            while not box.peer.turns:
                time.sleep(0.001)
            box.peer.to_keep.append("four")
            box.peer.far.send(b"x")

        other = threading.Thread(target=far_away)
        other.start()
        box.run(box.peer.receive(60))
        other.join()
        until = time.monotonic() + 30
        while not box.peer.kept and time.monotonic() < until:
            with contextlib.suppress(TimeoutError):
                box.run(box.peer.receive(0.01))
        assert box.peer.kept == 4


def test_one_that_was_closed_in_a_loop_has_no_descriptors_and_no_turns():
    async def main():
        box = AioBox()
        await box.close()
        assert box.wait_fds() == []
        with pytest.raises(ClosedError):
            box.turn()

    asyncio.run(main())


def test_a_begun_call_that_is_cancelled_leaves_nothing_and_its_turn_to_the_next():
    box = AioBox()
    calls = [box.begin(box.run(box.peer.receive())) for _ in range(100)]
    assert all(each.cancel() for each in calls[:-1])
    assert len(box._driver._waiting) == 1 + 1  # the upkeep's
    box.turn()
    box.peer.letters.append(b"a")
    box.turn()
    assert calls[-1].result() == b"a"
    box.close_now()


def test_begun_calls_that_have_what_they_wait_for_have_turns_due_at_once():
    box = AioBox()
    calls = [box.begin(box.run(box.peer.receive())) for _ in range(5)]
    box.peer.letters.extend(range(5))
    for left in (4, 3, 2, 1, 0):
        assert box.turn() == 0.0
        assert box.next_deadline <= time.monotonic()
        assert sum(not each.done() for each in calls) == left
    assert [each.result() for each in calls] == [0, 1, 2, 3, 4]
    assert box.turn() > 0.0
    box.close_now()


def test_a_second_close_ends_what_ctrl_c_left_of_the_first(monkeypatch):
    box = Box()
    thread = box._driver._threads[0]

    def join(_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "join", join)
    with pytest.raises(KeyboardInterrupt):
        box._end(box.peer.write(b"last"))
    assert not box.peer.closed
    box._end(box.peer.write(b"last"))
    assert box.peer.closed


def test_one_whose_thread_cannot_start_is_shut(monkeypatch):
    made = []

    def start(thread):
        made.append(thread._target.__self__.peer)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError):
        Box()
    assert made[0].closed


def test_turns_go_on_while_a_disk_takes_its_time():
    class Slow:
        def __len__(self):
            has_begun.set()
            assert is_over.wait(60)
            return 1

    has_begun, is_over, until = threading.Event(), threading.Event(), time.monotonic() + 60
    with Box() as box:
        box.peer.to_keep.append(Slow())
        box.driver.wake()
        assert has_begun.wait(60)
        box.peer.far.send(b"a")
        while not box.peer.letters and time.monotonic() < until:
            time.sleep(0.001)
        assert box.peer.letters
        is_over.set()
