"""What `p2pmsg demo` does once its arguments are checked."""

import argparse
import json
import os
import shutil
import sys
from importlib.util import find_spec

from p2pmsg.cli.arguments import output_file
from p2pmsg.cli.command import UsageError, note

from .bars import write_csv
from .plan import Source
from .report import choose_progress, render_report, summarize
from .run import run_demo


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


def main(arguments: argparse.Namespace) -> int:
    """Run the demo, and print its result; returns the exit status."""
    # Status 0 only if every ledger balances, nothing is lost and the bars are equal. With --output
    # and Spark, also only if the picture was drawn.
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
