import ast
from pathlib import Path

import pytest

import recovery
from recovery import (
    NackConfig,
    ReceiverConfig,
)

FILES = sorted(
    path
    for path in Path(recovery.__file__).parent.glob("*.py")
    if path.name not in ("cursor_store.py", "durable.py", "platform.py")  # the only I/O
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


WRONG = {
    NackConfig: {
        "delay": -0.001, "retry_interval": 0.0, "retry_max": 0.001, "jitter": 2, "attempts_max": 0,
        "deadline": 0.0, "gaps_max": 0,
    },
    ReceiverConfig: {"reorder_bytes_max": -1, "reorder_frames_max": -1, "losses_max": -1},
}  # fmt: skip
CASES = [(config, *one) for config, fields in WRONG.items() for one in fields.items()]


@pytest.mark.parametrize(
    ("config", "field", "value"), [*CASES, (NackConfig, "deadline", float("nan"))]
)
def test_a_setting_out_of_its_limits_is_named(config, field, value):
    with pytest.raises(ValueError, match=rf"{field} must .*{value}"):
        config(**{field: value})
