"""What `p2pmsg demo` does once its arguments are checked."""

import argparse
import json
import sys

from .bars import write_csv
from .plan import Source
from .report import choose_progress, render_report, summarize
from .run import run_demo


def main(arguments: argparse.Namespace) -> int:
    """Run the demo, and print its result; returns the exit status.

    It is 0 only if every ledger balances, nothing is lost and the bars are equal.
    """
    state = run_demo(
        Source(path=arguments.input, trades=arguments.trades),
        choose_progress(arguments.json),
        with_spark=not arguments.no_spark,
        log=arguments.log,
        seconds=arguments.seconds,
    )
    if arguments.output:
        write_csv(state.bars, arguments.output)
    if arguments.json:
        print(json.dumps(summarize(state)))
    else:
        print(render_report(state, arguments.output))
    if state.spark.startswith("left out:"):
        print(f"p2pmsg demo: Spark was {state.spark}", file=sys.stderr)
    for error in state.errors:
        print(f"p2pmsg demo: {error}", file=sys.stderr)
    return 1 if state.errors else 0
