"""What the README and the guide show runs, and prints what they say.

What needs Spark runs in `tests/spark/test_examples.py`, in the session that is there anyway.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoints import free_port

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs"
GENERATED = {"commands", "inside", "reference"}
PAGES = sorted(path for path in GUIDE.rglob("*.md") if path.parent.name not in GENERATED)
RECIPES = GUIDE / "guide" / "recipes.md"
SEVERAL = {RECIPES, GUIDE / "guide" / "web_applications.md"}
"""Pages of several programs; those of the second are in test_web_applications.py."""
PROGRAMS = {
    path.stem: path.read_text()
    for path in PAGES
    if path not in SEVERAL and "```python" in path.read_text()
}
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GROUP = re.compile(r"(udp://239\.[\d.]+:)(?!0\b)\d+")
SHOWN = re.compile(r"print\(.*\)  # prints (.+)$", re.MULTILINE)


def blocks(text, language):
    return [found[2] for found in BLOCK.finditer(text) if found[1] == language]


def alone(source):
    """Give a program's multicast group a port of its own.

    Else the same program, run by another test at the same time, publishes to its subscribers.
    """
    groups = set(GROUP.findall(source))
    assert len(groups) <= 1
    return GROUP.sub(rf"\g<1>{free_port()}", source) if groups else source


def run(source, folder):
    """Run a program as a user would."""
    path = folder / "program.py"
    path.write_text(alone(source))
    ended = subprocess.run(
        [sys.executable, path], capture_output=True, cwd=folder, text=True, timeout=100
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys):
    """Run a program as `run`, but in this process."""

    def run_here(source):
        path = tmp_path / "program.py"
        path.write_text(alone(source))
        monkeypatch.chdir(tmp_path)
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run_here


FEWER = {"100_000": "10_000", "99_999": "9_999", "20_000": "2_000", "19_999": "1_999"}


def with_fewer(source):
    """Give a program that publishes many messages a tenth of them."""
    return re.sub("|".join(FEWER), lambda found: FEWER[found[0]], source)


def recipes():
    """The programs of the page by their titles; each section has one."""
    found = {}
    for section in RECIPES.read_text().split("\n## ")[1:]:
        (found[section.partition("\n")[0]],) = blocks(section, "python")
    assert len(found) == 7
    return found


def pages():
    return {name: "\n".join(blocks(text, "python")) for name, text in PROGRAMS.items()}


def programs(found, *, spark):
    """Those that use Spark, or those that do not."""
    return [
        pytest.param(program, id=name)
        for name, program in found.items()
        if ("pyspark" in program) == spark
    ]


def check_shown(program, printed):
    """Check that it has printed what it says that it prints."""
    shown = SHOWN.findall(program)
    assert [line for line in printed.splitlines() if line in shown] == shown


@pytest.mark.parametrize("program", programs(recipes(), spark=False))
def test_recipe(program, run_here):
    for _ in range(2):  # as users do, in one folder
        check_shown(program, run_here(with_fewer(program)))


def test_quickstart_prints_what_the_readme_shows(tmp_path):
    section = README[README.index("## Quickstart") : README.index("## When to use")]
    publisher, subscriber = (
        program.replace("tcp://127.0.0.1:5556", f"ipc://{tmp_path}/feed")
        for program in blocks(section, "python")
    )
    (tmp_path / "publisher.py").write_text(publisher)
    child = subprocess.Popen([sys.executable, tmp_path / "publisher.py"])
    try:
        printed = run(subscriber, tmp_path)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()

    (shown,) = blocks(section, "text")
    expected = shown.rstrip().removesuffix("…").rstrip()
    assert printed.startswith(expected)


def skip_without_extras(program):
    if "webhooks" in program:
        pytest.importorskip("aiohttp", reason="the extra webhooks is not installed")


@pytest.mark.parametrize("program", programs(pages(), spark=False))
def test_page(program, run_here):
    skip_without_extras(program)
    for _ in range(2):
        check_shown(program, run_here(with_fewer(program)))


@pytest.mark.long
@pytest.mark.parametrize("program", programs(pages(), spark=False))
def test_page_as_a_program(program, tmp_path):
    skip_without_extras(program)
    check_shown(program, run(program, tmp_path))


LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]+)?\)")


def sections(path):
    """A page's sections by the anchors of their headings; one contains those below it."""
    text = path.read_text()
    without_code = BLOCK.sub(lambda found: "x" * len(found[0]), text)
    found = list(re.finditer(r"^(#+) (.+)$", without_code, re.MULTILINE))
    parts = {}
    for at, heading in enumerate(found):
        ends = [each.start() for each in found[at + 1 :] if len(each[1]) <= len(heading[1])]
        anchor = re.sub(r"[^\w -]", "", heading[2].lower()).replace(" ", "-")
        parts[f"#{anchor}"] = text[heading.start() : min(ends, default=len(text))]
    return parts


def recipe_links():
    """Each recipe with its link to the same in the other style."""
    parts = RECIPES.read_text().split("\n## ")[1:]
    return [(part.partition("\n")[0], part, *LINK.search(part).groups()) for part in parts]


@pytest.mark.parametrize(
    ("recipe", "page", "anchor"), [pytest.param(*each[1:], id=each[0]) for each in recipe_links()]
)
def test_a_recipe_leads_to_the_same_in_the_other_style(recipe, page, anchor):
    """Both print what the page says that they print."""
    section = sections(RECIPES.parent / page)[anchor]
    (program,) = blocks(recipe, "python")
    others = blocks(section, "python")

    assert any(("asyncio.run" in program) != ("asyncio.run" in other) for other in others)
    if "App()" in program:  # its handlers are of both styles
        assert {"asyncio.run" in other for other in others} == {True, False}
    shown = {line for other in others for line in SHOWN.findall(other)}
    assert shown.issuperset(SHOWN.findall(program))


TEXTS = [ROOT / "README.md", *(ROOT / "examples").glob("*/*.md"), *PAGES]
for package in ("p2pmsg", "recovery", "transports", "spark_bridge", "tests"):
    TEXTS += sorted((ROOT / package).rglob("README.md"))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    generated = ("../inside/", "../../inside/")
    missing = [
        target
        for target, _ in LINK.findall(page.read_text())
        if "://" not in target
        and not target.startswith(generated)
        and not (page.parent / target).exists()
    ]
    missing += [
        target + anchor
        for target, anchor in LINK.findall(page.read_text())
        if anchor
        and "://" not in target
        and not target.startswith(generated)
        and anchor not in sections(page.parent / target)
    ]

    assert missing == []


def test_readme_is_short_and_in_order():
    titles = re.findall(r"^## (.+)$", README, re.MULTILINE)

    assert len(README.splitlines()) <= 150
    assert titles == [
        "Install", "Quickstart", "When to use it, and when not", "What is guaranteed", "More",
    ]  # fmt: skip
