"""`p2pmsg demo`: a market feed from a publisher to two subscribers and into Spark."""

import argparse
import os
from importlib import import_module
from importlib.util import find_spec

from p2pmsg.cli.arguments import count, input_file, number, output_file
from p2pmsg.cli.command import OneOf, UsageError, cannot, command, flag, option

_TRADES = 200_000


def _log_directory(text: str) -> str:
    """Return the directory; it must hold nothing yet, since the demo begins at the beginning."""
    try:
        if os.path.exists(text) and os.listdir(text):
            raise UsageError(f"{text!r} must be new or empty")
    except OSError as error:
        raise UsageError(cannot("read", text, error)) from None
    return text


@command(
    "demo",
    OneOf((
        option("--input", "play this file of JSON lines, gzip or plain (default: a random walk)",
               "FILE", input_file),
        option("--trades", f"how many trades the random walk has (default {_TRADES:,})", "N",
               count(1), default=_TRADES),
    )),
    option("--seconds", "play the feed within so many seconds, or longer where that would be more "
           "than 35,000 messages a second (default 6)", "S",
           number(0.1, 1e9), default=6.0),
    option("--output", "write the bars as CSV", "FILE", output_file),
    flag("--json", "print one JSON object at the end, nothing else"),
    option("--log", "keep the publisher's log in this directory, kill the publisher midway and "
           "start it again", "DIR", _log_directory),
    flag("--no-spark", "leave Spark out"),
)  # fmt: skip
def demo(arguments: argparse.Namespace) -> int:
    """Play a market feed to two subscribers and into Spark.

    A publisher process plays trades and quotes over UDP multicast. Two processes subscribe: fast,
    and slow, which reads slowly for a while. The kernel drops 5 % of the datagrams of each. A Spark
    query makes one-second bars (open, high, low, close, volume) of the trades. With a log, the
    publisher is killed midway and started again. At the end the ledger of each subscriber is
    printed, and the bars, compared with those computed directly from the input. Without Java or the
    extra `spark` it runs all but Spark, and says so.

    For example:
      p2pmsg demo
      p2pmsg demo --input market.jsonl.gz --output bars.csv
      p2pmsg demo --no-spark --trades 20000 --json
      p2pmsg demo --log demo.log
    """
    # Not above: each other command would load it, too.
    place = "p2pmsg.demo" if find_spec("p2pmsg.demo") else "examples.demo"  # a wheel, or a clone
    status: int = import_module(f"{place}.command").main(arguments)
    return status
