"""What statsd 0.9.0 flushed for the same packets, in the dialect etsy."""

from tests.unit.p2pmsg.statsd.cases import parametrize
from tests.unit.p2pmsg.statsd.flushing import run_case


@parametrize("flush_cases")
def test_the_dialect_etsy_flushes_what_statsd_does(case):
    assert run_case(case) == []


@parametrize("client_packets")
def test_what_real_clients_send_is_flushed_as_by_statsd(case):
    assert run_case(case) == []
