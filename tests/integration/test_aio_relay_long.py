"""What threaded relays are tested with, at relays of asyncio."""

import pytest

from tests.integration.looped import make_relay
from tests.integration.test_relay import (
    test_a_durable_subscriber_goes_on_at_a_relay,
    test_a_loop_is_noticed_and_refused,
    test_a_multicast_is_relayed_over_tcp,
    test_closing_waits_for_those_who_miss_something,
    test_one_relay_has_several_publishers_and_sees_new_ones,
    test_what_the_publisher_has_forgotten_comes_from_the_relay,
)

__all__ = [
    "make_relay",
    "test_a_durable_subscriber_goes_on_at_a_relay",
    "test_a_loop_is_noticed_and_refused",
    "test_a_multicast_is_relayed_over_tcp",
    "test_closing_waits_for_those_who_miss_something",
    "test_one_relay_has_several_publishers_and_sees_new_ones",
    "test_what_the_publisher_has_forgotten_comes_from_the_relay",
]

pytestmark = pytest.mark.long
