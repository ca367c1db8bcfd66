"""Fixtures for tests of logs."""

import pytest

from recovery.log import opening


@pytest.fixture(autouse=True)
def reserve(monkeypatch):
    """Sequences that are reserved at a time; tests of crashes change it: fewer are skipped then."""
    monkeypatch.setattr(opening, "RESERVE", opening.RESERVE)
