"""What the README and the guide show runs, and prints what they say.

What needs Spark runs in `tests/spark/test_examples.py`, in the session that is there anyway.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "examples" / "guide" / "pages"
GENERATED = {"commands", "inside", "reference"}
PAGES = sorted(path for path in GUIDE.rglob("*.md") if path.parent.name not in GENERATED)
PROGRAMS = {path.stem: path.read_text() for path in PAGES if "```python" in path.read_text()}
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"print\(.*\)  # prints (.+)$", re.MULTILINE)


def blocks(text, language):
    return [found[2] for found in BLOCK.finditer(text) if found[1] == language]


def run(source, folder):
    """Run a program as a user would; deprecated names are an error."""
    path = folder / "program.py"
    path.write_text(source)
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", path]
    ended = subprocess.run(command, capture_output=True, cwd=folder, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def recipes():
    section = README[README.index("## Recipes") : README.index("## Values")]
    titles = re.findall(r"^\*\*(.+?)\.?\*\*", section, re.MULTILINE)
    programs = blocks(section, "python")
    assert len(titles) == len(programs) == 7
    return dict(zip(titles, programs, strict=True))


def pages():
    return {name: "\n".join(blocks(text, "python")) for name, text in PROGRAMS.items()}


def programs(found, *, spark):
    """Those that use Spark, or those that do not."""
    return [
        pytest.param(program, id=name)
        for name, program in found.items()
        if ("pyspark" in program) == spark
    ]


@pytest.mark.parametrize("program", programs(recipes(), spark=False))
def test_recipe(program, tmp_path):
    shown = SHOWN.findall(program)

    printed = run(program, tmp_path).splitlines()

    assert [line for line in printed if line in shown] == shown


def test_recipes_are_short():
    for program in recipes().values():
        assert len([line for line in program.splitlines() if line.strip()]) <= 18


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
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()

    (shown,) = blocks(section, "text")
    expected = shown.rstrip().removesuffix("…").rstrip()
    assert printed.startswith(expected)


@pytest.mark.parametrize("program", programs(pages(), spark=False))
def test_page(program, tmp_path):
    if "webhooks" in program:
        pytest.importorskip("aiohttp", reason="the extra webhooks is not installed")
    run(program, tmp_path)


LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]+)?\)")


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "examples").glob("*/*.md"), *PAGES])
def test_links_lead_somewhere(page):
    generated = ("../inside/", "reference/", "commands/")
    missing = [
        target
        for target, _ in LINK.findall(page.read_text())
        if "://" not in target
        and not target.startswith(generated)
        and not (page.parent / target).exists()
    ]

    assert missing == []


def test_readme_is_short_and_in_order():
    titles = re.findall(r"^## (.+)$", README, re.MULTILINE)

    assert len(README.splitlines()) <= 300
    assert titles == [
        "Install", "Quickstart", "When to use it, and when not", "What is guaranteed", "Recipes",
        "Values", "Command line", "Operations", "Benchmarks", "Reference", "Compatibility",
        "Contributing", "Licence",
    ]  # fmt: skip
