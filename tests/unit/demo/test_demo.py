"""The demo's bars and its feed."""

import gzip
from pathlib import Path

import msgspec
import pytest

from examples.demo.bars import WINDOW_NS, Bar, compute_bars, write_csv
from examples.demo.feed import LINE_BYTES_MAX, FeedError, FeedEvent, random_walk, read_feed
from tests.data import ours, read_bars, shared

HEADER_LINE = "symbol,window_start_ns,open,high,low,close,volume,trades\n"


def trade(timestamp_ns: int, price: float, size: float = 1.0, symbol: str = "AAA") -> FeedEvent:
    return FeedEvent("trade", symbol, timestamp_ns, price, size)


def quote(timestamp_ns: int) -> FeedEvent:
    return FeedEvent("quote", "AAA", timestamp_ns)


def bar(symbol: str = "AAA", window: int = 0, **changes: float) -> Bar:
    fields = {"open": 1.0, "high": 2.5, "low": 0.5, "close": 2.0, "volume": 3.25, "trades": 4}
    return Bar(symbol, window * WINDOW_NS, **(fields | changes))


def test_bars_agree_with_a_naive_computation():
    events = list(random_walk(3_000, seed=3, symbols=("X", "Y")))
    rows: dict[tuple[str, int], list[tuple[int, int, float]]] = {}
    for index, event in enumerate(events):
        key = (event.symbol, event.timestamp_ns // WINDOW_NS * WINDOW_NS)
        price = msgspec.json.decode(event.line)["price"]
        rows.setdefault(key, []).append((event.timestamp_ns, index, price))

    bars = compute_bars(events)

    assert [(b.symbol, b.window_start_ns) for b in bars] == sorted(rows)
    for result in bars:
        window = sorted(rows[result.symbol, result.window_start_ns])
        prices = [price for _, _, price in window]
        naive = (prices[0], max(prices), min(prices), prices[-1], len(prices))
        assert (result.open, result.high, result.low, result.close, result.trades) == naive


@pytest.mark.parametrize(
    ("find", "count", "trades"), [(ours, 149, 600), (shared, 621, 16_253)], ids=["ours", "recorded"]
)
def test_a_feed_gives_bars_for_every_trade(find, count, trades, tmp_path):
    bars = compute_bars(read_feed(find("market.jsonl.gz")))

    assert len(bars) == count
    assert sum(b.trades for b in bars) == trades
    assert all(b.low <= min(b.open, b.close) <= max(b.open, b.close) <= b.high for b in bars)
    write_csv(bars, tmp_path / "bars.csv")
    assert read_bars(tmp_path / "bars.csv") == bars


def test_csv_is_sorted_and_prints_floats_in_one_way_only(tmp_path):
    file = tmp_path / "bars.csv"
    write_csv([bar("B"), bar("A", 2, high=61686.01), bar("A", 1, volume=1e-05)], file)

    assert file.read_bytes().decode() == HEADER_LINE + (
        "A,1000000000,1.0,2.5,0.5,2.0,0.00001000,4\n"
        "A,2000000000,1.0,61686.01,0.5,2.0,3.25000000,4\n"
        "B,0,1.0,2.5,0.5,2.0,3.25000000,4\n"
    )


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
