"""Rows, the Markdown table, the JSON file and the name of the machine."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from tests.bench.harness import Contender, Plan, compare, measure_throughput, say
from tests.bench.loads import TrialError

PERCENTILES = {"median": 0.5, "99th percentile": 0.99, "99.9th percentile": 0.999}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Where it is `against_peer`, `bound`, `aim` and `spread` are about the ratio ours / peer, else
    about `ours`. `ok` is None where nothing could be measured; `note` then says why.
    """

    area: str
    what: str
    ours: float | None
    peer: float | None
    ratio: float | None
    bound: float
    aim: float
    ok: bool | None
    unit: str
    spread: tuple[float, float] | None
    lower_is_better: bool = False
    against_peer: bool = True
    note: str = ""


@dataclass(frozen=True)
class Goal:
    """What a row is about and what it must reach."""

    area: str
    what: str
    unit: str
    bound: float
    aim: float
    lower_is_better: bool = False
    against_peer: bool = True

    def is_met(self, figure: float) -> bool:
        return figure <= self.bound if self.lower_is_better else figure >= self.bound

    def compared(
        self, ours: Callable[[], float], peer: Callable[[], float], run_count: int, note: str = ""
    ) -> Row:
        """Compare; a row of the medians, and of median and spread of the adjacent ratios."""
        comparison = compare(self.what, ours, peer, run_count)
        return self.between(comparison.ours, comparison.peers, note)

    def raced(
        self,
        ours: Contender,
        peer: Contender,
        plan: Plan,
        *,
        load: str = "small",
        subscribers: int = 1,
        scale: float = 1.0,
    ) -> Row:
        """Compare throughputs; `scale` makes the row's unit of messages a second."""

        def rate(contender: Contender) -> float:
            return measure_throughput(contender, load, subscribers, plan) * scale

        return self.compared(lambda: rate(ours), lambda: rate(peer), plan.run_count)

    def between(self, ours: Sequence[float], peers: Sequence[float], note: str = "") -> Row:
        """Compare figures of adjacent trials, in the order in which they ran."""
        ratios = [our / peer for our, peer in zip(ours, peers, strict=True)]
        ratio = statistics.median(ratios)
        return Row(
            **asdict(self),
            ours=statistics.median(ours),
            peer=statistics.median(peers),
            ratio=ratio,
            ok=self.is_met(ratio),
            spread=(min(ratios), max(ratios)),
            note=note,
        )

    def measured(self, figures: Sequence[float], note: str = "") -> Row:
        """A row that has a bound of its own and no peer."""
        ours = statistics.median(figures)
        return Row(
            **asdict(self),
            ours=ours,
            peer=None,
            ratio=None,
            ok=self.is_met(ours),
            spread=(min(figures), max(figures)),
            note=note,
        )

    def missing(self, reason: str, ok: bool | None = None) -> Row:
        """A row without figures; `ok` is False where a trial failed."""
        return Row(
            **asdict(self), ours=None, peer=None, ratio=None, ok=ok, spread=None, note=reason
        )

    def guarded(self, measure: Callable[[], Row]) -> Row:
        """A failed trial is a row that says so, and the next row is measured all the same."""
        try:
            return measure()
        except TrialError as error:
            say(f"{self.what}: {error}")
            return self.missing(f"trial failed: {error}", ok=False)


def compare_percentiles(
    what: str,
    goals: Mapping[str, Goal],
    ours: Callable[[], Sequence[int]],
    peer: Callable[[], Sequence[int]],
    run_count: int,
) -> Iterator[Row]:
    """Yield a row for each percentile, all of the same trials, ours and the peer's in turn.

    `goals` are by name, as in `PERCENTILES`; a trial returns ages in ns, and the rows are in µs.
    """
    trials: tuple[list[list[int]], ...] = [], []
    try:
        for number in range(run_count):
            pair = sorted(ours()), sorted(peer())
            for side, ages in zip(trials, pair, strict=True):
                side.append(ages)
            pairs = [
                f"{name} {_at(trials[0][-1], share):.0f} and {_at(trials[1][-1], share):.0f} µs"
                for name, share in PERCENTILES.items()
            ]
            say(f"{what}, run {number + 1} of {run_count}: {', '.join(pairs)}")
    except TrialError as error:
        say(f"{what}: {error}")
        yield from (goal.missing(f"trial failed: {error}", ok=False) for goal in goals.values())
        return
    for name, goal in goals.items():
        yield goal.between(*([_at(ages, PERCENTILES[name]) for ages in side] for side in trials))


def _at(ages: Sequence[int], share: float) -> float:
    return ages[int(len(ages) * share)] / 1e3


def rate_goal(area: str, what: str, bound: float, aim: float, unit: str = "msg/s") -> Goal:
    """A goal against a peer, the higher the better."""
    return Goal(area, what, unit, bound, aim)


def duty_goal(area: str, what: str, bound: float, aim: float, unit: str) -> Goal:
    """A goal with a bound of its own, the lower the better."""
    return Goal(area, what, unit, bound, aim, lower_is_better=True, against_peer=False)


def write_json(rows: Sequence[Row], path: Path) -> None:
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


def render_markdown(rows: Sequence[Row]) -> str:
    """The table, and beneath it the notes."""
    titles = ("what", "ours", "peer", "ratio (spread)", "bound", "aim", "met")
    cells = [titles, *(_format_row(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    subjects: dict[str, list[str]] = {}
    for row in rows:
        subjects.setdefault(row.note, []).append(row.what)
    notes = [f"- {'; '.join(whats)}: {note}" for note, whats in subjects.items() if note]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _format_row(row: Row) -> tuple[str, ...]:
    limit = "≤" if row.lower_is_better else "≥"
    unit = " ×" if row.against_peer else f" {row.unit}"
    spread = f" ({row.spread[0]:.2f} to {row.spread[1]:.2f})" if row.spread else ""
    return (
        row.what,
        _format_figure(row.ours, row.unit, "" if row.against_peer else spread),
        _format_figure(row.peer, row.unit),
        "–" if row.ratio is None else f"{row.ratio:.2f} ×{spread}",
        f"{limit} {row.bound:g}{unit}",
        f"{limit} {row.aim:g}{unit}",
        {True: "yes", False: "**no**", None: "–"}[row.ok],
    )


def _format_figure(figure: float | None, unit: str, spread: str = "") -> str:
    if figure is None:
        return "–"
    if figure >= 1e6:
        text = f"{figure / 1e6:.2f} M"
    elif figure >= 1e4:
        text = f"{figure / 1e3:.0f} k"
    else:
        text = f"{figure:.4g}"
    return f"{text} {unit}{spread}"


def name_machine() -> str:
    """One line that says what the figures were measured on."""
    import zmq

    from p2pmsg.native import NAME

    versions = [f"p2pmsg {NAME}", f"pyzmq {zmq.__version__}", f"libzmq {zmq.zmq_version()}"]
    versions += [f"{package} {_version(package)}" for package in ("msgpack", "eclipse-zenoh")]
    system = f"{platform.system()} {platform.release()}"
    return (
        f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores, {system}, "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
