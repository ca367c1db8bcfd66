"""What threaded publishers of sealed multicasts are tested with, at those of asyncio."""

import pytest

from tests.integration.looped import make_publisher, make_subscriber
from tests.integration.test_udp_revoked import (
    test_a_subscriber_takes_from_a_group_only_what_its_publisher_may_publish,
    test_who_is_revoked_reads_nothing_more_of_a_sealed_multicast,
)
from tests.integration.test_udp_sealed import (
    endpoint,
    pair,
    test_a_rotation_while_messages_flow_loses_nothing,
    test_a_socket_that_joined_the_group_sees_no_content,
    test_a_subscriber_that_is_not_known_gets_nothing_and_an_error,
    test_replayed_and_forged_datagrams_change_no_ledger,
    test_two_subscribers_with_keys_read_all_although_datagrams_are_lost,
    test_what_strangers_send_to_the_publisher_is_dropped,
    test_who_loses_the_right_to_all_topics_loses_the_keys,
)

__all__ = [
    "endpoint",
    "make_publisher",
    "make_subscriber",
    "pair",
    "test_a_rotation_while_messages_flow_loses_nothing",
    "test_a_socket_that_joined_the_group_sees_no_content",
    "test_a_subscriber_takes_from_a_group_only_what_its_publisher_may_publish",
    "test_a_subscriber_that_is_not_known_gets_nothing_and_an_error",
    "test_replayed_and_forged_datagrams_change_no_ledger",
    "test_two_subscribers_with_keys_read_all_although_datagrams_are_lost",
    "test_what_strangers_send_to_the_publisher_is_dropped",
    "test_who_is_revoked_reads_nothing_more_of_a_sealed_multicast",
    "test_who_loses_the_right_to_all_topics_loses_the_keys",
]

pytestmark = pytest.mark.long
