"""A consumer that may be killed at any time: nothing is missing in its table, nothing is twice.

`python examples/durable_consumer.py` publishes for three seconds, meanwhile kills the consumer with
SIGKILL and starts it again, over and over, and counts what is in the table.

`python examples/durable_consumer.py ENDPOINT FOLDER` is the consumer alone, for a publisher of
yours: it goes on until you kill it, and when you start it again it goes on where it was.
"""

import ctrl_c

import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import parser

import p2pmsg

SECONDS = 3.0
TABLE = """create table if not exists trades (
    session text, topic text, sequence integer, price real, primary key (session, topic, sequence)
)"""


def consume(place: str, folder: Path) -> None:
    """Put every message into a table, once.

    First the work, then the commit: a consumer that dies in between gets those messages again, and
    knows them by their sequences. In the other order they would be missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = sqlite3.connect(folder / "trades.db")
    table.execute(TABLE)
    cursor = folder / "trades.cursor"
    with p2pmsg.Subscriber(place, start="earliest", cursor=cursor) as subscriber:
        while True:
            batch = [subscriber.receive()]
            with contextlib.suppress(TimeoutError):
                while len(batch) < 1000:
                    batch.append(subscriber.receive(timeout=0))
            rows = [(f"{m.session:016x}", m.topic, m.sequence, m.value) for m in batch]
            with table:  # a transaction
                table.executemany("insert or ignore into trades values (?, ?, ?, ?)", rows)
            subscriber.commit()


def count(folder: Path) -> int:
    """Return how many messages are in the table."""
    try:
        with sqlite3.connect(folder / "trades.db") as table:
            return int(table.execute("select count(*) from trades").fetchone()[0])
    except sqlite3.OperationalError:  # there is none yet
        return 0


def main() -> int:
    """Publish, kill, start again, count."""
    kills, published = 0, 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        p2pmsg.Publisher("tcp://127.0.0.1:0") as publisher,
    ):
        folder = Path(name)
        command = [sys.executable, __file__, publisher.endpoint, name]
        with ctrl_c.held():
            consumer = subprocess.Popen(command)
        try:
            begun = time.monotonic()
            kill_at = begun + 0.5
            while (now := time.monotonic()) < begun + SECONDS:
                published += 1
                publisher.publish("trades", 61_685.99 + published)
                time.sleep(0.001)
                if now >= kill_at:
                    consumer.kill()
                    consumer.wait()
                    kills += 1
                    with ctrl_c.held():
                        consumer = subprocess.Popen(command)
                    kill_at = now + random.uniform(0.2, 0.8)
            deadline = time.monotonic() + 20.0
            while count(folder) < published and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            consumer.kill()
            consumer.wait()
        publisher.close(timeout=0)  # those who were killed would be waited for
        rows = count(folder)
    print(f"killed {kills} times; published {published}, in the table {rows}")
    return 0 if rows == published else 1


if __name__ == "__main__":
    made = parser(__doc__)
    made.add_argument("endpoint", nargs="?", help="of a publisher of yours")
    made.add_argument("folder", nargs="?", type=Path, help="for the table and the cursor")
    chosen = made.parse_args()
    if chosen.endpoint is None:
        ctrl_c.run(main)
    elif chosen.folder is None:
        made.error("ENDPOINT and FOLDER belong together")
    else:
        ctrl_c.run(consume, chosen.endpoint, chosen.folder)
