"""What a bridge's settings refuse."""

import pytest

from p2pmsg.bridge.config import BridgeConfig
from p2pmsg.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "most", "above"),
    [
        ("queue_messages", 2**31 - 1, 2**31),
        ("part_bytes_max", 2**63 - 1, 2**63),
    ],
)
def test_what_no_socket_takes_is_refused_by_field_limit_and_value(field, most, above):
    assert getattr(BridgeConfig(**{field: most}), field) == most
    with pytest.raises(ConfigError, match=rf"^{field} .*{most:.0f}") as error:
        BridgeConfig(**{field: above})
    assert str(above) in str(error.value)
