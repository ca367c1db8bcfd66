"""`python -m tests.bench.percentiles FILE.svg`: a picture of how old messages arrive."""

import sys
from collections.abc import Sequence
from math import log10
from pathlib import Path
from xml.sax.saxutils import escape

from tests.bench.harness import Plan
from tests.bench.latency import measure_one_way
from tests.bench.ours import OURS
from tests.bench.peers import RAW_ZMQ

RATES = (10_000, 50_000)
CONTENDERS = (("p2pmsg", OURS, "#0b6e4f"), ("raw pyzmq", RAW_ZMQ, "#b4540a"))
RUNS = 3
SHARES = tuple(1 - 10 ** (-step / 20) for step in range(6, 61))
"""The percentiles drawn: 50 % to 99.9 %, evenly by how few messages are older."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 410, 300, 68, 28, 34, 42
_LEAST_US, _MOST_US = 20, 5_000
_TICKS_US = (20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_TICKS = ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"))

Curve = tuple[str, str, Sequence[int]]
"""A name, a colour, and ages in ns."""


def measure(rate: int) -> list[Curve]:
    """Return the ages of all runs, which take turns, of each contender."""
    plan = Plan(seconds=2.0)
    ages: dict[str, list[int]] = {name: [] for name, _, _ in CONTENDERS}
    for _ in range(RUNS):
        for name, contender, _ in CONTENDERS:
            ages[name] += measure_one_way(plan, rate, contender)
    return [(name, colour, ages[name]) for name, _, colour in CONTENDERS]


def draw(panels: Sequence[tuple[str, Sequence[Curve]]]) -> str:
    """Return an SVG with a panel for each title, side by side."""
    width = _WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for number, (title, curves) in enumerate(panels):
        parts += [f'<g transform="translate({number * _WIDTH} 0)">', *_panel(title, curves), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, curves: Sequence[Curve]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for us in _TICKS_US:
        y = _y(us)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{us:,} µs</text>')
    for share, text in _TICKS:
        x = _x(share)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.1f}" y="{bottom + 34}" text-anchor="middle">of the messages are younger'
        " when they are received</text>"
    )
    for number, (name, colour, ages) in enumerate(curves):
        ordered = sorted(ages)
        points = [
            f"{_x(share):.1f},{_y(ordered[int(len(ordered) * share)] / 1e3):.1f}"
            for share in SHARES
        ]
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" '
            'stroke-width="2.5"/>'
        )
        y = _TOP + 18 + 18 * number
        parts.append(f'<path d="M{_LEFT + 12} {y - 4}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{_LEFT + 40}" y="{y}">{escape(name)}</text>')
    return parts


def _x(share: float) -> float:
    """Return where a percentile stands: as far as it is from 50 %, by the logarithm of the rest."""
    first, last = _rank(SHARES[0]), _rank(SHARES[-1])
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (_rank(share) - first) / (last - first)


def _rank(share: float) -> float:
    return -log10(1 - share)


def _y(us: float) -> float:
    us = min(max(us, _LEAST_US), _MOST_US)
    height = _HEIGHT - _BOTTOM - _TOP
    return _HEIGHT - _BOTTOM - height * log10(us / _LEAST_US) / log10(_MOST_US / _LEAST_US)


def main() -> int:
    """Measure, and write the picture."""
    if len(sys.argv) != 2:
        print("percentiles: name the file to write, such as percentiles.svg", file=sys.stderr)
        return 2
    panels = [(f"one way, {rate:,} messages a second", measure(rate)) for rate in RATES]
    Path(sys.argv[1]).write_text(draw(panels), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
