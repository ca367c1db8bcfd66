"""What the rules say about files, functions and names, checked instead of remembered."""

import ast
import importlib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("recovery", "transports", "p2pmsg", "spark_bridge")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60

FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ALL_FILES = python_files(*PACKAGES, "tests", "examples", "docs")
BRIDGE_FILES = python_files("spark_bridge")
PACKAGE_FILES = {relative(path) for path in python_files(*PACKAGES) if path.name == "__init__.py"}
SUBPACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in python_files(*PACKAGES)
    if path.name == "__init__.py"
)


def functions_in(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield what is defined in a tree, at any depth; expressions define nothing of a name."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            if isinstance(node, FUNCTION_NODES):
                yield node
            yield from functions_in(node)


def docstring_line_count(node: FunctionNode) -> int:
    if ast.get_docstring(node, clean=False) is None:
        return 0
    docstring = node.body[0]
    return (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1


def function_line_count(node: FunctionNode) -> int:
    """Lines from `def` to the end, without the docstring."""
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_line_count(node)


def is_underscored(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def own_names(tree: ast.AST) -> set[str]:
    """Names that a module itself defines: its functions, classes and `self.…` attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (*FUNCTION_NODES, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def exported_names(module: str) -> list[str]:
    return getattr(importlib.import_module(module), "__all__", [])


def underscore_access_findings(tree: ast.AST) -> Iterator[str]:
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_underscored(node.attr) and node.attr not in own:
            yield f"line {node.lineno} reaches for the private name {node.attr!r}"


def test_each_file_is_short():
    line_counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_FILES}

    assert not {
        relative(path): f"{count} lines: split it"
        for path, count in line_counts.items()
        if count > FILE_LINES_MAX
    }


def test_each_function_is_short():
    counts = {
        f"{relative(path)}:{node.lineno} {node.name}": function_line_count(node)
        for path in ALL_FILES  # a tree at a time: all of them take as long again to be collected
        for node in functions_in(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert len(counts) > len(ALL_FILES)
    assert not {name: count for name, count in counts.items() if count > FUNCTION_LINES_MAX}


def test_spark_bridge_uses_no_private_names_of_p2pmsg():
    """What it imports: `test_layers.py`."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in BRIDGE_FILES}
    found = {relative(path): [*underscore_access_findings(tree)] for path, tree in trees.items()}

    assert found
    assert not {path: findings for path, findings in found.items() if findings}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_and_those_in_it_explain_themselves_in_short_readmes(package):
    """What users need, settings and behaviour in faults, belongs into docs/guide."""
    lines = {
        relative(readme): len(readme.read_text(encoding="utf-8").splitlines())
        for readme in (ROOT / package).rglob("README.md")
    }

    assert f"{package}/README.md" in lines
    assert {name: count for name, count in lines.items() if not 0 < count <= 80} == {}


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_a_package_exports_names_that_exist_and_each_once(name):
    if name.startswith("spark_bridge"):
        pytest.importorskip("pyspark", reason="spark_bridge needs PySpark")
    package = importlib.import_module(name)
    exported = exported_names(name)

    assert not [export for export in exported if not hasattr(package, export)]
    assert len(exported) == len(set(exported))


def test_no_modules_import_each_other_in_a_circle():
    """Imports for types count, too: they say who knows whom."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    imports = {
        module: graph.find_modules_directly_imported_by(module)
        for module in graph.modules
        if f"{module.replace('.', '/')}/__init__.py" not in PACKAGE_FILES
    }
    assert len(imports) > 200
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
