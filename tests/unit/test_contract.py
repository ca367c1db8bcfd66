"""The frozen contract: what `tests/README.md` says of it, checked instead of remembered."""

import ast

import pytest

from tests.unit.test_structure import FUNCTION_NODES, ROOT, is_underscored, own_names, relative

CONTRACT = ("integration", "simulation", "spark")
FILES = sorted(path for name in CONTRACT for path in (ROOT / "tests" / name).rglob("test_*.py"))
PUBLIC_UNDERSCORES = {"_asdict", "_replace", "_fields", "_exit"}
"""Of named tuples and `os`."""
OTHERS = ("sys", "os", "time", "socket", "importlib", "builtins", "asyncio")
"""Modules that a test may patch: they stay whatever becomes of ours."""


def findings(test, own):
    """Yield how a test reaches into a peer: private attributes, patches, the helpers for that."""
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and is_underscored(node.attr) and node.attr not in own:
            yield node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            target = ast.unparse(node.args[0]).strip("'\"")
            if target.partition(".")[0] not in OTHERS:
                yield f"a patch of {target}"


def is_internal(test):
    return any(ast.unparse(mark) == "pytest.mark.internal" for mark in test.decorator_list)


def find_tests(tree):
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, FUNCTION_NODES) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_who_reaches_into_a_peer_is_marked_internal_and_nobody_else(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = own_names(tree) | PUBLIC_UNDERSCORES
    wrong = {
        test.name: found or "marked, and does not"
        for test in find_tests(tree)
        if bool(found := [*findings(test, own)]) != is_internal(test)
    }
    assert not wrong
