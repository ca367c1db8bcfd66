import ast
from pathlib import Path

import pytest

import recovery
from recovery import (
    ReceiverConfig,
)

FILES = sorted(
    path
    for path in Path(recovery.__file__).parent.glob("*.py")
    if path.name not in ("store.py", "durable.py", "platform.py")  # the only I/O
)
IMPURE = {"time", "socket", "select", "threading", "asyncio", "zmq", "p2pmsg", "transports", "os"}


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


@pytest.mark.parametrize(
    ("field", "value"), [("deadline", 0.0), ("deadline", float("nan")), ("reorder_bytes_max", -1)]
)
def test_a_setting_out_of_its_limits_is_named(field, value):
    with pytest.raises(ValueError, match=rf"{field} must .*{value}"):
        ReceiverConfig(**{field: value})
