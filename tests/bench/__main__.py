"""`python -m tests.bench`: measure p2pmsg against its peers and print the table."""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from tests.bench.harness import Plan, read_stolen, say

AREAS = (
    "spine", "log", "spark", "multicast", "queue", "statsd", "reach", "packaging", "asyncio",
    "typed", "latency", "security",
)  # fmt: skip
"""Each is a module of this package with `run(plan)`, which yields rows."""

RUN_COUNT = 5
SECONDS = 1.2
QUICK_RUN_COUNT = 1
QUICK_SECONDS = 0.4


def main(arguments: list[str] | None = None) -> int:
    """Return 0, 1 where a trial failed (a bound not met is in the table), 2 for a wrong call."""
    options = _parse(arguments)
    if options.cores:
        os.sched_setaffinity(0, options.cores)  # child processes inherit them
    plan = Plan(
        run_count=options.runs or (QUICK_RUN_COUNT if options.quick else RUN_COUNT),
        seconds=QUICK_SECONDS if options.quick else SECONDS,
    )
    started, stolen_before = time.monotonic(), read_stolen()
    rows = []
    for area in options.only:
        rows += importlib.import_module(f"tests.bench.{area}").run(plan)

    from tests.bench import report

    if options.json:
        report.write_json(rows, options.json)
    print(report.render_markdown(rows))
    print(f"\n{report.name_machine()}")
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    taken, wanted = (now - then for now, then in zip(read_stolen(), stolen_before, strict=True))
    print(
        f"{plan.run_count} runs of {plan.seconds} s or more each, in {minutes} min {seconds} s; "
        f"the host took {taken / max(1, wanted):.1%} of the time of the cores"
    )
    return 1 if any(row.ok is False and row.ours is None for row in rows) else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        """One clear line instead of usage and message."""
        print(f"bench: {message}", file=sys.stderr)
        raise SystemExit(2)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", metavar="AREA", type=_area_list, default=AREAS)
    parser.add_argument("--json", metavar="FILE", type=_writable, help="write the rows there too")
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--runs", metavar="N", type=_run_count, help=f"default {RUN_COUNT}")
    parser.add_argument(
        "--cores", metavar="A,B", type=_cores, help="run everything on these; default all"
    )
    return parser.parse_args(arguments)


def _area_list(text: str) -> list[str]:
    areas = text.split(",")
    for area in areas:
        if area not in AREAS:
            raise argparse.ArgumentTypeError(f"no area {area!r}; there is {', '.join(AREAS)}")
    return areas


def _cores(text: str) -> set[int]:
    there = os.sched_getaffinity(0)
    cores = {int(core) if core.isascii() and core.isdigit() else -1 for core in text.split(",")}
    if not cores <= there:
        listed = ",".join(map(str, sorted(there)))
        raise argparse.ArgumentTypeError(f"must be some of the cores {listed}, got {text!r}")
    return cores


def _run_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 100, got {text!r}")
    return int(text)


def _writable(text: str) -> Path:
    """Find out before the measuring, not after it."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: no such folder, or a folder")
    return path


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:
        say("stopped")
        status = 130
    sys.exit(status)
