"""Loopback ports of a test's own, where it may end a listener and start another."""

import socket

_held = []


def lasting_place():
    """Return a TCP endpoint that nobody else is given, whether somebody listens there or not.

    A port that is free now may be another test's by the time that it is asked for again. One that
    is bound with SO_REUSEADDR and not listened at is given to nobody who asks for any port, and to
    everybody who asks for this one, as ZeroMQ does, with the same option: socket(7).
    """
    held = socket.socket()
    _held.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return f"tcp://127.0.0.1:{held.getsockname()[1]}"
