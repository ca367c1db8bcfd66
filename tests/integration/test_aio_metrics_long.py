"""What threaded clients of exact metrics are tested with, at those of asyncio."""

from types import SimpleNamespace

import pytest

from tests.integration import test_metrics_exact
from tests.integration.looped import LoopedClient
from tests.integration.test_metrics_exact import (
    test_a_client_that_is_closed_and_one_that_comes_after_it_count_together,
    test_a_client_that_sent_nothing_waits_for_nobody,
    test_a_client_that_was_killed_is_counted_as_far_as_it_came,
    test_a_relay_keeps_the_deltas_for_collectors,
    test_a_statsd_server_that_is_away_fails_no_program,
    test_all_calls_arrive_over_both_channels,
    test_closing_does_not_wait_once_the_collector_has_everything,
    test_gauges_and_totals_stand_as_they_were_after_a_restart,
    test_programs_that_are_killed_while_they_close_are_counted_or_named,
    test_short_programs_lose_nothing_though_collectors_are_killed_in_between,
    test_sums_beyond_64_bits_stay_exact,
    test_the_collector_names_a_program_that_was_killed,
    test_totals_are_exact_with_a_fifth_of_the_frames_lost_and_connections_cut,
    test_totals_go_on_exactly_after_the_collector_was_killed_again_and_again,
    test_totals_hold_what_was_sent_before_the_collector_was_there,
    test_what_a_client_with_a_log_accepted_arrives_once_however_often_it_is_killed,
    test_what_cannot_be_repeated_is_reported_with_its_range,
    test_what_is_sent_after_the_collector_went_is_counted_apart,
    test_who_only_reads_the_deltas_is_no_collector,
)

__all__ = [
    "test_a_client_that_is_closed_and_one_that_comes_after_it_count_together",
    "test_a_client_that_sent_nothing_waits_for_nobody",
    "test_a_client_that_was_killed_is_counted_as_far_as_it_came",
    "test_a_relay_keeps_the_deltas_for_collectors",
    "test_a_statsd_server_that_is_away_fails_no_program",
    "test_all_calls_arrive_over_both_channels",
    "test_closing_does_not_wait_once_the_collector_has_everything",
    "test_gauges_and_totals_stand_as_they_were_after_a_restart",
    "test_programs_that_are_killed_while_they_close_are_counted_or_named",
    "test_short_programs_lose_nothing_though_collectors_are_killed_in_between",
    "test_sums_beyond_64_bits_stay_exact",
    "test_the_collector_names_a_program_that_was_killed",
    "test_totals_are_exact_with_a_fifth_of_the_frames_lost_and_connections_cut",
    "test_totals_go_on_exactly_after_the_collector_was_killed_again_and_again",
    "test_totals_hold_what_was_sent_before_the_collector_was_there",
    "test_what_a_client_with_a_log_accepted_arrives_once_however_often_it_is_killed",
    "test_what_cannot_be_repeated_is_reported_with_its_range",
    "test_what_is_sent_after_the_collector_went_is_counted_apart",
    "test_who_only_reads_the_deltas_is_no_collector",
]

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def of_loops(monkeypatch):
    """Have the tests, and the programs that they start and kill, make clients of asyncio."""
    monkeypatch.setattr(test_metrics_exact, "metrics", SimpleNamespace(Client=LoopedClient))
    children = (*test_metrics_exact.CHILDREN, "--asyncio")
    monkeypatch.setattr(test_metrics_exact, "CHILDREN", children)
