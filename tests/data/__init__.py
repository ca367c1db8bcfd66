"""Where tests find their data: small files of ours here, large ones of others in ../shared/data."""

import csv
from pathlib import Path

import msgspec
import pytest

from examples.demo.bars import Bar

OURS = Path(__file__).parent
SHARED = OURS.parents[2] / "shared" / "data"


def ours(name):
    """Return the path of a file of ours, which is always there."""
    return OURS / name


def shared(name):
    """Return the path of a file of others; skip where it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name} is not there")
    return path


def shared_or_ours(name):
    """Return the path of a file of others, or where it is not there of the small one of ours."""
    path = SHARED / name
    return path if path.exists() else ours(name)


def read_bars(path):
    """Return the bars of a CSV file that the demo has written."""
    with open(path, encoding="utf-8", newline="") as file:
        return [msgspec.convert(row, Bar, strict=False) for row in csv.DictReader(file)]
