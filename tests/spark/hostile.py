"""A publisher that says who it is and what it has, and answers every fetch with rubbish."""

import threading

import zmq

from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind
from tests.integration.hostile import malformed, unreadable_bodies

SESSION = 7
COUNT = 100


class HostilePublisher:
    """Sockets as a publisher has them; all that it sends of topic `t` is malformed.

    Attributes:
        endpoint: its data endpoint.
        asked: how many fetches it has answered.

    """

    def __init__(self):
        context = zmq.Context.instance()
        self._data, self._recovery = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        ports = []
        for each in (self._data, self._recovery):
            each.linger = 0
            ports.append(each.bind_to_random_port("tcp://127.0.0.1"))
        self._data.set(zmq.XPUB_VERBOSE, 1)
        self.endpoint = f"tcp://127.0.0.1:{ports[0]}"
        self.asked = 0
        body = control.Welcome("evil", f"tcp://127.0.0.1:{ports[1]}", 1.0)
        self._welcome = wire.control_frame(Kind.WELCOME, SESSION, body)
        self._replies = [*malformed(b"t", SESSION), *unreadable_bodies(b"t", SESSION, 0)]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        for each in (self._data, self._recovery):
            each.close()

    def _serve(self):
        poller = zmq.Poller()
        for each in (self._data, self._recovery):
            poller.register(each, zmq.POLLIN)
        while not self._done.is_set():
            ready = dict(poller.poll(20))
            if self._data in ready:
                self._data.recv()
                self._data.send(self._welcome)
            if self._recovery in ready:
                requester, request = self._recovery.recv_multipart()
                for reply in self._answer(request):
                    self._recovery.send_multipart([requester, reply])

    def _answer(self, request):
        try:
            frame = Frame(request)
        except FrameError:
            return []
        if frame.kind == Kind.HEADS_REQUEST:
            body = control.Heads("evil", [control.Head("t", 0, COUNT)])
            return [wire.control_frame(Kind.HEADS, SESSION, body, sequence=frame.sequence)]
        self.asked += frame.kind == Kind.NACK
        return self._replies
