"""An endpoint that pins a key is never connected to without security."""

import contextlib

import pytest

from p2pmsg import Puller, Requester, Subscriber
from p2pmsg.bridge import Bridge
from p2pmsg.errors import ConfigError
from p2pmsg.queue.admin import LiveBox
from p2pmsg.reader import HeadsWatch, RangeReader

PLACE = f"tcp://127.0.0.1:1?key={'A' * 43}"
OPEN = "tcp://127.0.0.1:1"

CONNECT = {
    "subscriber": lambda: Subscriber(PLACE),
    "requester": lambda: Requester(PLACE),
    "one of several": lambda: Requester([OPEN, PLACE]),
    "puller": lambda: Puller(PLACE),
    "pipeline": lambda: Puller(PLACE, acknowledge="batch"),
    "dead letters": lambda: LiveBox(PLACE, 1.0),
    "range reader": lambda: RangeReader(PLACE),
    "its recovery": lambda: RangeReader(OPEN, recovery_endpoint=PLACE, session=1),
    "heads watch": lambda: HeadsWatch([PLACE]),
    "bridge": lambda: Bridge(PLACE, "zmq+push://127.0.0.1:1"),
    "bridge's puller": lambda: Bridge(f"queue+{PLACE}", "zmq+push://127.0.0.1:1"),
}
REFUSED = pytest.raises(ConfigError, match="security must be given where an endpoint pins")


@pytest.mark.parametrize("connect", CONNECT.values(), ids=CONNECT)
def test_a_pinned_key_is_not_dropped(connect):
    with REFUSED, contextlib.closing(connect()):
        pass
