"""Connections of which each thread has its own."""

import os
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


def test_a_thread_keeps_its_own():
    threads, made = ThreadClients(), Made()
    mine = threads.get(made)
    others = []
    in_threads(lambda: others.append(threads.get(made)))
    assert threads.get(made) is mine
    assert others[0] is not mine
    assert all(client.connected for client in made.clients)
    threads.close()
    assert all(client.closed_by for client in made.clients)
    assert len(threads) == 0


def test_what_belongs_to_a_thread_that_ends_is_closed_by_that_thread():
    threads, made, idents = ThreadClients(), Made(), []

    def ask():
        idents.append(threading.get_ident())
        threads.get(made)

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
        threads.get(made)
        has_them.set()
        ending.wait()

    thread = threading.Thread(target=work)
    thread.start()
    assert has_them.wait(60)
    return thread, ending


def test_what_ends_while_another_thread_opens_some_is_closed_at_the_next_use():
    threads, made = ThreadClients(), Made()
    mine = threads.get(made)
    thread, ending = hold(threads, made)
    with threads._open._lock:
        ending.set()
        thread.join()
        assert len(threads) == 2
    assert threads.get(made) is mine
    assert len(threads) == 1
    assert [client.closed_by is None for client in made.clients] == [True, True, False, False]
    threads.close()


def test_what_cannot_all_be_connected_is_closed():
    threads, made = ThreadClients(), [Client(), Client(fails=True)]
    with pytest.raises(OSError, match="no descriptor"):
        threads.get(lambda: made)
    assert all(client.closed_by for client in made)
    assert len(threads) == 0


def test_a_forked_child_closes_none_of_its_parents():
    threads, made = ThreadClients(), Made()
    thread, ending = hold(threads, made)
    child = os.fork()  # the child has no such thread, and lets go of what that held
    if not child:
        os._exit(int(any(client.closed_by for client in made.clients)))
    _, status = os.waitpid(child, 0)
    ending.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert all(client.closed_by for client in made.clients)
