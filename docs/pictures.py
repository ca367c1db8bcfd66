"""Draw what a command shows on a terminal, as an SVG that plays.

`python docs/pictures.py` draws all pictures of the README and the guide again, each
from a run of the real command. It needs `pip install 'p2pmsg[docs]'` (pyte, a terminal in Python).
"""

import argparse
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pyte

FOLDER = Path(__file__).parent / "pictures"
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
FRAME_SECONDS, PLAYED_SECONDS, LAST_SECONDS = 0.5, 20.0, 6.0
COLOURS = {
    "default": "#d6deeb", "red": "#ef5350", "green": "#7ee787", "brown": "#e6c07b",
    "blue": "#82aaff", "magenta": "#c792ea", "cyan": "#7fdbca", "white": "#ffffff",
    "black": "#637777",
}  # fmt: skip
PROMPT_SECONDS = 0.8
SEND_METRICS = """
import random
import socket
import time

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    while True:
        load = round(random.gauss(80, 12))
        line = b"page.views:1|c\\npage.load:%d|ms\\nusers:%d|g" % (load, 400 + load)
        client.sendto(line, ("127.0.0.1", 8125))
        time.sleep(0.004)
"""
WRITE_LOG = """
import p2pmsg

with p2pmsg.Publisher("tcp://127.0.0.1:0", name="prices", log=p2pmsg.LogConfig("prices")) as prices:
    for number in range(20_000):
        at_ns = 1_790_000_000_000_000_000 + number * 1_000_000
        prices.publish("trades", {"id": number, "price": 61_686}, timestamp_ns=at_ns)
        prices.publish("quotes.BTCUSDT", [61_685.98, 61_686.0], timestamp_ns=at_ns)
"""
SEND_FEED = """
import time
import p2pmsg

with p2pmsg.Publisher("udp://239.1.1.1:5000?interface=127.0.0.1&loopback=1", name="prices") as feed:
    for number in range(1_000_000):
        feed.publish("trades" if number % 4 else "quotes", b"61685.99 " * 4)
        if number % 50 == 0:
            time.sleep(0.005)
"""


class Picture(NamedTuple):
    """What is typed, line by line; the terminal's size; what is done before, unseen."""

    typed: tuple[str, ...]
    columns: int = 96
    rows: int = 36
    before: str = ""


PICTURES = {
    "demo": Picture(("p2pmsg demo",), columns=110),
    "pub_sub": Picture(
        (
            "p2pmsg sub tcp://127.0.0.1:5556 trades --json --stats --count 3 &",
            "echo 61685.99 | p2pmsg pub tcp://127.0.0.1:5556 trades",
            "seq 61686 61687 | p2pmsg pub tcp://127.0.0.1:5556 trades",
        ),
        columns=100,
    ),
    "log": Picture(
        (
            "p2pmsg log ls prices",
            "p2pmsg log dump prices trades --from 17 --count 2",
            "p2pmsg log verify prices",
        ),
        columns=156,
        before=f"python -c '{WRITE_LOG}'",
    ),
    "listen": Picture(
        ("p2pmsg listen 'udp://239.1.1.1:5000?interface=127.0.0.1' --seconds 5",),
        before=f"python -c '{SEND_FEED}' & sleep 1",
    ),
    "statsd": Picture(
        ("timeout 12 p2pmsg statsd --interval 2",),
        columns=110,
        before=f"python -c '{SEND_METRICS}' & sleep 1",
    ),
}

Screen = tuple[tuple[tuple[str, str, bool], ...], ...]
"""The rows of a screen; a row's runs of text, with colour and whether bold."""


def play(picture: Picture, screens_max: int = 40) -> list[tuple[float, Screen]]:
    """Type the lines on a terminal; return its screens, each with the second at which it came."""
    screen = pyte.Screen(picture.columns, picture.rows)
    stream = pyte.ByteStream(screen)
    controller, terminal = pty.openpty()
    script = [f"stty cols {picture.columns} rows {picture.rows}", picture.before]
    for line in picture.typed:
        shown = shlex.quote(f"\033[1;36m$ {line}\033[0m\n".replace("%", "%%"))
        script += [f"printf {shown}", f"sleep {PROMPT_SECONDS}", line]
    script.append("sleep 1")
    folder = TemporaryDirectory(ignore_cleanup_errors=True)
    child = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, cwd=folder.name,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(picture.columns)},
    )  # fmt: skip
    os.close(terminal)
    began, frames = time.monotonic(), list[tuple[float, Screen]]()
    try:
        while time.monotonic() - began < 240:
            ready, _, _ = select.select([controller], [], [], 0.2)
            try:
                data = os.read(controller, 65_536) if ready else b""
            except OSError:  # the other end is closed
                break
            if data and not frames:
                began = time.monotonic()
            stream.feed(data)
            now = time.monotonic() - began
            if ready and (not frames or now - frames[-1][0] >= FRAME_SECONDS):
                frames.append((now, _rows(screen)))
            if not ready and child.poll() is not None:
                break
    finally:
        with suppress(ProcessLookupError):  # the rest of the session: what sends in the background
            os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        os.close(controller)
        folder.cleanup()
    frames.append((time.monotonic() - began, _rows(screen)))
    step = -(-len(frames) // screens_max)
    return [*frames[:-1:step], frames[-1]]


def _rows(screen: pyte.Screen) -> Screen:
    rows = []
    for number in range(screen.lines):
        cells = [screen.buffer[number][column] for column in range(screen.columns)]
        runs = groupby(cells, key=lambda cell: (cell.fg, cell.bold))
        rows.append(tuple(("".join(cell.data for cell in run), *style) for style, run in runs))
    return tuple(rows)


def draw(frames: list[tuple[float, Screen]], title: str, columns: int) -> str:
    """Return an SVG called `title`: the frames one after the other, again and again."""
    frames = [next(group) for _, group in groupby(frames, key=lambda frame: frame[1])]
    rows = max((_height(screen) for _, screen in frames), default=1)
    width, height = columns * CELL_WIDTH + 2 * MARGIN, rows * CELL_HEIGHT + 2 * MARGIN
    speed = max(1.0, frames[-1][0] / PLAYED_SECONDS)  # a long run is played faster
    frames = [(start / speed, screen) for start, screen in frames]
    end = frames[-1][0] + LAST_SECONDS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" role="img" aria-label="{escape(title)}">',
        "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#0b1622"/>',
    ]
    for number, (start, screen) in enumerate(frames):
        stop = frames[number + 1][0] if number + 1 < len(frames) else end
        is_last = number + 1 == len(frames)
        parts.append(f"<g{'' if is_last else ' visibility=' + chr(34) + 'hidden' + chr(34)}>")
        if len(frames) > 1:
            parts.append(_timing(start, stop, end))
        parts += [_line(row, y) for y, row in enumerate(screen[:rows]) if _text(row).strip()]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _timing(start: float, stop: float, end: float) -> str:
    """Return the element that shows a screen for its part of the loop."""
    begin, until = start / end, min(1.0, stop / end)
    values, times = ["hidden", "visible"], ["0", f"{begin:.4f}"]
    if until < 1.0:
        values.append("hidden")
        times.append(f"{until:.4f}")
    return (
        f'<animate attributeName="visibility" values="{";".join(values)}" '
        f'keyTimes="{";".join(times)}" dur="{end:.1f}s" calcMode="discrete" '
        'repeatCount="indefinite"/>'
    )


def _text(row: tuple[tuple[str, str, bool], ...]) -> str:
    return "".join(text for text, _, _ in row)


def _height(screen: Screen) -> int:
    return max((number + 1 for number, row in enumerate(screen) if _text(row).strip()), default=1)


def _line(row: tuple[tuple[str, str, bool], ...], number: int) -> str:
    y = MARGIN + number * CELL_HEIGHT + 14
    spans, column = [], 0
    for text, colour, bold in row:
        if text.strip():
            fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
            weight = ' font-weight="bold"' if bold else ""
            x = MARGIN + column * CELL_WIDTH
            spans.append(
                f'<tspan x="{x:.1f}" fill="{fill}"{weight} textLength="'
                f'{len(text.rstrip()) * CELL_WIDTH:.1f}">{escape(text.rstrip())}</tspan>'
            )
        column += len(text)
    return f'<text y="{y}">{"".join(spans)}</text>'


def main() -> None:
    """Draw the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(PICTURES)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in names or PICTURES:
        picture = PICTURES[name]
        frames = play(picture)
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(frames, "; ".join(picture.typed), picture.columns))
        print(f"{name}.svg: {len(frames)} screens, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
