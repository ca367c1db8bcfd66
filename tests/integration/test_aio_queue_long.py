"""What threaded pushers and pullers are tested with, at those of asyncio."""

import pytest

from tests.integration.looped import make_puller, make_pusher
from tests.integration.test_queue import (
    make_worker,
    test_a_busy_worker_keeps_its_job_beyond_ack_timeout,
    test_a_job_that_hangs_is_given_to_another,
    test_a_killed_worker_gives_its_job_back_at_once,
    test_a_puller_that_closes_gives_everything_back,
    test_a_silent_worker_gives_its_job_back_after_ack_timeout,
    test_a_worker_that_rejects_everything_is_stopped,
    test_cut_connections_lose_nothing,
    test_garbage_and_lies_change_nothing,
    test_jobs_of_one_key_are_in_one_hand_at_a_time,
    test_no_job_waits_for_a_slow_worker_while_another_is_idle,
    test_one_puller_serves_several_pushers,
)
from tests.integration.test_queue_strangers import (
    make_holder,
    test_a_delay_of_centuries_is_cut,
    test_twenty_who_only_hold_do_not_keep_the_jobs,
    test_what_an_idle_program_has_is_asked_back_and_that_is_no_offence,
)

__all__ = [
    "make_holder",
    "make_puller",
    "make_pusher",
    "make_worker",
    "test_a_busy_worker_keeps_its_job_beyond_ack_timeout",
    "test_a_delay_of_centuries_is_cut",
    "test_a_job_that_hangs_is_given_to_another",
    "test_a_killed_worker_gives_its_job_back_at_once",
    "test_a_puller_that_closes_gives_everything_back",
    "test_a_silent_worker_gives_its_job_back_after_ack_timeout",
    "test_a_worker_that_rejects_everything_is_stopped",
    "test_cut_connections_lose_nothing",
    "test_garbage_and_lies_change_nothing",
    "test_jobs_of_one_key_are_in_one_hand_at_a_time",
    "test_no_job_waits_for_a_slow_worker_while_another_is_idle",
    "test_one_puller_serves_several_pushers",
    "test_twenty_who_only_hold_do_not_keep_the_jobs",
    "test_what_an_idle_program_has_is_asked_back_and_that_is_no_offence",
]

pytestmark = pytest.mark.long
