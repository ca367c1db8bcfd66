"""A small peer for tests of the drivers: letters that come over a pair of sockets."""

import socket
from collections import deque

from p2pmsg.driver.faces import LoopFace, ThreadFace
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.verbs import Blocking, Calling, LateError, Wait
from p2pmsg.errors import ClosedError, P2PError

FAR_NS = 10_000_000_000


class LetterBox(Peer):
    """Takes one letter a turn, and drops what it was taking when an exception came."""

    thread_name = "letters"

    def __init__(self):
        self.name = "the letter box"
        self.far, self._own = socket.socketpair()
        self._own.setblocking(False)
        self._fds = frozenset({self._own.fileno()})
        self.letters = deque()
        self.turns = self.resyncs = self.kept = 0
        self.closed = self.abandoned = False
        self.fails = []
        self.fds_fail = []
        self.to_keep = deque()

    def turn(self, now_ns):
        self.turns += 1
        if self.fails:
            raise self.fails.pop()
        try:
            data = self._own.recv(1)
        except BlockingIOError:
            return
        if data:
            self.letters.append(data)

    def fds(self):
        if self.fds_fail:
            raise self.fds_fail.pop()
        return self._fds

    def next_deadline_ns(self):
        return self.now_ns() + FAR_NS

    def resync(self):
        self.resyncs += 1

    def upkeep(self):
        while True:
            yield Wait(lambda: self.to_keep)
            letter = self.to_keep.popleft()
            if letter is None:
                raise ValueError("cannot be kept")
            self.kept += yield Blocking(lambda letter=letter: len(letter))

    def shut(self):
        self.closed = True
        self._own.close()
        self.far.close()

    def abandon(self):
        self.closed = self.abandoned = True

    def _has_letter(self):
        return self.letters or self.closed

    def receive(self, timeout=None):
        deadline_ns = None if timeout is None else self.now_ns() + int(timeout * 1e9)
        while not self.letters:
            if self.closed:
                raise ClosedError("the letter box")
            if not (yield Wait(self._has_letter, deadline_ns)):
                raise LateError("no letter")
        return self.letters.popleft()

    def wait_for_another(self):
        """Wait for what another call brings."""
        return (yield Wait(lambda: self.letters, self.now_ns() + 30 * 10**9, by_io=False))

    def write(self, letter):
        self.letters.append(letter)
        return
        yield

    def ask(self, call):
        return (yield Calling(call))

    def read_disk(self, call):
        return (yield Blocking(call))

    def refuse(self):
        raise P2PError("no")
        yield


class _Box:
    def __init__(self):
        self._open(LetterBox)

    @property
    def peer(self):
        return self._peer

    @property
    def driver(self):
        return self._driver

    def run(self, verb):
        return self._driver.run(verb)


class Box(_Box, ThreadFace):
    def close(self, timeout=5.0):
        self._driver.stop()


class AioBox(_Box, LoopFace):
    async def close(self, timeout=5.0):
        self._driver.stop()
