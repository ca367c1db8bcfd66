"""What a bridge's settings refuse."""

import pytest

from p2pmsg.bridge.config import BridgeConfig
from p2pmsg.bridge.plain_ends import FanOutTarget
from p2pmsg.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "most", "above"),
    [
        ("request_timeout", 1e6, 1e6 + 1),
        ("queue_messages", 2**31 - 1, 2**31),
        ("part_bytes_max", 2**63 - 1, 2**63),
    ],
)
def test_what_no_socket_takes_is_refused_by_field_limit_and_value(field, most, above):
    assert getattr(BridgeConfig(**{field: most}), field) == most
    with pytest.raises(ConfigError, match=rf"^{field} .*{most:.0f}") as error:
        BridgeConfig(**{field: above})
    assert str(above) in str(error.value)


def test_a_stall_timeout_may_be_as_long_as_one_likes():
    FanOutTarget(None, "zmq+pub", None, BridgeConfig(stall_timeout=1e9).stall_timeout)
