"""Each public name says what it takes, in which unit, and what it raises."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise

import p2pmsg
from tests.unit.p2pmsg.test_public_names import MODULES

TIMED = re.compile(
    r"timeout|linger$|interval|keep_alive|delay$|(^|_)(age|wait|pause|backoff|grace)$|bytes|duration"
)
"""What is a time or a size, unless its name ends in the unit: `timestamp_ns`."""
SAME_ARGUMENTS = re.compile(
    r"`p2pmsg\.(\w+)` for asyncio, with the same arguments|arguments are those of `p2pmsg\.(\w+)`"
)
HIDDEN = ("self", "args", "kwargs")
IN_NAME = re.compile(r"_(s|ms|us|ns|seconds)$")
UNIT = re.compile(
    r"(?i)(?<!['\w])(seconds?|s|ms|us|µs|ns|microseconds|bytes?|[KMGT]iB|minutes?|hours?|h)\b"
)


def public_objects() -> dict[str, type | object]:
    found = {}
    for module in ("p2pmsg", *(f"p2pmsg.{name}" for name in MODULES)):
        home = importlib.import_module(module)
        for name in getattr(home, "__all__", dir(home)):
            thing = getattr(home, name)
            is_ours = getattr(thing, "__module__", "").startswith(("p2pmsg", "recovery"))
            if name[0] != "_" and is_ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
                found[f"{thing.__module__}.{name}"] = thing
    return found


def entry(text: str, name: str) -> str | None:
    """What a docstring says of a parameter: its entry, or the text that names it."""
    if found := re.search(rf"(?ms)^( *)\*?\*?{name}: .*?(?=^\1\S|^ *$|\Z)", text):
        return found[0]
    if found := re.search(rf"(?ms)^ *(\w+, )*{name}(, \w+)*: .*?(?=^ *\w+:|^ *$|\Z)", text):
        return found[0]
    return text if f"`{name}`" in text else None


def fields(thing: type) -> dict[str, str]:
    """The docstrings under the fields of a class and of those that it is made of."""
    found = {}
    for each in inspect.getmro(thing)[::-1]:
        if each.__module__.startswith(("p2pmsg", "recovery")):
            body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0].body
            for field, text in pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    found[field.target.id] = str(getattr(text.value, "value", ""))
    return found


def raised(function: object) -> set[str]:
    """The errors that a function's own body raises and does not catch itself."""
    try:
        source = inspect.getsource(function)
    except OSError:  # a dataclass made it
        return set()
    names, todo = set(), list(ast.parse(textwrap.dedent(source)).body[0].body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            of = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            names.add(of.id if isinstance(of, ast.Name) else "")
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            caught = isinstance(node, ast.Try) and bool(node.handlers)
            todo += [
                child for child in ast.iter_child_nodes(node) if not (caught and child in node.body)
            ]
    return {name for name in names if name.endswith("Error")}


def parameters(function: object) -> list[str]:
    every = list(inspect.signature(function).parameters.values())
    return [each.name for each in every if each.name not in HIDDEN and each.name[0] != "_"]


def texts(thing: type, name: str = "") -> str:
    """The docstrings of a class, or of its method, and of those that it is made of."""
    every = inspect.getmro(thing)[:-1]
    named = [*(vars(each).get(name or "__init__") for each in every), *(() if name else every)]
    return "\n\n".join(inspect.cleandoc(getattr(each, "__doc__", None) or "") for each in named)


def findings(thing: type | object) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield from of_function(thing, inspect.getdoc(thing) or "", "")
        return
    text, own = texts(thing), inspect.getdoc(thing) or ""
    if same := SAME_ARGUMENTS.search(own):  # a peer for asyncio, and the threaded one
        text += "\n\n" + texts(getattr(p2pmsg, same[1] or same[2]))
    if not own or own.startswith(f"{thing.__name__}("):
        yield "no docstring"
    if not issubclass(thing, Exception | Enum) and not made_by_others(thing):
        yield from unexplained(thing, text, fields(thing))
    for name, member in inspect.getmembers(thing):
        method = member.fget if isinstance(member, property) else member
        if inspect.isfunction(method) and method.__module__.startswith(("p2pmsg", "recovery")):
            if name in ("__init__", "__post_init__"):
                yield from not_under_raises(method, text)
            elif name[0] != "_" and not made_by_others(thing):
                said = texts(thing, name)
                yield from (f"{name}: {each}" for each in of_function(method, said, text))


def made_by_others(thing: type) -> bool:
    """Whether programs get it from a `Simulation` and do not make it."""
    return "testing.simulated_" in thing.__module__


def of_function(function: object, text: str, of_class: str) -> Iterator[str]:
    if not text.strip():
        yield "no docstring"
    yield from unexplained(function, f"{text}\n\n{of_class}", {})
    yield from not_under_raises(function, text)


def unexplained(function: object, text: str, under: dict[str, str]) -> Iterator[str]:
    for name in parameters(function):
        said = under.get(name) or entry(text, name)
        if said is None:
            yield f"{name} is not explained"
        elif TIMED.search(name) and not IN_NAME.search(name) and not UNIT.search(said):
            yield f"{name} has no unit"


def not_under_raises(function: object, text: str) -> Iterator[str]:
    if not function.__code__.co_filename.startswith("<"):  # `dataclass` made it
        yield from (f"{each} is not under Raises" for each in raised(function) if each not in text)


class Poor:
    """Args: none.

    timeout: how long.
    """

    def __init__(self, timeout: float, size: int) -> None:
        raise ValueError(timeout, size)

    def work(self) -> None:
        pass


def test_what_is_missing_is_found():
    assert {"timeout has no unit", "size is not explained"} <= set(findings(Poor))
    assert set(not_under_raises(Poor.__init__, texts(Poor))) == {"ValueError is not under Raises"}
    assert list(of_function(Poor.work, "", "")) == ["no docstring"]


def test_each_public_name_is_documented():
    found = {name: list(findings(thing)) for name, thing in public_objects().items()}

    assert len(found) > 100
    assert {name: each for name, each in found.items() if each} == {}
