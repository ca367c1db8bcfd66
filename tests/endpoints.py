"""What is a test's own: loopback ports where it may start another listener, and open files."""

import itertools
import os
import random
import socket
from pathlib import Path

_PORTS_EACH = 1000
"""How many UDP ports each of pytest-xdist's workers takes in turn."""

_held = []


def lasting_endpoint():
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


def free_port():
    """Return a UDP port that is free, and stays so: it is below those that the system gives away.

    A port that the system gave us, and that we closed, it may give to somebody else before the test
    binds it.
    """
    while True:
        port = next(_ports)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _own_ports():
    """Return the ports of this worker, from any of them on and round and round."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32768  # Linux's default
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    end = max(lowest, 16 * _PORTS_EACH) - worker % 8 * _PORTS_EACH
    ports = list(range(end - _PORTS_EACH, end))
    first = random.randrange(_PORTS_EACH)
    return itertools.cycle(ports[first:] + ports[:first])


_ports = _own_ports()


def files_open_in(folder):
    """Return the files of a folder that this process has open, those that are gone too.

    Of all that it has open some may be a former test's, and be closed meanwhile.
    """
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # that of the listing itself
            continue
        found += [path] if path.startswith(f"{folder}/") else []
    return found
