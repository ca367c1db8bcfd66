"""Words that code, texts and READMEs of this project do not use, and what they say instead.

Readers whose first language is not English know the field's words and the plain sense of others.
`python -m tests.words` looks at identifiers, comments, strings and pages, and names each place.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MADE = {"commands", "inside", "reference"}
TREES = ("p2pmsg", "recovery", "transports", "spark_bridge", "examples", "docs", "tests")
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".service"}


class Rule(NamedTuple):
    """A word and its forms, what to write, where it is right: text around it, and files."""

    words: str
    instead: str
    allowed: str = ""
    files: str = ""


_LAG = (
    r"behind a (firewall|NAT|proxy)|(lags?|lies|falls?|fell|is|are|was|far|[}0-9]) behind|"
    r"no process left behind|spark_behind|\b_behind\b|behind[=}\"]|behind = |\bbehind, \"|"
    r"Messages behind|Behind"
)
"""Who has fallen behind: Spark's queries, slow readers."""
THREATS = r"p2pmsg/testing/|tests/"
RULES = (
    Rule("desks?", "the field's word for what it does: monitor, handler, client"),
    Rule("rooms?", "space"),
    Rule("houses?|ladders?|lanes?|rungs?|ears?|mouths?|parcels?", "the field's word",
         r"parcel_(jobs_max|bytes)"),
    Rule("memos?", "metadata"),
    Rule("witness(es)?", "oracle, observer"),
    Rule("news", "notice, change"),
    Rule("whoever|whosoever", "the caller; one that …"),
    Rule("anew|afresh", "again"),
    Rule("be it", "either … or"),
    Rule("look(s|ed|ing)? after", "handle, check"),
    Rule("told|tells?|telling", "report, say, announce; distinguish"),
    Rule("behind", "after (in time or order)", _LAG),
    Rule("beside", "also; next to"),
    Rule("blam(e|es|ed|ing)", "set the reason; presume gone"),
    Rule("doubted", "distrusted"),
    Rule("hurts?", "interrupted, damaged"),
    Rule("strikes?|struck", "come, interrupt", files="tests/"),
    Rule("(un)?heed(s|ed)?", "respect; miss"),
    Rule("for good", "permanently", "(gone|leave)_for_good"),
    Rule("gone through", "passed, read"),
    Rule("(what|which) came of", "its result"),
    Rule("by choice", "optional; if configured"),
    Rule("for want of", "for lack of"),
    Rule("without a word", "silently; without notice"),
    Rule("but for", "except for"),
    Rule("lest|whence|thereby|thereof|albeit|ere", "a plain word"),
    Rule("strangers?", "outsider; unknown session or sender", files=THREATS),
    # The names of `docs/glossary.md`: one word for one thing.
    Rule("life", "incarnation", r"signs?_?\s*(#\s*)?of_?\s*(#\s*)?life|real life"),
    Rule("farewells?", "closing"),
    Rule("underway", "partial frame"),
    Rule("unpublished", "missing topics"),
    Rule("gated", "synced before send"),
    Rule("deaf", "one-way"),
    Rule("doubts?|doubtful|unsure|undecided|suspects?|suspected", "unconfirmed"),
    Rule("permits?", "access rules; may"),
    Rule("knocks?|knocking", "hello"),
    Rule("note_[a-z]+", "on_x", r"note_(the|is|that)_"),
    Rule("unbegin", "requeue"),
)  # fmt: skip


def pattern(words: str) -> re.Pattern[str]:
    """Match words in prose and within identifiers: `desk`, `_desk`, `LineDesk`, over line ends."""
    start = r"((?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
    end = r"(?![a-z])(?!(?<=[A-Z])[A-Z])"
    return re.compile(f"{start}(?i:{words}){end}".replace(" ", r"[\s#_]+"))


def hint(words: str) -> re.Pattern[str]:
    """Match the words anywhere in small letters: quickly, and where `pattern` matches at all."""
    return re.compile(words.lower().replace(" ", r"[\s#_]+"))


PATTERNS = [(rule, hint(rule.words), pattern(rule.words)) for rule in RULES]


def found(text: str, name: str) -> Iterator[tuple[int, str, str]]:
    """Return line, word and advice for each place in a text; `name` is its path."""
    small = text.lower()
    for rule, quick, words in PATTERNS:
        if not quick.search(small) or (rule.files and re.search(rule.files, name)):
            continue
        right = [match.span() for match in re.finditer(rule.allowed, text)] if rule.allowed else []
        for match in words.finditer(text):
            if not any(start <= match.start() and match.end() <= stop for start, stop in right):
                line = text.count("\n", 0, match.start()) + 1
                yield line, " ".join(match[0].split()), rule.instead


def pages() -> Iterator[tuple[str, str]]:
    """Return path and text of each file."""
    for path in sorted((*ROOT.glob("*.md"), ROOT / "Makefile", *files(TREES))):
        if path.name not in ("words.py", "test_words.py"):
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def files(trees: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that are written by hand; `make docs` makes some folders of pages."""
    for tree in trees:
        for path in (ROOT / tree).rglob("*"):
            is_made = path.parent.name in MADE and path.parent.parent.name == "docs"
            if path.suffix in SUFFIXES and not is_made:
                yield path


def main() -> int:
    places = [(name, *place) for name, text in pages() for place in sorted(found(text, name))]
    for name, line, word, instead in places:
        print(f"{name}:{line}: {word!r}; write: {instead}")
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
