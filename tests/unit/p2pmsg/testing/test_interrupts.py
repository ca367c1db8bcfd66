"""Interrupts come where Python looks for signals, in p2pmsg's own functions."""

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.start import parse_start
from p2pmsg.testing.interrupts import Interrupted, interrupted


def test_it_comes_after_so_many_calls_or_not_at_all():
    with pytest.raises(Interrupted):
        interrupted(lambda: parse_start("earliest"), 0)
    assert interrupted(lambda: parse_start("earliest"), 100).kind == "earliest"


def test_what_is_raised_goes_through():
    with pytest.raises(ConfigError):
        interrupted(lambda: parse_start("soon"), 100)
