"""Cases of ours, and the real ones, where they are there."""

import json
from functools import cache

import pytest

from tests.data import SHARED, ours

FILE = SHARED / "statsd_cases.json"


@cache
def load_cases():
    cases = json.loads(ours(FILE.name).read_text(encoding="utf-8"))
    real = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    parts = ("flush_cases", "parse_cases", "client_packets")
    found = {part: cases.get(part, []) + real.get(part, []) for part in parts}
    return found | {"mgmt_session": real.get("mgmt_session")}


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
