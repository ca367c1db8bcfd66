"""Connections of which each thread has its own."""

import threading

import pytest

from p2pmsg.requests.thread_clients import ThreadClients
from tests.integration.peers import in_threads


class Client:
    def __init__(self, fails=False):
        self.fails = fails
        self.closed_by = None
        self.connected = False

    def connect(self):
        if self.fails:
            raise OSError("no descriptor")
        self.connected = True

    def close(self):
        assert self.closed_by is None
        self.closed_by = threading.get_ident()


class Made:
    """Makes two connections a thread, and keeps them all."""

    def __init__(self):
        self.clients = []

    def __call__(self):
        made = [Client(), Client()]
        self.clients += made
        return made


def own(threads, connect):
    """Return this thread's connections."""
    return threads.call(connect, list)


def test_a_thread_keeps_its_own():
    threads, made = ThreadClients(), Made()
    mine = own(threads, made)
    others = []
    in_threads(lambda: others.append(own(threads, made)))
    assert own(threads, made) == mine
    assert others[0] != mine
    assert all(client.connected for client in made.clients)
    threads.close(60.0)
    assert all(client.closed_by for client in made.clients)
    assert len(threads) == 0


def test_what_belongs_to_a_thread_that_ends_is_closed_by_that_thread():
    threads, made, idents = ThreadClients(), Made(), []

    def ask():
        idents.append(threading.get_ident())
        own(threads, made)

    for number in range(20):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert len(threads) == 0
        assert len(made.clients) == 2 * (number + 1)
    assert [client.closed_by for client in made.clients] == [i for i in idents for _ in range(2)]


def hold(threads, made):
    """Have a thread with connections; return it, and an event that ends it."""
    has_them, ending = threading.Event(), threading.Event()

    def work():
        own(threads, made)
        has_them.set()
        ending.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert has_them.wait(60)
    return thread, ending


def test_those_of_a_thread_that_is_in_no_call_are_closed_by_who_closes():
    threads, made = ThreadClients(), Made()
    thread, ending = hold(threads, made)
    threads.close(60.0)
    assert [client.closed_by for client in made.clients] == [threading.get_ident()] * 2
    ending.set()
    thread.join()
    assert len(threads) == 0


@pytest.mark.parametrize("timeout", [0.0, 60.0])
def test_those_of_a_thread_in_a_call_are_closed_when_it_has_left_it(timeout):
    threads, made = ThreadClients(), Made()
    is_in, leave, left, ending = (threading.Event() for _ in range(4))
    open_inside = []

    def ask(clients):
        is_in.set()
        leave.wait()
        open_inside.extend(client.closed_by is None for client in clients)

    def work():
        threads.call(made, ask)
        left.set()
        ending.wait()

    asking = threading.Thread(target=work)
    closing = threading.Thread(target=threads.close, args=[timeout])
    asking.start()
    assert is_in.wait(60)
    closing.start()
    if not timeout:
        closing.join()  # it does not wait for the one in the call
    leave.set()
    assert left.wait(60)
    closing.join()
    assert open_inside == [True, True]
    assert all(client.closed_by for client in made.clients)
    ending.set()
    asking.join()


def test_a_call_that_comes_after_close_leaves_nothing_open():
    threads, made = ThreadClients(), Made()
    threads.close(60.0)
    own(threads, made)
    assert all(client.closed_by for client in made.clients)
    assert own(threads, made) == []
