import pytest

from recovery import (
    ReceiverConfig,
)


@pytest.mark.parametrize(
    ("field", "value"), [("deadline", 0.0), ("deadline", float("nan")), ("reorder_bytes_max", -1)]
)
def test_a_setting_out_of_its_limits_is_named(field, value):
    with pytest.raises(ValueError, match=rf"{field} must .*{value}"):
        ReceiverConfig(**{field: value})
