"""What libzmq reports of a socket's connections, as its monitor has it."""

import struct
from contextlib import suppress
from itertools import count
from typing import Final

import zmq

from transports.context import Context, Socket

_EVENT: Final = struct.Struct("=hi")
_NOBLOCK: Final = int(zmq.NOBLOCK)
_POLLIN: Final = int(zmq.POLLIN)
_numbers: Final = count()


class Monitor:
    """Reads the events of one socket; it has to be read now and then, for they have no bound.

    Args:
        socket: not bound or connected yet.
        context: the socket's.
        events: which are wanted, as libzmq's mask.

    Attributes:
        fd: a descriptor that is readable when there may be an event.

    """

    def __init__(self, socket: Socket, context: Context, events: int) -> None:
        self._socket = socket
        address = f"inproc://p2pmsg-monitor-{next(_numbers)}"
        # ZeroMQ's thread waits, and all sockets of the process with it, where nobody could take
        # what it reports: so who takes it comes first, and has no bound.
        self._pair: Socket = context.socket(zmq.PAIR)
        try:
            self._pair.set(zmq.RCVHWM, 0)
            self._pair.connect(address)
            while True:
                with suppress(zmq.error.InterruptedSystemCall):  # pyzmq does not try it again
                    socket.monitor(address, events)
                    break
            self.fd = int(self._pair.get(zmq.FD))
        except BaseException:
            self.close()
            raise

    def read(self) -> tuple[int, int] | None:
        """Return the next event and its value, mostly a descriptor; None: there is none."""
        try:
            if not int(self._pair.get(zmq.EVENTS)) & _POLLIN:  # quicker than a refusal by `recv`
                return None
            what, value = _EVENT.unpack(self._pair.recv_multipart(_NOBLOCK)[0])
        except (zmq.ZMQError, struct.error):
            return None
        return what, value

    @property
    def closed(self) -> bool:
        """Whether nothing is read any more."""
        return bool(self._pair.closed)

    def close(self) -> None:
        """Stop; before the socket is closed."""
        if not self._socket.closed:
            with suppress(zmq.ZMQError):  # another thread has closed it
                self._socket.disable_monitor()
        self._pair.close(linger=0)
