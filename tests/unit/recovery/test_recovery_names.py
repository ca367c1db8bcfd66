import ast
from pathlib import Path

import pytest

import recovery

FILES = sorted(
    path
    for path in Path(recovery.__file__).parent.glob("*.py")
    if path.name not in ("cursor_store.py", "durable.py")  # the only I/O, besides the log
)
IMPURE = {"time", "socket", "select", "threading", "asyncio", "zmq", "p2pmsg", "transports", "os"}


def test_every_public_name_is_there_and_sorted():
    assert list(recovery.__all__) == sorted(recovery.__all__)
    assert all(hasattr(recovery, name) for name in recovery.__all__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_reads_a_clock_or_does_io(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] not in IMPURE
            assert name != "random" or isinstance(node, ast.ImportFrom)
