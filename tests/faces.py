"""`python -m tests.faces`: make the threaded faces from those of asyncio, as psycopg does.

Each `loop/NAME.py` of a package is written by hand; `threads/NAME.py` next to it is made from it,
and `tests/unit/test_faces.py` fails where it is not. What is in only one of them stands between
lines `# loop only` or `# threads only` and `# both`; in a block of the second kind each line is
commented.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Made by `python -m tests.faces` from {source}: change that one.\n"
NAMES = {
    "LoopFace": "ThreadFace",
    "AsyncIterator": "Iterator",
    "AsyncIterable": "Iterable",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
TEXTS = (
    (r"\basync (with|for|def|function)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bp2pmsg\.aio\.", "p2pmsg."),
    (r"\baio\.", "p2pmsg."),
    (r"\.loop\.", ".threads."),
    (r"\basyncio\.run\((.*)\)$", r"\1"),
    (r"\bfor asyncio\b", "for threads"),
    (r"\basyncio\b", "threaded"),
    (r"^( +)tasks:", r"\1threads:"),  # an argument, and what is said about it
)


def sources():
    """Return the faces that are written by hand."""
    return sorted((ROOT / "p2pmsg").glob("**/loop/[!_]*.py"))


def target_of(source):
    """Return where the threaded face of `source` is."""
    return source.parent.parent / "threads" / source.name


def convert(source):
    """Return the threaded face of `source`, not formatted yet."""
    made, kind = [], "both"
    for line in source.read_text(encoding="utf-8").splitlines(keepends=True):
        mark = line.strip().removeprefix("# ")
        if line.strip().startswith("# ") and mark in ("loop only", "threads only", "both"):
            kind = mark
        elif kind == "threads only":
            made.append(re.sub(r"^( *)# ?", r"\1", line))
        elif kind == "both":
            made.append(converted(line))
    text = "".join(made)
    return HEAD.format(source=source.relative_to(ROOT)) + text


def converted(line):
    """Return one line of both faces as the threaded one has it."""
    for name, other in NAMES.items():
        line = re.sub(rf"\b{name}\b", other, line)
    for pattern, other in TEXTS:
        line = re.sub(pattern, other, line)
    return line


def formatted(text, path):
    """Return `text` as ruff formats it, imports sorted."""
    import subprocess

    for command in (["check", "--fix", "--quiet", "--exit-zero"], ["format", "--quiet"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def main():
    """Write all of them."""
    for source in sources():
        target = target_of(source)
        target.parent.mkdir(exist_ok=True)
        target.write_text(formatted(convert(source), str(target)), encoding="utf-8")
        print(target.relative_to(ROOT))


if __name__ == "__main__":
    main()
