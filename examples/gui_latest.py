"""A slow screen that always shows the newest value of each of 200 symbols.

    a thread ── 200 symbols, as fast as it can ─▶ on_gap="latest" ─▶ a screen, 20 times a second

    python examples/gui_latest.py [SECONDS]

The screen is an asyncio program whose drawing takes 50 ms. It never gets old values first: what
came in between is folded into the newest message of each key, and counted as conflated.
"""

import ctrl_c

import asyncio
import sys
import threading
import time

from arguments import optional

import p2pmsg
from p2pmsg import aio

SYMBOLS = [f"SYM{number:03}" for number in range(200)]
COLUMNS = 10
DRAWING_S = 0.05


def publish(publisher: p2pmsg.Publisher, lasts_s: float, ended: threading.Event) -> int:
    """Publish the prices of all symbols in turn; return the last price of each."""
    end, price = time.monotonic() + lasts_s, 0
    while time.monotonic() < end and not ended.is_set():
        price += 1
        for symbol in SYMBOLS:
            publisher.publish("prices", price, key=symbol)
    publisher.flush()
    return price


def draw(newest: dict[str, int]) -> None:
    """Draw the prices in place, where this is a terminal."""
    if not sys.stdout.isatty():
        return
    cells = [f"{symbol[3:]} {newest.get(symbol, 0):>7,}" for symbol in SYMBOLS]
    rows = ["  ".join(cells[at : at + COLUMNS]) for at in range(0, len(cells), COLUMNS)]
    print("\x1b[H\x1b[2J" + "\n".join(rows), flush=True)


async def show(screen: aio.Subscriber, publishing: "asyncio.Task[int]") -> tuple[int, float]:
    """Draw until each symbol has its last price; return how often, and the worst age in ms."""
    newest: dict[str, int] = {}
    drawn, oldest_ms = 0, 0.0
    while not publishing.done() or min(newest.values(), default=0) != publishing.result():
        try:
            batch = await screen.receive_many(timeout=1.0)
        except TimeoutError:
            continue  # all prices were there before the publisher said that it has ended
        age_ms = (time.time_ns() - min(message.timestamp_ns for message in batch)) / 1e6
        newest.update((message.key or "", message.value) for message in batch)
        draw(newest)
        drawn, oldest_ms = drawn + 1, max(oldest_ms, age_ms)
        await asyncio.sleep(DRAWING_S)
    return drawn, oldest_ms


async def run(lasts_s: float) -> None:
    """Publish for so many seconds, and show it."""
    ended = threading.Event()
    with p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher:
        async with aio.Subscriber(publisher.endpoint, on_gap="latest") as screen:
            await asyncio.to_thread(publisher.wait_for_subscribers, 1, 10.0)
            publishing = asyncio.create_task(asyncio.to_thread(publish, publisher, lasts_s, ended))
            try:
                drawn, oldest_ms = await show(screen, publishing)
            finally:
                ended.set()
            stats = screen.stats()
    sent = len(SYMBOLS) * publishing.result()
    print(f"sent {sent:,} prices of {len(SYMBOLS)} symbols; drawn {drawn} times")
    print(f"each symbol shows its last price; no price was older than {oldest_ms:.0f} ms")
    print(f"delivered {stats.delivered:,}, conflated {stats.conflated:,}, lost {stats.lost}")


def main(lasts_s: float) -> None:
    """Run the screen."""
    asyncio.run(run(lasts_s))


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "SECONDS", 2.0, float))
