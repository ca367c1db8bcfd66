"""Where a multicast's repairs are asked for over TCP."""

import pytest

from p2pmsg.peers.opening import default_recovery
from transports import parse_endpoint
from transports.platform import IS_LINUX

pytestmark = pytest.mark.skipif(not IS_LINUX, reason="udp:// needs Linux")

IPV4, IPV6 = "udp://239.1.1.1:5600", "udp://[ff15::1]:5600"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([IPV4], "tcp://*:0"),
        ([IPV6], "tcp://[::]:0"),
        ([IPV4, IPV6], "tcp://[::]:0"),  # takes connections of IPv4, too
        ([IPV6, IPV4], "tcp://[::]:0"),
        ([f"{IPV4}?interface=10.0.0.1"], "tcp://10.0.0.1:0"),
        ([f"{IPV6}?interface=fd00::1"], "tcp://[fd00::1]:0"),
        ([f"{IPV4}?interface=10.0.0.1", "udp://239.1.1.2:5600?interface=10.0.0.1"],
         "tcp://10.0.0.1:0"),
        ([f"{IPV4}?interface=10.0.0.1", "udp://239.1.1.2:5600?interface=10.0.1.1"], "tcp://*:0"),
        ([f"{IPV4}?interface=10.0.0.1", f"{IPV6}?interface=fd00::1"], "tcp://[::]:0"),
    ],
)  # fmt: skip
def test_it_is_on_the_interface_of_all_lines_or_else_on_all(lines, expected):
    first, *others = map(parse_endpoint, lines)
    assert str(default_recovery(first, others)) == expected
