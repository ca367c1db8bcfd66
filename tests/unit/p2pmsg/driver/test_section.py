"""The section: one caller at a time, and an exception at any line of it."""

import gc
import sys
import threading

import pytest

from p2pmsg.driver import section as section_module
from p2pmsg.driver.section import Section
from p2pmsg.errors import ReentrantCallError

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
    left, files = line, (section_module.__file__, __file__)

    def trace(frame, event, argument):
        nonlocal left
        if event == "line" and frame.f_code.co_filename in files:  # no finalizer's
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    gc.disable()  # else it may strike what other tests left to be finalized
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        gc.enable()
    return False


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


def test_threads_enter_one_after_the_other():
    ledger = Ledger()
    section = Section(ledger.resync)
    threads = [
        threading.Thread(target=lambda: [section.run(ledger.add) for _ in range(2000)])
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert (ledger.first, ledger.second, ledger.resyncs) == (8000, 8000, 0)


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
