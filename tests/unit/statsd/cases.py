"""The real cases, where they are there."""

import json
from functools import cache
from pathlib import Path

import pytest

FILE = Path(__file__).parents[4] / "shared" / "data" / "statsd_cases.json"


@cache
def load_cases():
    if not FILE.exists():
        return {"flush_cases": [], "parse_cases": [], "client_packets": [], "mgmt_session": None}
    return json.loads(FILE.read_text(encoding="utf-8"))


def parametrize(part, name="case"):
    """One test a case; a single skipped one, saying so, where the file is not there."""
    cases = load_cases()[part]
    if not cases:
        skip = pytest.mark.skip(reason=f"{FILE} is not there")
        return pytest.mark.parametrize(name, [pytest.param(None, marks=skip)])
    return pytest.mark.parametrize(name, cases, ids=[case["id"] for case in cases])


def as_bytes(text):
    """The cases' strings are bytes, coded as Latin-1."""
    return text.encode("latin-1")
