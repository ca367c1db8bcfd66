"""The two faces of each peer: the threaded one is made from that of asyncio, and says the same."""

import importlib
import inspect
import re

import pytest

from tests.faces import ROOT, convert, formatted, sources, target_of

SOURCES = sources()
ONLY_LOOP = {"open", "close_now", "wait_fds", "next_deadline", "turn", "begin"}
"""What only a peer of an event loop has, or one for a loop of the caller's own."""


def relative(path):
    return str(path.relative_to(ROOT))


def module_of(path):
    return importlib.import_module(relative(path).removesuffix(".py").replace("/", "."))


@pytest.mark.parametrize("source", SOURCES, ids=relative)
def test_the_threaded_face_is_made_from_the_other(source):
    target = target_of(source)
    assert target.read_text(encoding="utf-8") == formatted(convert(source), str(target))


@pytest.mark.parametrize("source", SOURCES, ids=relative)
def test_both_have_the_same_calls_with_the_same_arguments(source):
    loop, threads = module_of(source), module_of(target_of(source))
    for name, face in inspect.getmembers(loop, inspect.isclass):
        if face.__module__ != loop.__name__ or name.startswith("_"):
            continue
        other = getattr(threads, name)
        calls, others = calls_of(face), calls_of(other)
        differing = {
            call
            for call in calls.keys() & others.keys()
            if arguments_of(calls[call]) != arguments_of(others[call])
        }
        assert (calls.keys() - others.keys()) - ONLY_LOOP == set()
        assert others.keys() - calls.keys() == set()
        assert differing == set()


@pytest.mark.parametrize("source", SOURCES, ids=relative)
def test_what_is_said_of_a_call_has_no_marks_of_the_converter(source):
    for module in (module_of(source), module_of(target_of(source))):
        for _, face in inspect.getmembers(module, inspect.isclass):
            for call in calls_of(face).values():
                said = inspect.getdoc(call) or ""
                assert not re.search(r"# (loop only|threads only|both)|\ban? `def`", said)


def arguments_of(call):
    """Return them in order, each with its kind and default; tasks are in place of threads."""
    return [
        (name, each.kind, each.default)
        for name, each in inspect.signature(call).parameters.items()
        if name not in ("tasks", "tasks_max", "threads")
    ]


def calls_of(face):
    return {
        name: call
        for name, call in inspect.getmembers(face, callable)
        if name == "__init__" or not name.startswith("_")
    }
