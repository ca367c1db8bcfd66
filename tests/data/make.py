"""Make the files of this folder again: `python -m tests.data.make`."""

import gzip
import json
import struct
from random import Random

from examples.demo.feed import random_walk
from tests.data import ours

TRADES, QUOTES_PER_TRADE = 600, 3
ITCH_MESSAGES = 1200


def market():
    """Trades of a random walk of two symbols, three quotes around each."""
    rng, identity = Random(17), 0
    for event in random_walk(TRADES, seed=17, symbols=("AAAUSD", "BBBUSD")):
        trade = json.loads(event.line)
        for _ in range(QUOTES_PER_TRADE):
            identity += 1
            price = trade["price"]
            yield {
                "kind": "quote", "symbol": event.symbol, "timestamp_ns": event.timestamp_ns,
                "received_ns": event.timestamp_ns, "id": identity,
                "bid": round(price - 0.01, 2), "bid_size": round(rng.uniform(0.1, 9.0), 4),
                "ask": round(price + 0.01, 2), "ask_size": round(rng.uniform(0.1, 9.0), 4),
            }  # fmt: skip
        yield trade


def itch():
    """Orders added, executed and deleted, with the lengths of NASDAQ TotalView-ITCH 5.0."""
    rng, now_ns = Random(50), 34_200 * 10**9
    for number in range(ITCH_MESSAGES):
        now_ns += rng.randrange(1, 10**6)
        head = struct.pack("!HH", 1 + number % 7, 0) + now_ns.to_bytes(6, "big")
        order = struct.pack("!Q", number // 3)
        kind = "AED"[number % 3]
        if kind == "A":
            side, shares = rng.choice((b"B", b"S")), rng.randrange(1, 1000)
            price = rng.randrange(10_000, 10_000_000)
            yield b"A" + head + order + struct.pack("!cI8sI", side, shares, b"TEST    ", price)
        elif kind == "E":
            yield b"E" + head + order + struct.pack("!IQ", 1, number)
        else:
            yield b"D" + head + order


def main():
    """Write the files."""
    lines = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in market())
    ours("market.jsonl.gz").write_bytes(gzip.compress(lines, 9, mtime=0))
    records = b"".join(struct.pack("!H", len(one)) + one for one in itch())
    ours("itch50-simulated.bin").write_bytes(records)


if __name__ == "__main__":
    main()
