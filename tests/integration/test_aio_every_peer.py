"""What holds of every peer of an event loop: its end, its own loop, a close that is cancelled."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.aio import metrics
from p2pmsg.aio.reader import HeadsWatch, RangeReader
from p2pmsg.errors import ClosedError
from tests.descriptors import no_descriptor_left
from tests.integration.aio import LOOPS, run
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.test_every_peer import ELSEWHERE, NONE_FREE

STEPS = 20
"""More than any close takes here."""
LEFT_OPEN = "was not closed before its event loop ended"


async def all_of(source):
    return [each async for each in source]


class Kind(NamedTuple):
    """A kind of peer, and its calls: each takes the peer."""

    make: Callable[[], Any]
    waits: tuple = ()
    """They wait for what never comes; a close raises ClosedError in them."""
    ends: tuple = ()
    """These end without an error then."""
    at_once: tuple = ()
    """They do not wait."""
    before: Callable[[Any], Any] = lambda peer: None


PEERS = {
    "publisher": Kind(
        lambda: aio.Publisher(LOOPBACK),
        waits=(lambda peer: peer.wait_for_subscribers(2),),
        at_once=(lambda peer: peer.publish("t", 1),),
    ),
    "subscriber": Kind(
        lambda: aio.Subscriber(ELSEWHERE),
        waits=(lambda peer: peer.receive(), lambda peer: peer.receive_many()),
        ends=(all_of, lambda peer: all_of(peer.batches())),
        at_once=(lambda peer: peer.receive_nowait(), aiter, lambda peer: peer.batches()),
    ),
    "relay": Kind(
        lambda: aio.Relay(ELSEWHERE, LOOPBACK),
        waits=(lambda peer: peer.wait_for_streams(9), lambda peer: peer.wait_for_subscribers(9)),
    ),
    "pusher": Kind(
        lambda: aio.Pusher(LOOPBACK, in_flight_max=1),
        waits=(lambda peer: peer.drain(), lambda peer: peer.join()),
        at_once=(lambda peer: peer.push(1),),
        before=lambda peer: peer.push(1),
    ),
    "puller": Kind(
        lambda: aio.Puller(ELSEWHERE), waits=(lambda peer: peer.receive(),), ends=(all_of,)
    ),
    "requester": Kind(
        lambda: aio.Requester(ELSEWHERE),
        waits=(lambda peer: peer.request("t", timeout=600),),
        at_once=(lambda peer: peer.request_all("t"),),
    ),
    "responder": Kind(
        lambda: aio.Responder(LOOPBACK, {}),
        ends=(lambda peer: peer.serve(),),
        at_once=(lambda peer: peer.start(),),
    ),
    "reader": Kind(
        lambda: RangeReader(ELSEWHERE, timeout=600.0), waits=(lambda peer: peer.heads(),)
    ),
    "heads": Kind(lambda: HeadsWatch([ELSEWHERE]), ends=(lambda peer: peer.wait_until_asked(600),)),
    "metrics": Kind(
        lambda: metrics.Client(LOOPBACK, close_timeout=0.0),
        waits=(lambda peer: peer.wait_for_collectors(),),
    ),
}


@pytest.fixture(params=PEERS)
def kind(request):
    return PEERS[request.param]


def one_of(kind):
    return (*kind.waits, *kind.ends)[0]


def close(peer):
    return peer.close(0.0) if isinstance(peer, aio.Pusher) else peer.close()


def test_closing_wakes_all_who_wait_and_leaves_nothing(kind):
    async def main():
        peer = kind.make()
        kind.before(peer)
        waiting = [asyncio.ensure_future(wait(peer)) for wait in (*kind.waits, *kind.ends)]
        await asyncio.sleep(0.01)
        await close(peer)
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        count = len(kind.waits)
        assert {type(each) for each in ended[:count]} <= {ClosedError}
        assert not [each for each in ended[count:] if isinstance(each, BaseException)]
        for call in kind.waits:
            with pytest.raises(ClosedError):
                await call(peer)
        await close(peer)
        assert peer.wait_fds() == []
        return weakref.ref(peer)

    left = run(main)

    def is_gone():
        gc.collect()
        return left() is None

    eventually(is_gone)


def test_a_close_that_is_cancelled_at_any_step_may_be_made_again(kind):
    async def main():
        for steps in range(STEPS):
            peer = kind.make()
            kind.before(peer)
            waiting = [asyncio.ensure_future(wait(peer)) for wait in kind.waits]
            await asyncio.sleep(0)
            closing = asyncio.create_task(close(peer))
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await closing
            await close(peer)
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(each) for each in ended} <= {ClosedError}
            assert peer.wait_fds() == []

    run(main)


def test_another_loop_and_another_thread_are_refused(kind):
    async def use(peer):
        for call in (*kind.waits, *kind.ends, lambda peer: peer.__aenter__()):
            with pytest.raises(RuntimeError, match="in another event loop"):
                await call(peer)
        for call in kind.at_once:
            with pytest.raises(RuntimeError, match=r"the \w+ ((at|of) tcp://|')"):
                call(peer)

    async def main():
        peer = kind.make()
        await asyncio.to_thread(asyncio.run, use(peer))
        for call in kind.at_once:
            with pytest.raises(RuntimeError, match="outside"):
                await asyncio.to_thread(call, peer)
        await close(peer)

    run(main)
    outside = kind.make()
    with pytest.raises(RuntimeError, match="made outside of an event loop"):
        asyncio.run(one_of(kind)(outside))
    outside.close_now()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_ends_closes_what_was_left_open_and_names_it(kind, loop, caplog):
    kept = []

    async def main():
        kept.append(kind.make())
        kind.before(kept[0])
        await asyncio.sleep(0.01)

    run(main, loop)
    assert len([text for text in caplog.messages if LEFT_OPEN in text]) == 1, caplog.messages
    assert kept[0].wait_fds() == []


def test_one_that_has_no_descriptor_says_so(kind):
    async def main():
        with no_descriptor_left(), pytest.raises(p2pmsg.P2PError, match=NONE_FREE):
            peer = kind.make()
            await asyncio.wait_for(one_of(kind)(peer), 60.0)  # a requester opens when it asks

    run(main)
