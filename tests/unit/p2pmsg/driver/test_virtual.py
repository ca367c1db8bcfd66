"""The driver of a network in memory, with the same small peer."""

import asyncio

import pytest

from p2pmsg.driver.virtual import ENDLESS_NS, Turns, VirtualDriver, VirtualLoopDriver
from p2pmsg.errors import ClosedError
from p2pmsg.testing.network import FaultyNetwork
from tests.unit.p2pmsg.driver.toy import FAR_NS, LetterBox

S = 10**9


@pytest.fixture
def network():
    return FaultyNetwork(0)


def opened(network, make=VirtualDriver, turns=None):
    peer = LetterBox()
    peer.now_ns = lambda: network.clock.now_ns
    driver = make(peer, network, turns or network.turns)
    driver.start()
    return driver


@pytest.fixture
def driver(network):
    made = opened(network)
    yield made
    made.stop()


def bring(driver, letter):
    driver.peer.far.send(letter)
    driver.arrived()


def after(driver, seconds, action, *arguments):
    driver._network.after(seconds, action, *arguments)


def test_a_call_lets_time_pass_until_it_has_what_it_waits_for(network, driver):
    began_ns = network.clock.now_ns
    after(driver, 1.5, bring, driver, b"a")
    assert driver.run(driver.peer.receive(2.0)) == b"a"
    assert network.clock.now_ns == began_ns + 3 * S // 2


def test_a_call_that_need_not_wait_takes_no_time(network, driver):
    bring(driver, b"a")
    began_ns = network.clock.now_ns
    assert driver.run(driver.peer.receive()) == b"a"
    with pytest.raises(TimeoutError):
        driver.run(driver.peer.receive(0.0))
    assert network.clock.now_ns == began_ns


def test_a_call_ends_at_its_deadline_or_after_a_minute(network, driver):
    began_ns = network.clock.now_ns
    with pytest.raises(TimeoutError):
        driver.run(driver.peer.receive(0.25))
    assert network.clock.now_ns == began_ns + S // 4
    with pytest.raises(TimeoutError):
        driver.run(driver.peer.receive())
    assert network.clock.now_ns == began_ns + S // 4 + ENDLESS_NS


def test_turns_come_at_the_deadline_and_after_wake(network, driver):
    network.run_until(network.clock.now_ns)
    assert driver.peer.turns == 1
    network.run_until(network.clock.now_ns + 2 * FAR_NS)
    assert driver.peer.turns == 3
    driver.wake()
    driver.wake()
    network.run_until(network.clock.now_ns)
    assert driver.peer.turns == 4


def test_upkeep_goes_on_next_to_the_turns(network, driver):
    driver.peer.to_keep.extend([b"1", b"22"])
    driver.wake()
    network.run_until(network.clock.now_ns + 10)
    assert driver.peer.kept == 3


def test_stopping_it_ends_calls_and_killing_it_shuts_nothing(network):
    stopped, killed = opened(network), opened(network)
    after(stopped, 1.0, stopped.stop)
    with pytest.raises(ClosedError):
        stopped.run(stopped.peer.receive())
    killed.kill()
    turns = killed.peer.turns
    network.run_until(network.clock.now_ns + 3 * FAR_NS)
    assert not killed.peer.closed
    assert killed.peer.turns == turns
    killed.peer.shut()


def test_tasks_take_turns_while_time_passes(network):
    async def main():
        turns = Turns(network)
        driver = opened(network, VirtualLoopDriver, turns)
        took = []

        async def take():
            took.append(await driver.run(driver.peer.receive()))

        tasks = [asyncio.create_task(take()) for _ in range(2)]
        for at, letter in enumerate((b"a", b"b")):
            after(driver, 1.0 + at, bring, driver, letter)
        await asyncio.gather(*tasks)
        assert took == [b"a", b"b"]
        with pytest.raises(TimeoutError):
            await driver.run(driver.peer.receive(3.0))
        waiting = asyncio.create_task(take())
        await asyncio.sleep(0)
        waiting.cancel()
        bring(driver, b"c")
        await take()  # it lost nothing
        driver.stop()
        return took[-1]

    began_ns = network.clock.now_ns
    assert asyncio.run(main()) == b"c"
    assert network.clock.now_ns >= began_ns + 5 * S


def test_a_section_that_has_ended_refuses_all(driver):
    def refuse():
        raise ClosedError("it", "it has crashed")

    driver.section.end(refuse)
    with pytest.raises(ClosedError, match="crashed"):
        driver.run(driver.peer.receive(0.0))
    driver.section.renew()  # so that it can be stopped
