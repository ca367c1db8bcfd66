"""Callers that wait until what they published is on the disk."""

import threading

from p2pmsg.sync.acknowledge import Acknowledgements


def open_forever():
    return False


class Callers:
    """Threads that wait for a commit each, and what they were said."""

    def __init__(self, acks):
        self.acks = acks
        self.threads = []
        self.said = {}
        self.woken = []

    def wait(self, name, number, is_over=open_forever):
        def run():
            self.said[name] = self.acks.wait(number, lambda: self.woken.append(name), is_over)

        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)
        while number not in self.acks._commits:
            threading.Event().wait(0.001)

    def join(self):
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.said


def test_many_share_one_commit():
    acks = Acknowledgements()
    callers = Callers(acks)
    for name in range(20):
        callers.wait(name, acks.begun + 1)
    while not acks.is_wanted:
        threading.Event().wait(0.001)
    assert acks.begin()
    acks.end(None)
    assert callers.join() == dict.fromkeys(range(20))
    assert acks.begun == 1
    assert len(callers.woken) == 1
    assert not acks._commits


def test_a_failure_is_reported_to_those_whose_commit_it_was():
    for _ in range(50):
        acks = Acknowledgements()
        callers = Callers(acks)
        callers.wait("first", 1)
        acks.begin()
        callers.wait("second", 2)
        acks.end("the disk is full")  # and before the first one has looked:
        acks.begin()
        acks.end(None)
        assert callers.join() == {"first": "the disk is full", "second": None}


def test_when_the_publisher_is_closed_nobody_waits_for_ever():
    acks = Acknowledgements()
    said = acks.wait(1, lambda: None, lambda: True)
    assert said == "the publisher was closed before it was on the disk"


def test_a_caller_that_ctrl_c_takes_away_holds_up_the_others_for_a_second_at_most():
    acks = Acknowledgements()
    callers = Callers(acks)
    callers.wait("first", 1)
    callers.wait("second", 1)
    commit = acks._commits.pop(1)
    acks.begin()
    acks.end(None)  # nobody passes it on
    assert callers.join() == {"first": None, "second": None}
    assert commit.lock.locked()


def test_while_a_commit_is_put_off_none_is_due_though_one_is_wanted():
    acks = Acknowledgements()
    assert not acks.is_due
    acks.ask()
    assert acks.is_due
    assert acks.begin()
    acks.ask()  # another caller, while the first commit has not ended
    assert acks.is_wanted
    assert not acks.is_due  # else the thread would go round without a wait
    assert acks.begin()
    acks.end(None)
    assert acks.is_due
