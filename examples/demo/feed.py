"""Market feeds for the demo: read from a file of JSON lines, or made by a random walk.

Pure: no clock, no global random. What is published is the line itself, byte for byte as it was
read, so that a subscriber and Spark see what the exchange's recorder wrote.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from random import Random
from typing import Annotated, BinaryIO, Literal, cast

from p2pmsg import codec
from p2pmsg.errors import P2PError

GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 1 << 20
"""A longer line is refused: it is no trade, and memory must have a bound."""

SYMBOLS = ("ADAUSDT", "BNBUSDT", "BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")
START_NS = 1_723_161_600_000_000_000
"""2024-08-09 00:00:00 UTC, the day on which the recorded feed begins."""
SPAN_MS = 180_000
"""Event time that a random walk covers: three minutes."""

_BURST_COUNT_MAX = 6


class FeedError(P2PError):
    """A feed cannot be read; says in which file and line, and what is wrong there."""

    def __init__(self, path: str, line_number: int, reason: str) -> None:
        super().__init__(f"{path}, line {line_number}: {reason}")
        self.path = path
        self.line_number = line_number
        self.reason = reason


@dataclass(slots=True)
class FeedEvent:
    """One event of a feed: a trade, or the best bid and ask, which is published and in no bar.

    `line` is the JSON text that is published, and the symbol its key.
    """

    kind: Literal["trade", "quote"]
    symbol: Annotated[str, codec.Meta(min_length=1)]
    timestamp_ns: Annotated[int, codec.Meta(ge=0, le=(1 << 63) - 1)]
    price: float = 0.0
    size: Annotated[float, codec.Meta(ge=0)] = 0.0
    line: bytes = b""


def parse_line(line: bytes) -> FeedEvent:
    """Return the event of a line; `CodecError`: it is none."""
    fields = codec.json_decode(line)
    event: FeedEvent = codec.convert(fields, FeedEvent)
    if event.kind == "trade" and not fields.keys() >= {"price", "size"}:
        raise codec.CodecError("a trade has a price and a size")
    event.line = line
    return event


def read_feed(path: str | PathLike[str]) -> Iterator[FeedEvent]:
    """Yield the events of a file of JSON lines, gzip or plain, in the order of the file.

    Gzip is recognised by the first bytes, not by the name. Blank lines are skipped; the first line
    that is no event raises `FeedError`.
    """
    name = fspath(path)
    line_number = 0
    try:
        with open(name, "rb") as plain:
            is_gzip = plain.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            plain.seek(0)
            lines = cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if is_gzip else plain
            while line := lines.readline(LINE_BYTES_MAX + 1):
                line_number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise FeedError(name, line_number, f"longer than {LINE_BYTES_MAX} bytes")
                line = line.strip()
                if line:
                    yield parse_line(line)
    except (codec.CodecError, UnicodeDecodeError) as error:
        raise FeedError(name, line_number, str(error)) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FeedError(name, line_number + 1, f"gzip data is damaged: {error}") from error


def random_walk(
    count: int = 200_000,
    seed: int = 1,
    symbols: Sequence[str] = SYMBOLS,
    start_ns: int = START_NS,
) -> Iterator[FeedEvent]:
    """Yield `count` trades whose prices walk at random; the same seed gives the same bytes.

    Trades come in bursts of one symbol and one millisecond, as when one large order meets many
    small ones, so open and close cannot go by the timestamp alone. Timestamps never decrease.
    """
    rng = Random(seed)
    draw = rng.random
    encode = codec.json_encode
    # Whole cents and 1e-5 lots, divided once: each float is the one nearest to its decimal.
    prices_cents = {symbol: int(10 ** (3 + draw() * 3.8)) for symbol in symbols}
    index = 0
    while index < count:
        symbol = symbols[int(draw() * len(symbols))]
        timestamp_ns = start_ns + index * SPAN_MS // count * 1_000_000
        price_cents = prices_cents[symbol]
        sell = draw() < 0.5
        burst_end = min(count, index + 1 + int(draw() * _BURST_COUNT_MAX))
        step_cents = 1 + price_cents // 20_000
        while index < burst_end:
            price_cents = max(1, price_cents + int((draw() * 2 - 1) * (step_cents + 1)))
            price, size = price_cents / 100, (1 + int(draw() * draw() * 500_000)) / 100_000
            fields = {
                "kind": "trade",
                "symbol": symbol,
                "timestamp_ns": timestamp_ns,
                "received_ns": timestamp_ns + 100_000 + int(draw() * 900_000),
                "id": index,
                "price": price,
                "size": size,
                "sell": sell,
            }
            yield FeedEvent("trade", symbol, timestamp_ns, price, size, encode(fields))
            index += 1
        prices_cents[symbol] = price_cents
