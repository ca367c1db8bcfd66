"""Some of the faults that threaded publishers are tested with, at publishers of asyncio."""

from tests.integration.looped import make_publisher, make_subscriber
from tests.integration.test_faults import (
    test_a_connection_cut_again_and_again,
    test_a_lost_tail_is_repaired_through_heartbeats,
    test_a_partition_longer_than_the_buffer_reaches,
    test_publish_many_against_a_full_queue_with_raise,
    test_stall_and_resume,
)

__all__ = [
    "make_publisher",
    "make_subscriber",
    "test_a_connection_cut_again_and_again",
    "test_a_lost_tail_is_repaired_through_heartbeats",
    "test_a_partition_longer_than_the_buffer_reaches",
    "test_publish_many_against_a_full_queue_with_raise",
    "test_stall_and_resume",
]
