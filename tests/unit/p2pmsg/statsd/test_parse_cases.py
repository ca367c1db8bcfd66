"""The real parsers' own cases: each server's dialect agrees, the default differs as listed."""

import pytest

from p2pmsg.statsd.dialect import DIALECTS, STRICT
from tests.unit.p2pmsg.statsd.cases import load_cases, parametrize
from tests.unit.p2pmsg.statsd.compare import outcome
from tests.unit.p2pmsg.statsd.differences import DIFFERENCES

NAMES = {"statsd_exporter": "exporter"}


@parametrize("parse_cases")
def test_the_dialect_of_a_server_reads_its_cases_as_it_does(case):
    dialect = DIALECTS[NAMES.get(case["dialect"], case["dialect"])]

    assert outcome(case, dialect) is None


@parametrize("parse_cases")
def test_the_default_dialect_differs_only_where_it_is_listed(case):
    difference = outcome(case, STRICT)

    reason = DIFFERENCES.get(case["id"])
    assert (difference is None) == (reason is None), difference or f"no difference: {reason}"


def test_every_listed_difference_is_a_case():
    cases = load_cases()["parse_cases"]
    if all(case["id"].startswith("ours.") for case in cases):
        pytest.skip("the cases are not there")

    assert set(DIFFERENCES) <= {case["id"] for case in cases}
