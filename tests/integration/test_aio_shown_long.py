"""What is shown of asyncio says nothing in debug mode, runs in uvloop, and Ctrl-C ends it.

The guide's recipes, its other pages and the examples.
"""

import importlib.util
import subprocess
import sys

import pytest

from tests.integration.test_examples import EXAMPLES
from tests.integration.test_guide import GUIDE, alone, blocks, pages, programs, recipes, sections

pytestmark = pytest.mark.long

SHOWN = {
    name: program.values[0]
    for found in (recipes(), pages())
    for program in programs(found, spark=False)
    if "asyncio.run(" in program.values[0]
    for name in [program.id]
}
ALONE = {
    anchor: found[0]
    for anchor, section in sections(GUIDE / "guide" / "asyncio.md").items()
    if (found := blocks(section, "python"))
    and "asyncio.run(" in found[0]
    and (len(found) == 1 or anchor == "#asyncio")
} | {name: program for name, program in recipes().items() if "asyncio.run(" in program}
"""The programs of asyncio's page, by themselves, and those of the recipes."""
IN_EXAMPLES = {
    "aio_service.py": ["{folder}"],
    "gui_latest.py": ["0.5"],
    "typed.py": ["ipc://{folder}/typed"],
}
IN_UVLOOP = """
import asyncio, pathlib, runpy, sys, uvloop
asyncio.run = uvloop.run
del sys.argv[0]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
BEGINS = """
import asyncio, pathlib, signal
import p2pmsg.aio
signal.signal(signal.SIGINT, signal.default_int_handler)
pathlib.Path("begun").touch()
"""


@pytest.fixture(params=["asyncio", "uvloop"])
def start(request, tmp_path):
    """Start one of them as a user does, in debug mode."""
    in_loop = []
    if request.param == "uvloop":
        if importlib.util.find_spec("uvloop") is None:
            pytest.skip("uvloop is not there")
        in_loop = ["-c", IN_UVLOOP]

    def run(name, folder=tmp_path):
        if name in IN_EXAMPLES:
            path = EXAMPLES / name
            arguments = [each.format(folder=folder) for each in IN_EXAMPLES[name]]
        else:
            path, arguments = folder / "program.py", []
            path.write_text(BEGINS + alone((SHOWN | ALONE)[name]))
        return subprocess.Popen(
            [sys.executable, "-X", "dev", *in_loop, path, *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return run


def finish(process):
    try:
        return process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()


def without_slow(said):
    """Leave out how long a step took: that depends on the machine."""
    return [line for line in said.splitlines() if not line.startswith("Executing <")]


@pytest.mark.parametrize("name", [*SHOWN, *IN_EXAMPLES])
def test_it_says_nothing_in_debug_mode(start, name):
    process = start(name)
    _, said = finish(process)
    assert without_slow(said) == []
    assert process.returncode == 0
