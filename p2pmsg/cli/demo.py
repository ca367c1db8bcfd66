"""`p2pmsg demo`: a market feed from a publisher to two subscribers and into Spark."""

import argparse
import json
import os
import shutil
import sys
from importlib.util import find_spec

from p2pmsg.cli.arguments import count, input_file, output_file, seconds
from p2pmsg.cli.command import OneOf, UsageError, command, flag, note, option
from p2pmsg.demo.bars import write_csv
from p2pmsg.demo.plan import FEED_SECONDS, MESSAGES_PER_S_MAX, TRANSPORTS, Source
from recovery.durable import require_folder

_TRADES = 200_000
_SECONDS_MIN = 0.1


def _feed_seconds(text: str) -> float:
    """Return how long the feed takes; with less time no fault would occur."""
    number = seconds(text)
    if number < _SECONDS_MIN:
        raise argparse.ArgumentTypeError(f"must be {_SECONDS_MIN:g} seconds at least, not {text!r}")
    return number


def _log_directory(text: str) -> str:
    """Return the directory; it must hold nothing yet, since the demo begins at the beginning."""
    try:
        require_folder(os.path.dirname(os.path.abspath(text)))
        found = os.listdir(text) if os.path.exists(text) else []
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from None
    if found:
        raise argparse.ArgumentTypeError(f"{text!r} must be new or empty, and holds {found[0]!r}")
    return text


def _transport(arguments: argparse.Namespace) -> str:
    """Return the transport of the feed."""
    chosen: str | None = arguments.transport
    if arguments.secure and chosen == "udp":
        raise UsageError("--secure goes with --transport tcp")
    return chosen or ("udp" if arguments.log is None and not arguments.secure else "tcp")


def _require_picture() -> None:
    """Raise `UsageError` where Spark, or what draws its bars, is missing."""
    missing = [name for name in ("matplotlib", "pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        lacks = f"the package {missing[0]}: pip install 'p2pmsg[plot,spark]'"
    elif not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        lacks = "Java 17 or newer"
    else:
        return
    raise UsageError(
        f"--output draws Spark's bars too, which needs {lacks}; --no-spark writes the CSV alone"
    )


def _written_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0


@command(
    "demo",
    OneOf((
        option("--input", "play this file of JSON lines, gzip or plain (default: a random walk)",
               "FILE", input_file),
        option("--trades", f"how many trades the random walk has (default {_TRADES:,})", "N",
               count(1), default=_TRADES),
    )),
    option("--seconds", "play the feed within so many seconds, or longer where that would be more "
           f"than {MESSAGES_PER_S_MAX:,} messages a second (default {FEED_SECONDS:g})", "S",
           _feed_seconds, default=FEED_SECONDS),
    option("--output", "write the bars as CSV, and a picture of Spark's (FILE.png; needs the "
           "extras plot and spark; with --no-spark there is none)", "FILE", output_file),
    flag("--json", "print one JSON object at the end, nothing else"),
    option("--log", "keep the publisher's log in this directory, kill the publisher midway and "
           "start it again", "DIR", _log_directory),
    option("--transport", "how the feed is sent: udp, by multicast (default with the extra udp), "
           "or tcp (default without it, with --log and with --secure)", choices=TRANSPORTS),
    flag("--no-spark", "leave Spark out"),
    flag("--secure", "over TCP: encrypt all connections, with fresh keys, and let nobody else "
         "connect; Spark is left out"),
)  # fmt: skip
def demo(arguments: argparse.Namespace) -> int:
    """Play a market feed to two subscribers and into Spark.

    A publisher process plays trades and quotes over UDP multicast. Two processes subscribe: fast,
    and slow, which reads slowly for a while. The kernel drops 5 % of the datagrams of each. (Over
    TCP, with --transport tcp, slow's connection is cut every second instead.) A Spark query makes
    one-second bars (open, high, low, close, volume) of the trades. With a log, the publisher is
    killed midway and started again. At the end the ledger of each subscriber is printed, and the
    bars, compared with those computed directly from the input. Without Java or the extra `spark`
    it runs all but Spark, and says so.

    For example:
      p2pmsg demo
      p2pmsg demo --input market.jsonl.gz --output bars.csv
      p2pmsg demo --no-spark --trades 20000 --json
      p2pmsg demo --transport tcp
      p2pmsg demo --secure
      p2pmsg demo --log demo.log
    """
    # Status 0 only if every ledger balances, nothing is lost and the bars are equal. With --output
    # and Spark, also only if the picture was drawn.
    # Not above: each other command would load the proxy and the simulator with it.
    from p2pmsg.cli.demo_report import choose_progress, render_report, summarize
    from p2pmsg.demo.run import run_demo

    progress = choose_progress(arguments.json)
    source = Source(path=arguments.input, trades=arguments.trades)
    transport = _transport(arguments)
    with_spark = not (arguments.no_spark or arguments.secure)
    picture, before = None, 0
    if arguments.output and with_spark:
        _require_picture()
        try:
            picture = output_file(f"{arguments.output}.png")
        except argparse.ArgumentTypeError as refused:
            raise UsageError(f"--output: {refused}") from refused
        before = _written_ns(picture)
    state = run_demo(
        source,
        progress,
        with_spark=with_spark,
        log=arguments.log,
        transport=transport,
        seconds=arguments.seconds,
        picture=picture,
        secure=arguments.secure,
    )
    if arguments.output:
        write_csv(state.bars, arguments.output)
    if picture is not None and _written_ns(picture) == before:  # an old one is not the new one
        state.errors.append(f"the picture {picture!r} was not drawn: Spark {state.spark}")
    if arguments.json:
        print(json.dumps(summarize(state)))
    else:
        print(render_report(state, arguments.output))
        if picture is not None and _written_ns(picture) != before:
            print(f"a picture of Spark's bars is {picture}")
    sys.stdout.flush()
    if state.spark.startswith("left out:"):
        note("demo", f"Spark was {state.spark}")
    for error in state.errors:
        note("demo", error)
    return 1 if state.errors else 0
