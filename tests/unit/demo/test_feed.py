import gzip
from pathlib import Path

import msgspec
import pytest

from examples.demo.feed import LINE_BYTES_MAX, FeedError, read_feed

TRADE_LINE = (
    b'{"kind":"trade","symbol":"BTCUSDT","timestamp_ns":5,"received_ns":6,"id":7,'
    b'"price":10.25,"size":0.5,"sell":true}'
)
QUOTE_LINE = (
    b'{"kind":"quote","symbol":"ETHUSDT","timestamp_ns":8,"received_ns":9,"id":10,'
    b'"bid":1.0,"bid_size":2.0,"ask":3.0,"ask_size":4.0}'
)


def trade_line(**changes: object) -> bytes:
    """The good trade with some fields changed; None takes a field away."""
    fields = msgspec.json.decode(TRADE_LINE) | changes
    return msgspec.json.encode({key: value for key, value in fields.items() if value is not None})


@pytest.fixture
def write_feed(tmp_path):
    def write(data: bytes) -> Path:
        path = tmp_path / "feed"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_feed_is_recognised_by_its_first_bytes_and_keeps_its_lines(write_feed, pack):
    data = TRADE_LINE + b"\n\n  " + QUOTE_LINE + b"\r\n" + TRADE_LINE  # no newline at the end

    events = list(read_feed(write_feed(pack(data))))

    assert [event.line for event in events] == [TRADE_LINE, QUOTE_LINE, TRADE_LINE]
    assert [event.kind for event in events] == ["trade", "quote", "trade"]
    assert [event.symbol for event in events] == ["BTCUSDT", "ETHUSDT", "BTCUSDT"]
    assert [event.timestamp_ns for event in events] == [5, 8, 5]


MALFORMED = {
    "cut off": TRADE_LINE[:-5],
    "an array": b"[1, 2]",
    "not UTF-8": TRADE_LINE.replace(b"BTC", b"\xff\xfe\xfd"),
    "NaN": TRADE_LINE.replace(b"10.25", b"NaN"),
    "no kind": trade_line(kind=None),
    "unknown kind": trade_line(kind="book"),
    "price is text": trade_line(price="10.25"),
    "negative size": trade_line(size=-1),
    "timestamp past 64 bits": trade_line(timestamp_ns=2**63),
    "no price": trade_line(price=None),
    "too long": TRADE_LINE[:-1] + b" " * LINE_BYTES_MAX + b"}",
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_named_with_file_and_line(write_feed, line):
    path = write_feed(TRADE_LINE + b"\n" + line + b"\n" + TRADE_LINE)
    events = read_feed(path)

    assert next(events).line == TRADE_LINE
    with pytest.raises(FeedError) as caught:
        next(events)

    assert caught.value.path == str(path)
    assert caught.value.line_number == 2
    assert str(caught.value).startswith(f"{path}, line 2: ")
