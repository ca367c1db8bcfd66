"""The other faults that threaded publishers are tested with, at publishers of asyncio."""

import pytest

from tests.integration.looped import make_publisher, make_subscriber
from tests.integration.test_faults import (
    test_a_killed_subscriber_harms_nobody,
    test_a_partition_that_ends,
    test_a_reader_slower_than_the_publisher_sets_the_pace,
    test_a_slow_reader_within_the_buffer_loses_nothing,
    test_a_topic_that_began_during_a_partition,
    test_drop_never_waits,
    test_latency_changes_nothing,
    test_lost_frames_are_repaired,
    test_raise_refuses_and_the_refused_may_be_tried_again,
    test_several_subscribers_each_lose_something_else,
)

__all__ = [
    "make_publisher",
    "make_subscriber",
    "test_a_killed_subscriber_harms_nobody",
    "test_a_partition_that_ends",
    "test_a_reader_slower_than_the_publisher_sets_the_pace",
    "test_a_slow_reader_within_the_buffer_loses_nothing",
    "test_a_topic_that_began_during_a_partition",
    "test_drop_never_waits",
    "test_latency_changes_nothing",
    "test_lost_frames_are_repaired",
    "test_raise_refuses_and_the_refused_may_be_tried_again",
    "test_several_subscribers_each_lose_something_else",
]

pytestmark = pytest.mark.long
