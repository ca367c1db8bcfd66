"""What drivers are made of: the section, signals to stop, and the driver of a network in memory."""

import asyncio
import signal
import threading

import pytest

from p2pmsg.driver import section as section_module
from p2pmsg.driver.section import Section
from p2pmsg.driver.stop_signals import StopSignals
from p2pmsg.driver.virtual import Turns, VirtualDriver, VirtualLoopDriver
from p2pmsg.errors import ClosedError, ReentrantCallError
from p2pmsg.testing.network import FaultyNetwork
from tests.strikes import AtLine
from tests.unit.p2pmsg.driver.toy import FAR_NS, LetterBox

LINES_MAX = 40


class Ledger:
    """Two numbers that must be the same, changed one after the other."""

    def __init__(self):
        self.first = self.second = self.resyncs = 0

    def add(self):
        self.first += 1
        self.second += 1
        return self.first

    def resync(self):
        self.resyncs += 1
        self.first = self.second

    def check(self):
        assert self.first == self.second


def interrupted_at(line, call):
    """Call, with a KeyboardInterrupt at the so many-th line of it that runs; whether it came."""
    files = {section_module.__file__, __file__}
    with AtLine(files, line, error=KeyboardInterrupt) as at:
        call()
    return at.struck


@pytest.mark.parametrize("way", ["run", "read"])
@pytest.mark.parametrize("line", range(1, LINES_MAX))
def test_after_an_interrupt_at_any_line_all_threads_may_enter_and_all_is_right(line, way):
    ledger = Ledger()
    section = Section(ledger.resync)
    interrupted_at(line, lambda: getattr(section, way)(ledger.add))
    other = threading.Thread(target=section.run, args=(ledger.check,), daemon=True)
    other.start()
    other.join(30)
    assert not other.is_alive()
    section.run(ledger.check)
    ledger.check()


def test_a_call_within_a_call_is_refused_and_the_outer_one_goes_on():
    ledger = Ledger()
    section = Section(ledger.resync)

    def nested():
        ledger.first += 1
        with pytest.raises(ReentrantCallError):
            section.run(ledger.add)
        ledger.second += 1

    section.run(nested)
    section.run(ledger.check)
    assert (ledger.first, ledger.resyncs) == (1, 0)


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_error_that_a_users_code_raised_inside_is_no_refusal(monkeypatch, is_ours):
    """As a signal's handler raises one that comes out of another peer's call."""
    if is_ours:
        monkeypatch.setattr(section_module, "OURS", {*section_module.OURS, "tests"})
    ledger = Ledger()
    section = Section(ledger.resync)

    def struck():
        raise ClosedError("the box")

    with pytest.raises(ClosedError):
        section.run(struck)
    section.run(ledger.check)
    assert ledger.resyncs == (not is_ours)


def test_another_thread_is_refused_where_one_alone_may_enter():
    def refuse():
        raise RuntimeError("not here")

    section = Section(list, refuse)
    assert section.run(len, "four") == 4
    caught = []

    def enter():
        with pytest.raises(RuntimeError, match="not here"):
            section.run(len, "four")
        caught.append(True)

    other = threading.Thread(target=enter)
    other.start()
    other.join(30)
    assert caught
    assert section.run(len, "four") == 4


def test_another_thread_reads_what_is_whole(monkeypatch):
    counts, has_begun, has_looked = [0, 0], threading.Event(), threading.Event()

    def count():
        counts[0] += 1
        has_begun.set()
        assert has_looked.wait(60)
        counts[1] += 1

    def be_home():
        section = Section(bool, bool)
        sections.append(section)
        section.run(count)

    sections = []
    home = threading.Thread(target=be_home)
    home.start()
    assert has_begun.wait(60)

    def look_again(_):
        has_looked.set()
        home.join(60)

    monkeypatch.setattr("p2pmsg.driver.section.sleep", look_again)
    assert sections[0].read(tuple, counts) == (1, 1)


@pytest.mark.parametrize("calls", [["stop"], ["stop", "again"]])
def test_a_signal_that_comes_while_the_last_one_is_handled_is_that_one(monkeypatch, calls):
    def strike(number):
        if struck:
            struck.pop()
            signal.raise_signal(signal.SIGINT)
        return real(number)

    real, struck, came = signal.getsignal, [], []
    with StopSignals(*[lambda call=call: came.append(call) for call in calls]):
        for _ in calls[1:]:
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(signal, "getsignal", strike)  # called as the handlers are put back
        struck.append(True)
        signal.raise_signal(signal.SIGINT)

    assert not struck
    assert came == calls
    assert real(signal.SIGINT) is signal.default_int_handler


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


def test_turns_come_at_the_deadline_and_after_wake(network, driver):
    network.run_until(network.clock.now_ns)
    assert driver.peer.turns == 1
    network.run_until(network.clock.now_ns + 2 * FAR_NS)
    assert driver.peer.turns == 3
    driver.wake()
    driver.wake()
    network.run_until(network.clock.now_ns)
    assert driver.peer.turns == 4


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
