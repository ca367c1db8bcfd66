"""What threaded relays are tested with, at relays of asyncio."""

import pytest

from tests.integration.looped import make_relay
from tests.integration.test_relay import (
    test_a_durable_subscriber_goes_on_at_a_relay,
    test_a_loop_is_noticed_and_refused,
    test_a_multicast_is_relayed_over_tcp,
    test_a_slow_subscriber_of_a_relay_does_not_hold_up_the_others,
    test_closing_reports_an_fsync_that_failed_before,
    test_closing_waits_for_those_who_miss_something,
    test_garbage_does_not_stop_a_relay,
    test_late_joiners_of_a_relay_begin_where_they_want,
    test_messages_go_through_in_spite_of_a_loop,
    test_one_relay_has_several_publishers_and_sees_new_ones,
    test_relays_stand_one_after_another,
    test_what_the_publisher_has_forgotten_comes_from_the_relay,
)

__all__ = [
    "make_relay",
    "test_a_durable_subscriber_goes_on_at_a_relay",
    "test_a_loop_is_noticed_and_refused",
    "test_a_multicast_is_relayed_over_tcp",
    "test_a_slow_subscriber_of_a_relay_does_not_hold_up_the_others",
    "test_closing_reports_an_fsync_that_failed_before",
    "test_closing_waits_for_those_who_miss_something",
    "test_garbage_does_not_stop_a_relay",
    "test_late_joiners_of_a_relay_begin_where_they_want",
    "test_messages_go_through_in_spite_of_a_loop",
    "test_one_relay_has_several_publishers_and_sees_new_ones",
    "test_relays_stand_one_after_another",
    "test_what_the_publisher_has_forgotten_comes_from_the_relay",
]

pytestmark = pytest.mark.long
