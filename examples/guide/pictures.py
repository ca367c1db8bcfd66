"""Draw what a command shows on a terminal, as an SVG that plays.

`python examples/guide/pictures.py` draws all pictures of the README and the guide again, each
from a run of the real command. It needs `pip install 'p2pmsg[docs]'` (pyte, a terminal in Python).
"""

import argparse
import os
import pty
import select
import signal
import subprocess
import sys
import time
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

PICTURES = Path(__file__).parent / "pages" / "pictures"
ROOT = Path(__file__).parents[2]
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.4, 18, 14
FRAME_SECONDS, LAST_SECONDS = 0.5, 6.0
COLOURS = {
    "default": "#d6deeb", "red": "#ef5350", "green": "#7ee787", "brown": "#e6c07b",
    "blue": "#82aaff", "magenta": "#c792ea", "cyan": "#7fdbca", "white": "#ffffff",
    "black": "#637777",
}  # fmt: skip
# The commands, each as it is typed, with the terminal's columns and rows.
COMMANDS = {
    "demo": ("p2pmsg demo", 96, 36),
}

Screen = tuple[tuple[tuple[str, str, bool], ...], ...]
"""The rows of a screen; a row's runs of text, with colour and whether bold."""


def play(command: list[str], columns: int, rows: int) -> list[tuple[float, Screen]]:
    """Run `command` on a terminal; return its screens, each with the second at which it came."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    controller, terminal = pty.openpty()
    size = f"stty cols {columns} rows {rows}; "
    child = subprocess.Popen(
        ["sh", "-c", size + 'exec "$@"', "sh", *command],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, cwd=ROOT,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)},
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
            stream.feed(data)
            now = time.monotonic() - began
            if ready and (not frames or now - frames[-1][0] >= FRAME_SECONDS):
                frames.append((now, _rows(screen)))
            if not ready and child.poll() is not None:
                break
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGINT)
        child.wait()
        os.close(controller)
    frames.append((time.monotonic() - began, _rows(screen)))
    return frames


def _rows(screen: pyte.Screen) -> Screen:
    rows = []
    for number in range(screen.lines):
        cells = [screen.buffer[number][column] for column in range(screen.columns)]
        runs = groupby(cells, key=lambda cell: (cell.fg, cell.bold))
        rows.append(
            tuple(("".join(cell.data for cell in run), *style) for style, run in runs)
        )
    return tuple(rows)


def draw(frames: list[tuple[float, Screen]], title: str, columns: int) -> str:
    """Return an SVG that shows the frames one after the other, and begins again."""
    frames = [next(group) for _, group in groupby(frames, key=lambda frame: frame[1])]
    rows = max((_height(screen) for _, screen in frames), default=1)
    width, height = columns * CELL_WIDTH + 2 * MARGIN, (rows + 1) * CELL_HEIGHT + 3 * MARGIN
    end = frames[-1][0] + LAST_SECONDS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" role="img" aria-label="{escape(title)}">',
        "<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#0b1622"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 10}" fill="#7fdbca" font-weight="bold">'
        f"{escape('$ ' + title)}</text>",
    ]
    for number, (start, screen) in enumerate(frames):
        stop = frames[number + 1][0] if number + 1 < len(frames) else end
        is_last = number + 1 == len(frames)
        parts.append(f'<g{"" if is_last else " visibility=" + chr(34) + "hidden" + chr(34)}>')
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
    y = 2 * MARGIN + 12 + (number + 1) * CELL_HEIGHT
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(COMMANDS)}")
    names = parser.parse_args().names
    if unknown := set(names) - set(COMMANDS):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PATH"] = programs
    for name in names or COMMANDS:
        typed, columns, rows = COMMANDS[name]
        frames = play(["bash", "-c", typed], columns, rows)
        (PICTURES / f"{name}.svg").write_text(draw(frames, typed, columns))
        print(f"{name}.svg: {len(frames)} screens")


if __name__ == "__main__":
    main()
